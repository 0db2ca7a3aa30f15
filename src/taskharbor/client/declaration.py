"""The options of recurring tasks, checked when they are given, and the definition that is stored for one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, TypedDict, get_args

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.client.job_builder import Call, JobBuilder
from taskharbor.client.options import TASK_ONLY, TASK_OPTIONS, Duration, JobOptions, check_moment, moment
from taskharbor.client.registered_task import Registered
from taskharbor.client.session import Session
from taskharbor.core.recurrence import ANCHOR, MICROSECOND, CatchUp, Definition, Mode, Overlap, Recurrence, checked
from taskharbor.errors import ConfigError, InvalidJob


class TickOptions(TypedDict, total=False):
    """When a recurring task runs, and what happens to ticks that were missed or overlap."""

    cron: str
    every: Duration
    tz: str | tzinfo
    anchor: datetime
    mode: Mode
    catch_up: CatchUp
    max_catch_up: int
    overlap: Overlap
    jitter: Duration


class RecurringOptions(TickOptions, total=False):
    """The same, and the options of its jobs."""

    queue: str
    priority: int
    max_attempts: int | None
    max_crashes: int | None
    timeout: Duration | None
    tags: Sequence[str]


class Declared(Struct, frozen=True):
    """A recurring task in the code."""

    name: str
    task: Registered
    options: JobOptions
    arguments: Mapping[str, Any]
    when: Recurrence


def recurrence(given: Mapping[str, Any], base: Recurrence | None = None) -> Recurrence:
    """The recurrence of these options, or `base` changed by them; `ConfigError` names the mistake."""
    if unknown := set(given) - set(_READ):
        others = ", ".join(("name", "arguments", *TASK_ONLY, *sorted(TASK_OPTIONS)))
        raise ConfigError(f"unknown option {min(unknown)!r}; it takes {', '.join(_READ)}, and in code {others}")
    base = base or Recurrence()
    if "cron" in given:
        base = replace(base, every=None, anchor=ANCHOR, mode="fixed_rate")
    if "every" in given:
        base = replace(base, cron=None, tz="UTC")
    return checked(replace(base, **{name: _READ[name](name, value) for name, value in given.items()}))


def _cron(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be text such as '0 3 * * *' or @daily, not {value!r}")
    from taskharbor.core.cron import cron  # slow to import

    cron(value, "UTC")
    return value


def _timedelta(name: str, value: Any) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise ConfigError(f"{name} must be seconds or a timedelta, not {value!r}")
    try:
        return value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (OverflowError, ValueError):
        raise ConfigError(f"{name} must be a number of seconds that a calendar can hold") from None


def _zone(name: str, value: Any) -> str:
    from zoneinfo import ZoneInfo  # slow to import

    if value is UTC:
        return "UTC"
    if isinstance(value, ZoneInfo) and isinstance(value.key, str):  # one made from a file has none
        return value.key
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be the name of a time zone, such as 'Europe/Berlin', not {value!r}")
    return value


def _anchor(name: str, value: Any) -> datetime:
    try:
        check_moment(name, value)
    except InvalidJob as error:
        raise ConfigError(str(error)) from None
    return moment(value)


def _one_of(*known: str) -> Callable[[str, Any], str]:
    def read(name: str, value: Any) -> str:
        if value not in known:
            raise ConfigError(f"{name} must be {' or '.join(map(repr, known))}, not {value!r}")
        return str(value)

    return read


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number, not {value!r}")
    return value


_READ: dict[str, Callable[[str, Any], Any]] = {
    "cron": _cron,
    "every": lambda name, value: _timedelta(name, value) // MICROSECOND,
    "tz": _zone,
    "anchor": _anchor,
    "mode": _one_of(*get_args(Mode)),
    "catch_up": _one_of(*get_args(CatchUp)),
    "max_catch_up": _count,
    "overlap": _one_of(*get_args(Overlap)),
    "jitter": lambda name, value: _timedelta(name, value).total_seconds(),
}


def check_call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Refuse a function that cannot be called with these arguments alone, before its types are known."""
    try:
        inspect.signature(function).bind(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"a recurring task is called with its arguments= alone, and {getattr(function, '__qualname__', function)} "
            f"cannot be: {error}"
        ) from None


def check_options(options: JobOptions) -> None:
    """Refuse options that apply to a single job only."""
    if single := sorted(options.keys() - TASK_OPTIONS):
        raise ConfigError(f"{single[0]}= is about one job: a recurring task takes {', '.join(sorted(TASK_OPTIONS))}")


def definition_of(call: Call, when: Recurrence, session: Session, *, in_code: bool) -> Definition:
    """The definition that is stored for a recurring task: every option of its jobs is resolved (R5)."""
    (job,) = JobBuilder(session).jobs([call])
    of_job = {field: getattr(job, field) for field in Definition.OF_JOBS}
    return Definition(task=job.type, when=when, in_code=in_code, **of_job)
