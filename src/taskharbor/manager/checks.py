"""What callers may pass in; everything else is refused before anything is written (M3, X5)."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from taskharbor.client.options import MOST
from taskharbor.core.job import Progress
from taskharbor.core.names import KEY_LIMIT, check_name
from taskharbor.core.reserved import KEY_PREFIX
from taskharbor.core.text import bounded
from taskharbor.errors import ConfigError, InvalidJob, InvalidTask, InvalidWorkerID, TaskNotFound
from taskharbor.manager.task import TaskStatus
from taskharbor.worker.context import NOTE_LIMIT
from taskharbor.worker.worker_options import LONGEST_LEASE, SHORTEST_LEASE


class Caller(NamedTuple):
    """The task that a call is about, and who calls: a worker id, and the token of its claim if one was passed."""

    id: str
    worker: str
    token: str | None


def checked_payload(payload: object) -> bytes:
    """A task's payload."""
    if not isinstance(payload, bytes):
        raise InvalidTask(f"payload must be bytes, b'' if there is nothing to say, not {type(payload).__name__}")
    return payload


def checked_result(result: object) -> bytes | None:
    """A task's result."""
    if result is not None and not isinstance(result, bytes):
        raise InvalidTask(f"result must be bytes or None, not {type(result).__name__}: encode it first")
    return result


def checked_error(error: object) -> str | BaseException:
    """What went wrong."""
    if not isinstance(error, str | BaseException):
        raise InvalidTask(f"error must be text or an exception, not {type(error).__name__}")
    return error


def checked_attempts(given: object) -> int | None:
    """How often a task may be claimed; None if any number of times."""
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= MOST:
        raise InvalidTask(f"max_attempts must be a whole number from 0 (unlimited) to {MOST}, not {given!r}")
    return given or None


def stored_key(key: object) -> str:
    """An idempotency key as it is stored, where no ordinary job's can meet it."""
    try:
        return KEY_PREFIX + check_name("idempotency_key", key, KEY_LIMIT)
    except InvalidJob as error:
        raise InvalidTask(str(error)) from None


def checked_id(task_id: object) -> str:
    """The id of a task; `TaskNotFound` for a text that is none."""
    if not isinstance(task_id, str):
        raise InvalidTask(f"a task's id is text, as submit() returned it, not {type(task_id).__name__}")
    try:
        return check_name("a task's id", task_id)
    except InvalidJob as error:
        raise TaskNotFound(f"there is no such task: {error}") from None


def checked_worker(worker_id: object) -> str:
    """Who claims: a name that no two agents share."""
    try:
        return check_name("worker_id", worker_id)
    except InvalidJob as error:
        raise InvalidWorkerID(f"{error}; give every agent a name of its own") from None


def checked_caller(task_id: object, worker_id: object, token: object) -> Caller:
    """The caller. Any text may be a token; the error does not repeat what is not."""
    id, worker = checked_id(task_id), checked_worker(worker_id)
    if token is not None and not isinstance(token, str):
        raise InvalidTask(f"token must be the claim_token of claim(), or None, not {type(token).__name__}")
    return Caller(id, worker, token)


def checked_progress(fraction: object, note: object, before: Progress | None) -> Progress | None:
    """What a heartbeat has to tell; a note alone leaves the fraction where it was."""
    if not isinstance(note, str):
        raise InvalidTask(f"note must be text, not {type(note).__name__}")
    if fraction is None:
        return Progress(before.fraction if before else 0.0, bounded(note, NOTE_LIMIT)) if note else None
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise InvalidTask(f"progress must be a number from 0 to 1, not {fraction!r}")
    return Progress(float(fraction), bounded(note, NOTE_LIMIT))


def checked_status(status: object) -> TaskStatus | None:
    """A status to list by."""
    try:
        return None if status is None else TaskStatus(str(status))
    except ValueError:
        raise InvalidTask(f"status must be one of {', '.join(TaskStatus)}, not {status!r}") from None


def checked_limit(limit: object) -> int | None:
    """How many to list."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidTask(f"limit must be a whole number from 1 up, or None, not {limit!r}")
    return limit


def checked_lease(lease: object) -> timedelta:
    """How long a claim holds without a heartbeat."""
    length = lease.total_seconds() if isinstance(lease, timedelta) else lease
    if isinstance(length, int | float) and not isinstance(length, bool) and SHORTEST_LEASE <= length <= LONGEST_LEASE:
        return timedelta(seconds=length)
    raise ConfigError(f"lease must be from {SHORTEST_LEASE:g} seconds to 30 days, not {lease!r}")
