"""The options of jobs and tasks: checked here when they are given, resolved by the job builder (R5, P1).

To add one:
- of a job: `JobOptions`, `_RULES`; `JobBuilder._resolved`; `cli/enqueue.py`; the table in docs/guide.md;
- stored with the job: `JobRequest` in `core/job.py`, `FULL` in `testing/kit/records.py`; for the SQL drivers `RECORD`
  in `drivers/shared/columns.py` and each one's `sql/`, `rows.py` and a migration, on Redis `Card` in `parts.py`;
- also of tasks: `TASK_OPTIONS`, the overload of `Harbor.task`; for recurring tasks `RecurringOptions` in
  `declaration.py`, and `Definition` with its `OF_JOBS` in `core/recurrence.py`;
- with a default of the harbor: `Harbor` itself, `Settings` in `settings.py`, `_SETTINGS` here;
- of the task alone, as `retry`: `TASK_ONLY`, `Harbor.task` with its overload, `Harbor.recurring`, `Manner` in
  `decorators.py` and what it passes to `Registered` in `registered_task.py`; not stored.
An option of tasks also needs a value in `tests/client/test_options.py`, which fails if one of its places in Python was
forgotten. The kit fails if a column was. Then generate docs/reference.md again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, cast

from taskharbor.core.misfit import closest
from taskharbor.core.names import check_name
from taskharbor.core.reserved import check_key, check_queue
from taskharbor.errors import ConfigError, InvalidJob

Duration = float | timedelta
Rule = Callable[[str, Any], object]
TAG_LIMIT = 50
HEADERS_LIMIT = 64 * 1024
SHOWN_LIMIT = 80
MOST = 2**31 - 1
# The options that tasks take as well, for all of their jobs.
TASK_OPTIONS = frozenset({"queue", "priority", "max_attempts", "max_crashes", "timeout", "tags"})
# The options that only tasks take, in the order in which messages list them. They are not stored with jobs.
TASK_ONLY = ("retry", "process", "memory")
# Names of options in other job queues.
_ELSEWHERE = {
    "countdown": "delay",
    "eta": "run_at",
    "max_retries": "max_attempts",
    "retries": "max_attempts",
    "schedule_in": "delay",
    "task_id": "id",
    "job_id": "id",
    "key": "idempotency_key",
    "time_limit": "timeout",
    "soft_time_limit": "timeout",
    "autoretry_for": "retry",
    "default_retry_delay": "retry",
    "retry_backoff": "retry",
    "retry_kwargs": "retry",
    "retry_jitter": "retry",
}
# Notes for users of such an option.
_NOTES = {
    "max_retries": "max_attempts counts the first run as well: it is one more",
    "retries": "max_attempts counts the first run as well: it is one more",
    "bind": "the handler has no self: current() is the running job",
    "autoretry_for": "every exception is retried, unless Retry(retry_on=…, give_up_on=…) says otherwise",
    "acks_late": "leave it out: a job whose worker was killed runs again",
}
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class KeyOptions(TypedDict, total=False):
    """The idempotency key of a job or of a flow."""

    idempotency_key: str
    idempotency_ttl: Duration | None


class JobOptions(TypedDict, total=False):
    """The options of a job, beside the arguments of its task."""

    id: str
    queue: str
    priority: int
    delay: Duration
    run_at: datetime
    expires: Duration | datetime
    idempotency_key: str
    idempotency_ttl: Duration | None
    max_attempts: int | None
    max_crashes: int | None
    timeout: Duration | None
    tags: Sequence[str]
    headers: Mapping[str, str]
    tx: object


def unknown_option(name: str, known: Collection[str]) -> str:
    """The message about an unknown option."""
    meant = _ELSEWHERE.get(name) or closest(name, known)
    if name in TASK_ONLY:
        guess = f": it is set on the task, @harbor.task({name}=…)"
    else:
        guess = f" (did you mean {meant!r}?)" if meant in known else ""
    note = f"; {_NOTES[name]}" if name in _NOTES else ""
    return f"unknown option {name!r}{guess}{note}; the options are {', '.join(known)}"


def misplaced(task: str, given: Mapping[str, Any], parameters: Collection[str]) -> str | None:
    """The hint for options that were given among the arguments of a task; None if there are none."""

    def short(value: object) -> str:
        shown = repr(value) if isinstance(value, str | int | float | timedelta | datetime) else "…"
        return shown if len(shown) <= SHOWN_LIMIT else "…"

    found = {name: value for name, value in given.items() if name in _RULES and name not in parameters}
    if not found:
        return None
    names = " and ".join(map(repr, found))
    are = "is an option of the job" if len(found) == 1 else "are options of the job"
    written = ", ".join(f"{name}={short(value)}" for name, value in found.items())
    return f"{names} {are}, not of the function: write {task.rpartition('.')[2]}.using({written})"


def checked(given: Mapping[str, Any]) -> JobOptions:
    """The options, or `InvalidJob` that names the wrong one and the rule."""
    for name, value in given.items():
        rule = _RULES.get(name)
        if rule is None:
            raise InvalidJob(unknown_option(name, JobOptions.__annotations__))
        rule(name, value)
    if "delay" in given and "run_at" in given:
        raise InvalidJob("give delay or run_at, not both")
    if given.get("idempotency_ttl", ...) is not ... and given.get("idempotency_key") is None:
        raise InvalidJob("idempotency_ttl needs an idempotency_key")
    return cast(JobOptions, dict(given))


def seconds(value: Duration) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def wait_limit(timeout: Duration | None) -> float | None:
    """How long a call may wait, in seconds; 0 if that time has passed already."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float | timedelta) or timeout != timeout:
        raise InvalidJob(
            f"timeout must be seconds or a timedelta, not {timeout!r}; leave it out to wait without a limit"
        )
    return max(0.0, seconds(timeout))


def moment(value: datetime) -> datetime:
    return value.astimezone(UTC)


def _whole(least: int, most: float = math.inf, *, optional: bool = False) -> Rule:
    upper = "up" if most >= MOST else f"to {most}"

    def rule(name: str, value: Any) -> None:
        if value is None and optional:
            return
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidJob(f"{name} must be a whole number from {least} {upper}, not {value!r}")

    return rule


def _duration(*, positive: bool = False, optional: bool = False) -> Rule:
    least = "more than" if positive else "at least"

    def rule(name: str, value: Any) -> None:
        if value is None and optional:
            return
        if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
            raise InvalidJob(f"{name} must be seconds or a timedelta, not {value!r}")
        length = seconds(value)
        if not math.isfinite(length) or length < 0 or (positive and length == 0):
            raise InvalidJob(f"{name} must be {least} zero seconds, not {value!r}")

    return rule


def check_moment(name: str, value: Any) -> None:
    """Refuse anything but an aware time that UTC can express."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidJob(f"{name} must be a datetime with a time zone, such as datetime.now(UTC), not {value!r}")
    try:
        value.astimezone(UTC)
    except OverflowError:
        raise InvalidJob(f"{name} must be a time that UTC can express, not {value!r}") from None


def _expires(name: str, value: Any) -> None:
    if isinstance(value, datetime):
        check_moment(name, value)
    elif not isinstance(value, int | float | timedelta):
        raise InvalidJob(f"{name} must be seconds, a timedelta or a datetime with a time zone, not {value!r}")
    else:
        _DELAY(name, value)


def _tags(name: str, value: Any) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(cast(Sequence[object], value)) > TAG_LIMIT:
        raise InvalidJob(f"{name} must be a list of at most {TAG_LIMIT} texts, not {value!r}")
    for tag in cast(Sequence[object], value):
        check_name("a tag", tag)


def _headers(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise InvalidJob(f"{name} must be a dict of texts, not {value!r}")
    for key, text in cast(Mapping[object, object], value).items():
        check_name("a header's name", key)
        if not isinstance(text, str):
            raise InvalidJob(f"header {key!r} must be text, not {type(text).__name__}")
        if found := _UNSTORABLE.search(text):
            raise InvalidJob(
                f"header {key!r} has the character {found.group()!r}: NUL and lone surrogates cannot be stored"
            )
    size = sum(len(key) + len(text) for key, text in cast(Mapping[str, str], value).items())
    if size > HEADERS_LIMIT:
        raise InvalidJob(f"{name} have {size:,} characters in all, the limit is {HEADERS_LIMIT:,}")


def _transaction(name: str, value: Any) -> None:
    if value is None:
        raise InvalidJob(
            f"{name} must be a connection or session with an open transaction, not None (Django's "
            "connection.connection is None before its first query: use it inside atomic())"
        )


_BOUND = _whole(1, MOST, optional=True)
_DELAY = _duration()
_TIMEOUT = _duration(positive=True, optional=True)
_RULES: dict[str, Rule] = {
    "id": check_name,
    "queue": check_queue,
    "priority": _whole(-100, 100),
    "delay": _DELAY,
    "run_at": check_moment,
    "expires": _expires,
    "idempotency_key": check_key,
    "idempotency_ttl": _TIMEOUT,
    "max_attempts": _BOUND,
    "max_crashes": _BOUND,
    "timeout": _TIMEOUT,
    "tags": _tags,
    "headers": _headers,
    "tx": _transaction,
}
_SETTINGS: dict[str, Rule] = {
    **{name: _RULES[name] for name in ("max_attempts", "max_crashes", "timeout", "idempotency_ttl")},
    "payload_limit": _whole(1),
    "keep_done": _DELAY,
    "keep_dead": _DELAY,
    "store_timeout": _duration(positive=True),
}


def check_settings(given: Mapping[str, Any]) -> None:
    """Reject invalid harbor settings with a `ConfigError` that names the rule."""
    try:
        for name, value in given.items():
            _SETTINGS[name](name, value)
    except InvalidJob as error:
        raise ConfigError(f"Harbor: {error}") from None
