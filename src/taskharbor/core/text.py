"""Error texts made safe to store: bounded in bytes, valid UTF-8, whatever the exception does (R4, F11)."""

from __future__ import annotations

from datetime import UTC, datetime

ERROR_LIMIT = 8 * 1024


def kind_of(value: object) -> str:
    """The name of the class of an exception or another value, with its module unless that is Python's own."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def message_of(error: BaseException) -> str:
    """The message of an exception, or a note if `str()` fails."""
    try:
        return str(error)
    except BaseException as broken:  # `__str__` is user code: it may raise anything
        return f"<{type(error).__name__} whose message cannot be shown: {type(broken).__name__}>"


def described(error: BaseException) -> str:
    """An exception in one line of a log: the name of its class and its message."""
    return f"{type(error).__name__}: {message_of(error)}"


def stamp(moment: datetime) -> str:
    """A time as written in logs and messages: ISO 8601 in UTC with milliseconds, 2030-01-31T09:00:00.123Z."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def bounded(text: str, limit: int = ERROR_LIMIT) -> str:
    """The beginning of the text in at most `limit` bytes of UTF-8, with a note if it was cut."""
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) <= limit:
        return raw.decode("utf-8")
    note = f" … [cut: {len(raw)} bytes in all]"
    return raw[: limit - len(note.encode())].decode("utf-8", "ignore") + note


def bounded_end(text: str, limit: int = ERROR_LIMIT) -> str:
    """The end of the text in at most `limit` bytes: a traceback's end names the error and the innermost frame."""
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) <= limit:
        return raw.decode("utf-8")
    note = f"[cut: {len(raw)} bytes in all] … "
    return note + raw[len(raw) - limit + len(note.encode()) :].decode("utf-8", "ignore")
