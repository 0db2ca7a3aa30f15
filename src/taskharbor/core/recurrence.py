"""The definition of a recurring task: when it ticks, how missed and overlapping ticks are handled, and its job.

A `Definition` is stored as it was declared, so that equal bytes mean an equal declaration: nothing in it depends on
the declaring process or the time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct

from taskharbor.errors import ConfigError

if TYPE_CHECKING:
    from taskharbor.core.cron import Cron

Mode = Literal["fixed_rate", "fixed_delay"]
CatchUp = Literal["last", "skip", "all"]
Overlap = Literal["skip", "allow"]

MICROSECOND = timedelta(microseconds=1)
# A Monday at midnight, so that whole minutes, hours, days and weeks start where people expect them to.
ANCHOR = datetime(2001, 1, 1, tzinfo=UTC)
SHORTEST = timedelta(seconds=0.1)
LONGEST = timedelta(days=36_500)
MOST_CATCH_UP = 1000
NEWER = "a newer version stored it: upgrade taskharbor here"


class Recurrence(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a recurring task ticks. Either `cron` in the zone `tz`, or every `every` microseconds from the anchor."""

    cron: str | None = None
    tz: str = "UTC"
    every: int | None = None
    anchor: Annotated[datetime, Meta(tz=True)] = ANCHOR
    mode: Mode = "fixed_rate"
    catch_up: CatchUp = "last"
    max_catch_up: int = 100
    overlap: Overlap = "skip"
    jitter: float = 0.0

    @property
    def times(self) -> tuple[object, ...]:
        """The fields that determine its slots."""
        return self.cron, self.tz, self.every, self.anchor, self.mode

    @property
    def interval(self) -> timedelta:
        """The time from tick to tick, or from a run's end to the next run."""
        return (self.every or 0) * MICROSECOND

    def after(self, moment: datetime) -> datetime | None:
        """The first tick after a moment, None if there is none."""
        if self.cron is not None:
            return _cron(self.cron, self.tz).after(moment)
        try:
            return self.anchor + ((moment - self.anchor) // self.interval + 1) * self.interval
        except OverflowError:
            return None

    def latest(self, until: datetime, since: datetime) -> datetime:
        """The last tick up to a moment, `since` if there is none after it."""
        if self.cron is not None:
            return _cron(self.cron, self.tz).latest(until, since)
        return self.anchor + (until - self.anchor) // self.interval * self.interval

    def words(self) -> str:
        """When it ticks, in plain English."""
        if self.cron is not None:
            return f"{_cron(self.cron, self.tz).words()}, {self.tz} time"
        length = span(self.interval)
        if self.mode == "fixed_delay":
            return f"{length} after each run"
        return f"Every {length[2:] if length in ('1 day', '1 hour', '1 minute', '1 second') else length}"


class Definition(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A recurring task as declared: when it ticks, and the job of each tick with every option resolved (R5)."""

    OF_JOBS: ClassVar = ("payload", "queue", "priority", "timeout", "max_attempts", "max_crashes", "tags")
    version: int = 1
    task: str
    when: Recurrence
    payload: bytes
    queue: str
    priority: int = 0
    timeout: float | None = None
    max_attempts: int | None
    max_crashes: int | None
    tags: tuple[str, ...] = ()
    in_code: bool = True


encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Definition).decode


def decode(stored: bytes) -> Definition | ConfigError:
    """Decode a stored definition, or say why it cannot be read here."""
    try:
        definition = _decode(stored)
        checked(definition.when)
    except ConfigError as error:  # such as a time zone that this machine does not know
        return error
    except (msgspec.DecodeError, ValueError, OverflowError):
        return ConfigError(NEWER)
    return definition if definition.version == 1 else ConfigError(NEWER)


def checked(when: Recurrence) -> Recurrence:
    """Return the recurrence, or raise `ConfigError` with the rule it breaks (X5)."""
    if when.cron is None and when.every is None:
        raise ConfigError("a recurring task needs cron= or every=, such as every=timedelta(minutes=10)")
    if when.cron is not None and when.every is not None:
        raise ConfigError("a recurring task has either cron= or every=, not both")
    if when.cron is not None:
        _cron(when.cron, when.tz)
    elif not SHORTEST <= when.interval <= LONGEST:
        raise ConfigError(f"every must be from 0.1 seconds to 36,500 days, not {when.interval.total_seconds():g} s")
    for problem, rule in _problems(when):
        if problem:
            raise ConfigError(rule)
    return when


def _cron(expression: str, zone: str) -> Cron:
    from taskharbor.core.cron import cron  # slow to import, and every worker has a scheduler

    return cron(expression, zone)


def _problems(when: Recurrence) -> list[tuple[bool, str]]:
    follows = when.mode == "fixed_delay"
    return [
        (when.every is not None and when.tz != "UTC", "tz= goes with cron=: every= counts seconds, not times of day"),
        (when.cron is not None and when.anchor != ANCHOR, "anchor= goes with every=: cron= says its times itself"),
        (follows and when.cron is not None, 'mode="fixed_delay" goes with every=: cron= says its times itself'),
        (follows and when.anchor != ANCHOR, 'anchor= goes with mode="fixed_rate": a delay counts from the last run'),
        (follows and when.catch_up != "last", 'catch_up= goes with mode="fixed_rate": a delay cannot miss a tick'),
        (follows and when.overlap == "allow", 'mode="fixed_delay" never overlaps: leave overlap= out'),
        (
            not 1 <= when.max_catch_up <= MOST_CATCH_UP,
            f"max_catch_up must be a whole number from 1 to {MOST_CATCH_UP}, not {when.max_catch_up}",
        ),
        (
            not 0 <= when.jitter <= (LONGEST if when.every is None else when.interval).total_seconds(),
            f"jitter must be zero or more seconds and no more than every=, not {when.jitter:g} s",
        ),
    ]


def span(length: timedelta) -> str:
    """A length of time in words, such as `1 hour 30 minutes`."""
    left, words = length / timedelta(seconds=1), list[str]()
    for unit, seconds in (("day", 86400), ("hour", 3600), ("minute", 60)):
        count, left = divmod(left, seconds)
        if count:
            words.append(f"{count:.0f} {unit}{'s' if count > 1 else ''}")
    if left or not words:
        words.append("1 second" if left == 1 else f"{left:.6g} seconds")
    return " ".join(words)
