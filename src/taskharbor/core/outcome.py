"""What happened: how a run ended, before anybody decides what that means.

An exception becomes an outcome here (`from_error`), so that the runtime never interprets what a handler raised (F4, F11).
"""

from __future__ import annotations

from msgspec import Struct

from taskharbor.core.job import NewJob
from taskharbor.core.retry import Retry
from taskharbor.errors import RetryAfter, Snooze, Unrecoverable

ERROR_LIMIT = 8 * 1024


class Succeeded(Struct, frozen=True):
    """The handler returned; `new_jobs` are stored together with the Ack (D9)."""

    result: bytes | None
    new_jobs: tuple[NewJob, ...] = ()


class Failed(Struct, frozen=True):
    """The run failed. `final` says why no retry can help; `delay` overrides the policy's."""

    kind: str
    message: str
    traceback: str = ""
    final: str | None = None
    delay: float | None = None


class Snoozed(Struct, frozen=True):
    """The handler asked to be called again later; not a failure."""

    delay: float


class Interrupted(Struct, frozen=True):
    """The worker stopped before the handler was through; not the job's fault."""


class CancelledByRequest(Struct, frozen=True):
    """The handler was stopped because somebody cancelled the job."""


class NotRegistered(Struct, frozen=True):
    """This worker does not know the task: perhaps a newer one will (F8)."""


Outcome = Succeeded | Failed | Snoozed | Interrupted | CancelledByRequest | NotRegistered


def bounded(text: str, limit: int = ERROR_LIMIT) -> str:
    """At most `limit` bytes of UTF-8, saying so when something was cut (R4)."""
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) <= limit:
        return raw.decode("utf-8")
    note = f" … [cut: {len(raw)} bytes in all]"
    return raw[: limit - len(note.encode())].decode("utf-8", "ignore") + note


def _bounded_tail(text: str, limit: int = ERROR_LIMIT) -> str:
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) <= limit:
        return raw.decode("utf-8")
    note = f"[cut: {len(raw)} bytes in all] … "
    return note + raw[len(raw) - limit + len(note.encode()) :].decode("utf-8", "ignore")


def from_error(error: BaseException, retry: Retry, traceback: str = "") -> Failed | Snoozed:
    """The outcome of a run that raised `error`; whatever it is, it is that job's failure (F11)."""
    if isinstance(error, Snooze):
        return Snoozed(error.delay)
    final = None
    if isinstance(error, Unrecoverable):
        final = "unrecoverable"
    elif not isinstance(error, RetryAfter) and not retry.retries(error):
        final = "gave_up"
    return Failed(
        kind=_kind(error),
        message=bounded(_message(error)),
        traceback=_bounded_tail(traceback),  # the end names the error and the innermost frame
        final=final,
        delay=error.delay if isinstance(error, RetryAfter) else None,
    )


def timed_out(timeout: float) -> Failed:
    """The outcome of a run that was stopped by its timeout (F5)."""
    return Failed(kind="TimeoutError", message=f"timed out after {timeout:g} s")


def _kind(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:
        return f"<{type(error).__name__} whose message cannot be shown: {type(broken).__name__}>"
