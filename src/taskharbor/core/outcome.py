"""Outcomes: how a run ended, before `decide` says what that means.

An exception becomes an outcome here (`from_error`), so that the worker interprets only errors of its own (F4, F11),
in `worker/outcomes.py`.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import force_setattr

from taskharbor.core.job import NewJob
from taskharbor.core.retry import Retry
from taskharbor.core.text import ERROR_LIMIT, bounded, bounded_end, kind_of, message_of
from taskharbor.errors import RetryAfter, Snooze, Unrecoverable

KIND_LIMIT = 256
MESSAGE_LIMIT = ERROR_LIMIT - KIND_LIMIT - len(": ")  # together they are a record's last_error


class Succeeded(Struct, frozen=True):
    """The handler returned; `new_jobs` are stored together with the Ack (D9)."""

    result: bytes | None
    new_jobs: tuple[NewJob, ...] = ()


class Failed(Struct, frozen=True):
    """The run failed. `final` says why no retry can help; `delay` overrides the policy's.

    The texts are bounded here, so that no record can hold longer ones (R4).
    """

    kind: str
    message: str
    traceback: str = ""
    final: str | None = None
    delay: float | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "kind", bounded(self.kind, KIND_LIMIT))
        force_setattr(self, "message", bounded(self.message, MESSAGE_LIMIT))
        force_setattr(self, "traceback", bounded_end(self.traceback))


class Snoozed(Struct, frozen=True):
    """The handler asked to run again later; not a failure."""

    delay: float


class Interrupted(Struct, frozen=True):
    """The worker stopped before the handler finished; not the job's fault. `started`: its handler had begun."""

    started: bool = False


class Deferred(Struct, frozen=True):
    """The job must run alone and this worker was busy (F6b); it keeps its place, or waits for a delay."""

    delay: float = 0.0


class Crashed(Struct, frozen=True):
    """The process that ran only this job has died: the job's own doing, and not an attempt (F6)."""

    message: str

    def __post_init__(self) -> None:
        force_setattr(self, "message", bounded(self.message, MESSAGE_LIMIT))


class CancelledByRequest(Struct, frozen=True):
    """The handler was stopped because the job was cancelled."""


class NotRegistered(Struct, frozen=True):
    """This worker does not know the task; a newer one may (F8)."""


Outcome = Succeeded | Failed | Snoozed | Interrupted | Deferred | Crashed | CancelledByRequest | NotRegistered


def from_error(error: BaseException, retry: Retry, traceback: str = "") -> Failed | Snoozed:
    """The outcome of a run that raised `error`; any exception is that job's failure (F11)."""
    delay = _delay_of(error)
    if isinstance(error, Snooze) and delay is not None:
        return Snoozed(delay)
    final = None
    if isinstance(error, Unrecoverable):
        final = "unrecoverable"
    elif not isinstance(error, RetryAfter) and not retry.retries(error):
        final = "gave_up"
    return Failed(kind_of(error), message_of(error), traceback, final, delay)


def _delay_of(error: BaseException) -> float | None:
    """The delay of a signal; a subclass that never set one, or set nonsense, is an ordinary failure."""
    delay: object = getattr(error, "delay", None) if isinstance(error, Snooze | RetryAfter) else None
    return float(delay) if isinstance(delay, int | float) and 0 <= delay < float("inf") else None


def timed_out(timeout: float, retry: Retry | None = None) -> Failed:
    """The outcome of a run that was stopped by its timeout: retryable, unless the policy's filters say no (F5)."""
    gave_up = retry is not None and not retry.retries(TimeoutError())
    return Failed("TimeoutError", f"timed out after {timeout:g} s", final="gave_up" if gave_up else None)
