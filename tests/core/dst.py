"""Another reading of the rules for cron where clocks are changed, as slow as it is plain (N2).

It knows nothing of `core.cron`: it walks through the time around a change minute by minute, or second by second, looks
at what the zone's clock shows, and applies the two rules as they are written. `compare` says where `core.cron` differs.
`make test` does so for some zones, `python -m torture dst` for all.
"""

from __future__ import annotations

from bisect import bisect_right
from calendar import monthrange
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from taskharbor.core.cron import Cron, cron

MICROSECOND, SECOND, MINUTE, HOUR = (timedelta(**{unit: 1}) for unit in ("microseconds", "seconds", "minutes", "hours"))
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]


# which times of day match


class Expression:
    """An expression as sets of numbers and questions about days."""

    def __init__(self, text: str) -> None:
        *seconds, minutes, hours, self._days, months, self._weekdays = text.split()
        self.has_seconds = bool(seconds)
        self.repeats = hours[0] == "*"
        self._seconds = numbers(seconds[0], 0, 59) if seconds else {0}
        self._minutes = numbers(minutes, 0, 59)
        self._hours = numbers(hours, 0, 23)
        self._months = numbers(months, 1, 12, MONTHS)
        self._on = lru_cache(None)(self._on_day)

    def matches(self, wall: datetime) -> bool:
        """Whether the expression means this time of day."""
        return (
            wall.second in self._seconds
            and wall.minute in self._minutes
            and wall.hour in self._hours
            and self._on(wall.date())
        )

    def _on_day(self, day: date) -> bool:
        """As cron does: both have to fit if one of them begins with a star, else one of them is enough."""
        fits = [
            any(_is_day(part, day) for part in self._days.split(",")),
            any(_is_weekday(part, day) for part in self._weekdays.split(",")),
        ]
        either = not self._days.startswith("*") and not self._weekdays.startswith("*")
        return day.month in self._months and (any(fits) if either else all(fits))


def numbers(field: str, low: int, high: int, names: list[str] | None = None) -> set[int]:
    """The numbers that a field of numbers, names, ranges, lists and steps means."""

    def number(text: str) -> int:
        return names.index(text.upper()) + low if names and text.isalpha() else int(text)

    found = set[int]()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = ("0" if low == 0 else "1", "-", str(high)) if span == "*" else span.partition("-")
        end = number(last) if last else high if step else number(first)
        found.update(range(number(first), end + 1, int(step or 1)))
    return found


def _is_day(part: str, day: date) -> bool:
    last = monthrange(day.year, day.month)[1]
    if part == "L":
        return day.day == last
    if part == "LW":
        weekdays = (number for number in range(1, last + 1) if day.replace(day=number).isoweekday() < 6)
        return day.day == max(weekdays)
    return day.day in numbers(part, 1, 31)


def _is_weekday(part: str, day: date) -> bool:
    last = monthrange(day.year, day.month)[1]
    which, _, count = part.partition("#")
    if count and int(count) != len(range(day.day, 0, -7)):
        return False
    if which.endswith("L"):
        which = which[:-1]
        if day.day + 7 <= last:
            return False
    wanted = numbers(which, 0, 7, DAYS)
    return day.isoweekday() in wanted or day.isoweekday() % 7 in wanted


# what clocks show


class Change(NamedTuple):
    """A moment at which a clock is put forward or back, and its distance from UTC before and after."""

    at: datetime
    before: timedelta
    after: timedelta

    @property
    def shift(self) -> timedelta:
        """How far the clock is put forward."""
        return self.after - self.before

    @property
    def span(self) -> tuple[datetime, datetime]:
        """The span that is skipped or shown twice, from when to when by the clock."""
        low, high = sorted((self.before, self.after))
        return self.at.replace(tzinfo=None) + low, self.at.replace(tzinfo=None) + high

    @property
    def kind(self) -> tuple[timedelta, str]:
        """Changes of one kind are by as much at the same time of day."""
        return self.shift, f"{self.span[0]:%H:%M}"


def changes(zone: ZoneInfo, since: datetime, until: datetime, step: timedelta = 3 * HOUR) -> list[Change]:
    """The changes of a clock between two moments, found by looking at it."""
    found: list[Change] = []
    moment, offset = since, _offset(zone, since)
    while moment < until:
        moment, earlier = moment + step, moment
        if (new := _offset(zone, moment)) != offset:
            found.append(Change(_first(zone, earlier, moment, new), offset, new))
            offset = new
    return found


def _first(zone: ZoneInfo, low: datetime, high: datetime, new: timedelta) -> datetime:
    """The first second with the new offset."""
    while high - low > SECOND:
        middle = low + (high - low) // SECOND // 2 * SECOND
        low, high = (low, middle) if _offset(zone, middle) == new else (middle, high)
    return high


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    offset = moment.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


class Walk:
    """The clock of a zone from one moment to another: for each step its time, the time shown, and the jump."""

    def __init__(self, zone: ZoneInfo, start: datetime, end: datetime, step: timedelta) -> None:
        self.start, self.end = start, end
        self._steps: list[tuple[datetime, datetime, list[datetime]]] = []
        self._again = set[datetime]()
        shown = set[datetime]()
        wall = (start - step).astimezone(zone).replace(tzinfo=None)
        while start < end:
            before, wall = wall, start.astimezone(zone).replace(tzinfo=None)
            if wall in shown:
                self._again.add(start)
            shown.add(wall)
            self._steps.append((start, wall, [before + n * step for n in range(1, (wall - before) // step)]))
            start += step

    def ticks(self, expression: Expression) -> list[datetime]:
        """The ticks on the way, by the two rules."""
        if expression.repeats:
            return [moment for moment, wall, _ in self._steps if expression.matches(wall)]
        return [
            moment
            for moment, wall, skipped in self._steps
            if (expression.matches(wall) and moment not in self._again) or any(map(expression.matches, skipped))
        ]


# the comparison


def expressions(change: Change) -> Iterator[str]:
    """Expressions whose times are skipped or shown twice by a change, or stand close to that."""
    low, high = change.span
    middle = low + (high - low) // 2
    last = high - MINUTE
    near = sorted({(low + hours * HOUR).hour for hours in range(-1, (high - low) // HOUR + 2)})
    weekday, nth = DAYS[middle.isoweekday() % 7], (middle.day + 6) // 7
    yield from (f"{wall:%M %H} * * *" for wall in (low, low - MINUTE, middle, last, high))
    yield from ("30 2 * * *", "0 0 * * *", "15,45 1-3 * * *", f"7,37 {','.join(map(str, near))} * * *")
    yield from (f"*/10 {low.hour} * * *", f"*/15 {high.hour} * * *", f"{middle.minute}/20 {last.hour}/5 * * *")
    yield from ("*/20 * * * *", "0 */2 * * *", f"{middle.minute} */1 * * *", f"*/7 * {middle.day} * *")
    yield from (f"{middle:%M %H} * * {weekday}", f"{low:%M %H} {middle.day} {MONTHS[middle.month - 1]} *")
    yield from (
        f"{middle:%M %H} * * {weekday}#{nth}",
        f"{middle:%M %H} L * {weekday}",
        f"{middle:%M} * * * {middle.isoweekday()}L",
    )
    yield from ("59 23 L,LW * *", f"{high:%M %H} */2 * mon-fri", f"0 {low.hour}-23/3 1-15 * {weekday},0")
    yield from (f"30 {middle:%M %H} * * *", f"*/25 */7 {low.hour} * * *", f"0 0 {high.hour} * * *")
    yield from ("*/40 * * * * *", "59 59 */1 * * *", f"5-10/2 {last.minute} * * * {weekday}")


Read = Callable[[str, str], Cron]


def compare(zone: str, change: Change, read: Read = cron, part: slice = slice(None)) -> tuple[int, list[str]]:
    """How many answers were compared around a change, and which were wrong; for all expressions or a part of them."""
    count, wrong = 0, list[str]()
    by_minutes, by_seconds = walks(ZoneInfo(zone), change)
    for text in list(expressions(change))[part]:
        expression = Expression(text)
        walk = by_seconds if expression.has_seconds else by_minutes
        ticks = walk.ticks(expression)
        for said, right, question in _answers(read(text, zone), walk, ticks, change):
            count += 1
            if said != right:
                wrong.append(f"{zone} {change.at}: {text!r} {question}: {said}, not {right}")
    return count, wrong


def walks(zone: ZoneInfo, change: Change) -> tuple[Walk, Walk]:
    """By minutes over more than two days, by seconds close to the change."""
    near, far = abs(change.shift) + 15 * MINUTE, abs(change.shift) + 25 * HOUR
    return (
        Walk(zone, change.at - far, change.at + far, MINUTE),
        Walk(zone, change.at - near, change.at + near, SECOND),
    )


def _answers(
    found: Cron, walk: Walk, ticks: list[datetime], change: Change
) -> Iterator[tuple[datetime | None, datetime | None, str]]:
    """The answers of cron and the right ones, for every tick in turn and for moments of interest."""
    chain = [walk.start - MICROSECOND]
    for right in [*ticks, None]:
        said = found.after(chain[-1])
        yield None if said is None or said >= walk.end else said, right, f"after {chain[-1]}"
        chain.append(right or chain[-1])
    for count, moment in enumerate(_moments(walk, ticks, change)):
        place = bisect_right(ticks, moment)
        if place < len(ticks):
            yield found.after(moment), ticks[place], f"after {moment}"
        if place:
            since = ticks[(0, place // 2, place - 1)[count % 3]]
            yield found.latest(moment, since), ticks[place - 1], f"latest to {moment} since {since}"


def _moments(walk: Walk, ticks: list[datetime], change: Change) -> list[datetime]:
    around = [change.at + part * change.shift / 2 for part in (-3, -2, -1, 0, 1, 2)]
    some = ticks[1 :: max(len(ticks) // 3, 1)]
    moments = [change.at - MICROSECOND, *around, *some, *(tick - MICROSECOND for tick in some), walk.end - MICROSECOND]
    return [moment for moment in moments if walk.start < moment < walk.end]
