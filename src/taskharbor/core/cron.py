"""Cron expressions in a time zone: when they tick, including where clocks are put forward or back (N2).

cronsim finds the matching times of day; two rules say when the clock of a zone shows them. An expression whose hours
begin with `*` repeats through the day: it ticks whenever the clock shows a matching time, so never in a skipped hour
and in both passes of a repeated one. Any other names its hours, and each named time ticks once: the first time if it is
shown twice, at the moment of the skip if it is skipped (once, however many are skipped).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from taskharbor.errors import ConfigError

NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
SECOND = timedelta(seconds=1)
# No zone changes its clock twice within this time.
STRIDE = timedelta(hours=6)
LONGEST_TEXT = 1000
_SOME_TIME = datetime(2000, 1, 1)  # noqa: DTZ001  a time of day, in no zone
_EXAMPLE = "five fields (minute hour day month weekday) such as '0 3 * * *', six with seconds first, or @daily"


class Cron:
    """The ticks of an expression in a zone."""

    def __init__(self, expression: str, zone: ZoneInfo) -> None:
        self._expression = expression
        self._zone = zone
        self._repeats = expression.split()[-4].startswith("*")

    def after(self, moment: datetime) -> datetime | None:
        """The first tick after a moment; None if there is none in 50 years."""
        try:
            return self._repeating(moment) if self._repeats else self._named(moment)
        except OverflowError:  # the calendar ends
            return None

    def latest(self, until: datetime, since: datetime) -> datetime:
        """The last tick up to a moment; `since` if there is none after it, even if it is not a tick itself."""
        if self._within(since, until) is None:  # mostly
            return since
        back = SECOND
        while until - back > since and self._within(until - back, until) is None:
            back *= 2
        low, high, found = max(until - back, since), until, since
        while (tick := self._within(low, until)) is not None:
            found = tick
            middle = tick + (high - tick) / 2
            if self._within(middle, until) is None:
                low, high = tick, middle
            else:
                low = middle
        return found

    def _within(self, moment: datetime, until: datetime) -> datetime | None:
        """The first tick after a moment and up to another."""
        tick = self.after(moment)
        return None if tick is None or tick > until else tick

    def words(self) -> str:
        """The expression in plain English."""
        return CronSim(self._expression, _SOME_TIME).explain()

    # when a clock shows a matching time

    def _repeating(self, moment: datetime) -> datetime | None:
        offset = self._offset(moment)
        floor = moment.replace(tzinfo=None) + offset
        while True:
            wall = next(CronSim(self._expression, floor), None)
            if wall is None:
                return None
            tick = (wall - offset).replace(tzinfo=UTC)
            change = self._change(moment, tick)
            if change is None:
                return tick
            moment, offset = change, self._offset(change)
            floor = change.replace(tzinfo=None) + offset - SECOND  # the time shown right at the change may match

    def _named(self, moment: datetime) -> datetime | None:
        for wall in CronSim(self._expression, moment.astimezone(self._zone).replace(tzinfo=None)):
            if (shown := self._shown(wall)) > moment:
                return shown
        return None

    def _shown(self, wall: datetime) -> datetime:
        """The moment at which the clock first shows this time, or skips it."""
        earlier, later = (wall.replace(tzinfo=self._zone, fold=fold).astimezone(UTC) for fold in (1, 0))
        if earlier < later:  # for a skipped time, by the offset after the skip and by the one before
            change = self._change(earlier, later)
            assert change is not None
            return change
        return later

    def _offset(self, moment: datetime) -> timedelta:
        offset = moment.astimezone(self._zone).utcoffset()
        assert offset is not None
        return offset

    def _change(self, start: datetime, end: datetime) -> datetime | None:
        """The first moment after `start`, up to `end`, at which the clock changes."""
        offset = self._offset(start)
        while start < end:
            stop = min(start + STRIDE, end)
            if self._offset(stop) != offset:
                return self._bisect(start, stop, offset)
            start = stop
        return None

    def _bisect(self, same: datetime, other: datetime, offset: timedelta) -> datetime:
        same = same.replace(microsecond=0)  # clocks change on whole seconds
        while (seconds := (other - same) // SECOND) > 1:
            middle = same + seconds // 2 * SECOND
            if self._offset(middle) == offset:
                same = middle
            else:
                other = middle
        return same + SECOND


@lru_cache(maxsize=1024)
def cron(text: str, zone: str) -> Cron:
    """Parse an expression; `ConfigError` if it is invalid, never ticks, or names an unknown zone."""
    expression = _expression(text)
    found = Cron(expression, time_zone(zone))
    try:
        first = next(CronSim(expression, _SOME_TIME), None)
    except CronSimError as error:
        reason = "it never happens" if str(error) == "Bad day-of-month" and _fields_alone(expression) else str(error)
        raise ConfigError(f"cron={text!r} cannot be used: {reason[:1].lower()}{reason[1:]}. Write {_EXAMPLE}") from None
    if first is None:
        raise ConfigError(f"cron={text!r} cannot be used: it never happens. Write {_EXAMPLE}")
    return found


def _expression(text: object) -> str:
    if not isinstance(text, str):
        raise ConfigError(f"cron must be text, not {text!r}. Write {_EXAMPLE}")
    expression = NICKNAMES.get(text.strip().lower(), text)
    if expression.lstrip().startswith("@"):
        raise ConfigError(f"cron={text!r} is not a known nickname: use one of {', '.join(NICKNAMES)}")
    if len(expression) > LONGEST_TEXT:
        raise ConfigError(f"cron has {len(expression)} characters, the limit is {LONGEST_TEXT}. Write {_EXAMPLE}")
    if len(expression.split()) not in (5, 6):
        raise ConfigError(f"cron={text!r} has {len(expression.split())} fields. Write {_EXAMPLE}")
    return expression


def _fields_alone(expression: str) -> bool:
    """Whether the days are valid by themselves, in a month that has them."""
    fields = expression.split()
    try:
        CronSim(" ".join([*fields[:-2], "1", fields[-1]]), _SOME_TIME)
    except CronSimError:
        return False
    return True


@lru_cache(maxsize=256)
def time_zone(name: str) -> ZoneInfo:
    """The zone with this IANA name; `ConfigError` if there is none."""
    if name == "localtime":
        raise ConfigError(
            "time zone 'localtime' means something else on every machine: use a name such as Europe/Berlin"
        )
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError, TypeError):
        known = available_timezones()
        if not known:
            raise ConfigError(
                f"time zone {name!r} is unknown: this machine has no zones at all, pip install tzdata"
            ) from None
        near = get_close_matches(str(name), known - {"localtime"}, 3, 0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "use a name such as Europe/Berlin"
        raise ConfigError(f"time zone {name!r} is unknown: {hint}") from None
