"""Checks of what callers pass in, before anything is written (M3, X5)."""

from __future__ import annotations

from datetime import timedelta
from types import UnionType
from typing import NamedTuple, TypeVar

from taskharbor.client.options import MOST
from taskharbor.core.job import Progress
from taskharbor.core.names import KEY_LIMIT, check_name
from taskharbor.core.reserved import KEY_PREFIX
from taskharbor.core.text import bounded
from taskharbor.errors import ConfigError, InvalidJob, InvalidTask, InvalidWorkerID, TaskNotFound
from taskharbor.manager.task import TaskStatus
from taskharbor.worker.context import NOTE_LIMIT
from taskharbor.worker.worker_options import LONGEST_LEASE, SHORTEST_LEASE

T = TypeVar("T")


class Caller(NamedTuple):
    """The task that a call is about, and the caller: a worker id, and the token of its claim if one was passed."""

    id: str
    worker: str
    token: str | None


def typed(value: T, kinds: type | UnionType, rule: str, fix: str = "") -> T:
    """The value; `InvalidTask` with the rule if it is of another type."""
    if not isinstance(value, kinds):
        raise InvalidTask(f"{rule}, not {type(value).__name__}{fix}")
    return value


def checked_attempts(given: object) -> int | None:
    """How often a task may be claimed; None if any number of times."""
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= MOST:
        raise InvalidTask(f"max_attempts must be a whole number from 0 (unlimited) to {MOST}, not {given!r}")
    return given or None


def stored_key(key: object) -> str:
    """An idempotency key as it is stored, with a prefix that no ordinary job's key has."""
    try:
        return KEY_PREFIX + check_name("idempotency_key", key, KEY_LIMIT)
    except InvalidJob as error:
        raise InvalidTask(str(error)) from None


def checked_id(task_id: object) -> str:
    """The id of a task; `TaskNotFound` for a text that cannot be one."""
    text = typed(task_id, str, "a task's id is text, as submit() returned it")
    try:
        return check_name("a task's id", text)
    except InvalidJob as error:
        raise TaskNotFound(f"there is no such task: {error}") from None


def checked_worker(worker_id: object) -> str:
    try:
        return check_name("worker_id", worker_id)
    except InvalidJob as error:
        raise InvalidWorkerID(f"{error}; give every agent a name of its own") from None


def checked_caller(task_id: object, worker_id: object, token: str | None) -> Caller:
    """The caller. An error does not show the token."""
    id, worker = checked_id(task_id), checked_worker(worker_id)
    return Caller(id, worker, typed(token, str | None, "token must be the claim_token of claim(), or None"))


def checked_progress(fraction: object, note: str, before: Progress | None) -> Progress | None:
    """The progress that a heartbeat reports; a note alone keeps the fraction of before."""
    typed(note, str, "note must be text")
    if fraction is None:
        return Progress(before.fraction if before else 0.0, bounded(note, NOTE_LIMIT)) if note else None
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise InvalidTask(f"progress must be a number from 0 to 1, not {fraction!r}")
    return Progress(float(fraction), bounded(note, NOTE_LIMIT))


def checked_status(status: object) -> TaskStatus | None:
    try:
        return None if status is None else TaskStatus(str(status))
    except ValueError:
        raise InvalidTask(f"status must be one of {', '.join(TaskStatus)}, not {status!r}") from None


def checked_limit(limit: object) -> int | None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidTask(f"limit must be a whole number from 1 up, or None, not {limit!r}")
    return limit


def checked_lease(lease: object) -> timedelta:
    """How long a claim holds without a heartbeat."""
    length = lease.total_seconds() if isinstance(lease, timedelta) else lease
    if isinstance(length, int | float) and not isinstance(length, bool) and SHORTEST_LEASE <= length <= LONGEST_LEASE:
        return timedelta(seconds=length)
    raise ConfigError(f"lease must be from {SHORTEST_LEASE:g} seconds to 30 days, not {lease!r}")
