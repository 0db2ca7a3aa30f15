"""Cron expressions in time zones: fields, the two rules where clocks are changed, and what cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taskharbor.core import cron as module
from taskharbor.core.cron import LONGEST_TEXT, NICKNAMES, Cron, cron, time_zone
from taskharbor.errors import ConfigError

from .dst import Change, Expression, changes, compare, expressions

MICROSECOND, SECOND, DAY = timedelta(microseconds=1), timedelta(seconds=1), timedelta(days=1)


def utc(text: str) -> datetime:
    """A moment, written without its zone."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def chain(text: str, zone: str, start: str, end: str) -> list[datetime]:
    """The ticks from one moment up to another, both in UTC."""
    found, tick = list[datetime](), cron(text, zone).after(utc(start) - MICROSECOND)
    while tick is not None and tick <= utc(end):
        found.append(tick)
        tick = cron(text, zone).after(tick)
    return found


def shown(text: str, zone: str, day: str, days: int = 1) -> list[str]:
    """The time shown at each tick of a local day; with `*` where it is shown for the second time."""
    start = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    end = (datetime.fromisoformat(day) + timedelta(days)).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC) - SECOND
    ticks = chain(text, zone, f"{start:%F %T}", f"{end:%F %T}")
    return [f"{tick.astimezone(ZoneInfo(zone)):%H:%M}{'*' * tick.astimezone(ZoneInfo(zone)).fold}" for tick in ticks]


# fields


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("30 9 * * *", ["2026-01-01 09:30", "2026-01-02 09:30"]),
        ("15 30 9 * * *", ["2026-01-01 09:30:15", "2026-01-02 09:30:15"]),
        ("*/20 * * * * *", ["2026-01-01 00:00:20", "2026-01-01 00:00:40", "2026-01-01 00:01"]),
        ("*/25 9 * * *", ["2026-01-01 09:00", "2026-01-01 09:25", "2026-01-01 09:50", "2026-01-02 09:00"]),
        ("5/25 9 * * *", ["2026-01-01 09:05", "2026-01-01 09:30", "2026-01-01 09:55", "2026-01-02 09:05"]),
        ("0 8-12/2,20 * * *", [f"2026-01-01 {hour}:00" for hour in ("08", "10", "12", "20")]),
        ("0 0 * * MON-FRI", ["2026-01-02", "2026-01-05", "2026-01-06"]),
        ("0 0 * * sun", ["2026-01-04", "2026-01-11"]),
        ("0 0 * * 7", ["2026-01-04", "2026-01-11"]),
        ("0 0 1 feb,APR *", ["2026-02-01", "2026-04-01", "2027-02-01"]),
        ("0 0 29 2 *", ["2028-02-29", "2032-02-29"]),
        ("0 0 L * *", ["2026-01-31", "2026-02-28", "2026-03-31"]),
        ("0 0 LW * *", ["2026-01-30", "2026-02-27", "2026-03-31"]),
        ("0 0 * * mon#1", ["2026-01-05", "2026-02-02"]),
        ("0 0 * * 5#5", ["2026-01-30", "2026-05-29"]),
        ("0 0 * * 5L", ["2026-01-30", "2026-02-27"]),
        ("0 0 13 * fri", ["2026-01-02", "2026-01-09", "2026-01-13"]),  # one of them is enough
        ("0 0 */12 * fri", ["2026-02-13", "2026-03-13", "2026-05-01"]),  # both, because of the star
    ],
)
def test_what_fields_mean(text: str, ticks: list[str]) -> None:
    """N2: five fields or six with seconds first; names, ranges, lists, steps, L, LW and #."""
    assert chain(text, "UTC", "2026-01-01 00:00:01", ticks[-1]) == [utc(tick) for tick in ticks]


@pytest.mark.parametrize(
    ("nickname", "first"),
    [
        ("@hourly", "2026-01-01 01:00"),
        ("@daily", "2026-01-02"),
        ("@midnight", "2026-01-02"),
        ("@weekly", "2026-01-04"),
        ("@monthly", "2026-02-01"),
        ("@yearly", "2027-01-01"),
        (" @Annually ", "2027-01-01"),
    ],
)
def test_nicknames(nickname: str, first: str) -> None:
    """N2: the usual ones."""
    assert nickname.strip().lower() in NICKNAMES
    assert cron(nickname, "UTC").after(utc("2026-01-01")) == utc(first)


def test_a_tick_comes_strictly_after_the_moment() -> None:
    """N2: to the microsecond."""
    for text in ("0 3 * * *", "0 */3 * * *"):
        noon = cron(text, "UTC").after
        assert noon(utc("2026-01-01 03:00") - MICROSECOND) == utc("2026-01-01 03:00")
        assert noon(utc("2026-01-01 03:00")) != utc("2026-01-01 03:00")
        assert noon(utc("2026-01-01 03:00") + MICROSECOND) == noon(utc("2026-01-01 03:00"))


def test_moments_may_come_in_any_zone() -> None:
    """N2: ticks are in UTC whatever they were asked by."""
    tick = cron("0 3 * * *", "Europe/Berlin").after(datetime(2026, 1, 1, 12, tzinfo=ZoneInfo("Asia/Tokyo")))
    assert tick == utc("2026-01-02 02:00")
    assert tick.tzinfo is UTC


def test_words() -> None:
    """N2: for lists of recurring tasks."""
    assert cron("30 9 * * mon-fri", "UTC").words() == "At 09:30 on Monday through Friday"


# where clocks are changed


@pytest.mark.parametrize(
    ("text", "forward", "back"),
    [
        ("30 2 * * *", ["03:00"], ["02:30"]),
        ("0 2 * * *", ["03:00"], ["02:00"]),
        ("0 3 * * *", ["03:00"], ["03:00"]),
        ("30 1 * * *", ["01:30"], ["01:30"]),
        ("30 2,3 * * *", ["03:00", "03:30"], ["02:30", "03:30"]),
        (
            "0,30 1-3 * * *",
            ["01:00", "01:30", "03:00", "03:30"],
            ["01:00", "01:30", "02:00", "02:30", "03:00", "03:30"],
        ),
        ("*/20 2 * * *", ["03:00"], ["02:00", "02:20", "02:40"]),
        ("30 2 * * sun", ["03:00"], ["02:30"]),
        ("30 2 * * mon", [], []),
        ("15 30 2 * * *", ["03:00"], ["02:30"]),
        ("30 */2 * * *", [f"{hour:02}:30" for hour in range(0, 24, 2) if hour != 2], None),
    ],
)
def test_berlin(text: str, forward: list[str], back: list[str] | None) -> None:
    """N2: 02:00 to 03:00 is skipped in March and comes twice in October; what names its hours ticks once each night."""
    assert shown(text, "Europe/Berlin", "2026-03-29") == forward
    if back is not None:
        assert shown(text, "Europe/Berlin", "2026-10-25") == back


def test_what_repeats_goes_by_the_clock() -> None:
    """N2: hours that begin with a star never tick in a skipped hour, and in both passes of a repeated one."""
    assert shown("30 * * * *", "Europe/Berlin", "2026-03-29")[:3] == ["00:30", "01:30", "03:30"]
    assert shown("30 * * * *", "Europe/Berlin", "2026-10-25")[:5] == ["00:30", "01:30", "02:30", "02:30*", "03:30"]
    assert shown("30 */2 * * *", "Europe/Berlin", "2026-10-25")[:4] == ["00:30", "02:30", "02:30*", "04:30"]
    assert shown("0 */3 * * *", "Europe/Berlin", "2026-03-29")[:3] == ["00:00", "03:00", "06:00"]
    steps = chain("*/15 * * * *", "Europe/Berlin", "2026-10-24 20:00", "2026-10-25 06:00")
    assert {later - earlier for earlier, later in pairwise(steps)} == {timedelta(minutes=15)}


@pytest.mark.parametrize(
    ("zone", "day", "text", "expected"),
    [
        ("America/New_York", "2026-03-08", "30 2 * * *", ["03:00"]),
        ("America/New_York", "2026-03-08", "30 * * * *", ["00:30", "01:30", "03:30"]),
        ("America/New_York", "2026-11-01", "30 1 * * *", ["01:30"]),
        ("America/New_York", "2026-11-01", "30 * * * *", ["00:30", "01:30", "01:30*", "02:30"]),
        # by half an hour
        ("Australia/Lord_Howe", "2026-10-04", "0,15,30,45 2 * * *", ["02:30", "02:45"]),
        ("Australia/Lord_Howe", "2026-10-04", "*/15 * * * *", ["00:00", "00:15", "00:30", "00:45", "01:00"]),
        ("Australia/Lord_Howe", "2026-04-05", "45 1 * * *", ["01:45"]),
        ("Australia/Lord_Howe", "2026-04-05", "45 * * * *", ["00:45", "01:45", "01:45*", "02:45"]),
        # at midnight
        ("Africa/Cairo", "2026-04-24", "0 0 * * *", ["01:00"]),
        ("Africa/Cairo", "2026-10-29", "30 23 * * *", ["23:30"]),
        ("Africa/Cairo", "2026-10-30", "0 0 * * *", ["00:00"]),
        ("Asia/Beirut", "2026-03-29", "0 0 * * *", ["01:00"]),
        ("Asia/Beirut", "2026-10-24", "15,45 23 * * *", ["23:15", "23:45"]),
        ("America/Santiago", "2026-09-06", "0 0,1 * * *", ["01:00"]),
        ("America/Santiago", "2026-04-04", "0 23 * * *", ["23:00"]),
        # back for Ramadan, forward after it
        ("Africa/Casablanca", "2026-02-15", "30 2 * * *", ["02:30"]),
        ("Africa/Casablanca", "2026-03-22", "30 2 * * *", ["03:00"]),
        # by two hours
        ("Antarctica/Troll", "2026-03-29", "30 1,2 * * *", ["03:00"]),
        ("Antarctica/Troll", "2026-10-25", "30 1,2 * * *", ["01:30", "02:30"]),
        ("Antarctica/Troll", "2026-10-25", "30 * * * *", ["00:30", "01:30", "02:30", "01:30*", "02:30*", "03:30"]),
        # where winter is the exception
        ("Europe/Dublin", "2026-03-29", "30 1 * * *", ["02:00"]),
        ("Europe/Dublin", "2026-10-25", "30 1 * * *", ["01:30"]),
    ],
)
def test_other_zones(zone: str, day: str, text: str, expected: list[str]) -> None:
    """N2: the same two rules wherever, whenever and however far a clock is put."""
    assert shown(text, zone, day)[: len(expected) if "*" in text.split()[1] else None] == expected


@pytest.mark.parametrize(("zone", "gone"), [("Pacific/Apia", "2011-12-30"), ("Pacific/Kwajalein", "1993-08-21")])
def test_a_day_that_never_was(zone: str, gone: str) -> None:
    """N2: its ticks are one tick, at the first moment of the next day, with that day's own."""
    eve = f"{datetime.fromisoformat(gone) - timedelta(days=1):%F}"
    assert shown("0 12 * * *", zone, eve, 3) == ["12:00", "00:00", "12:00"]
    assert shown("0 0,12 * * *", zone, eve, 3) == ["00:00", "12:00", "00:00", "12:00"]
    assert shown("0 */12 * * *", zone, eve, 3) == ["00:00", "12:00", "00:00", "12:00"]


def test_a_day_that_nearly_came_twice() -> None:
    """N2: Kwajalein was put back by 23 hours in 1969."""
    assert shown("0 3,12 * * *", "Pacific/Kwajalein", "1969-09-30") == ["03:00", "12:00"]
    assert shown("0 */12 * * *", "Pacific/Kwajalein", "1969-09-30") == ["00:00", "12:00", "12:00*"]


# Nearly every kind of change from 2020 to 2035: how far, which way, at which time of day. All are in `torture dst`.
SAMPLE = {
    "America/Havana": 2025,  # at midnight and one o'clock
    "America/Nuuk": 2024,  # on the evening before, at eleven and midnight
    "Antarctica/Casey": 2020,  # three hours, at one minute past midnight
    "Antarctica/Troll": 2026,
    "Antarctica/Vostok": 2023,
    "Africa/Cairo": 2026,
    "Africa/Casablanca": 2026,
    "Atlantic/Canary": 2026,
    "Asia/Famagusta": 2026,
    "Australia/Lord_Howe": 2026,
    "Pacific/Chatham": 2026,  # at a quarter to three
    "Pacific/Easter": 2026,
}


def of_year(zone: str, year: int) -> list[Change]:
    """The changes of a clock in a year."""
    return changes(ZoneInfo(zone), datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC), DAY)


@pytest.mark.parametrize(("zone", "year"), SAMPLE.items())
def test_the_rules_read_plainly_say_the_same(zone: str, year: int) -> None:
    """N2: minute by minute around a change, by a reading of the rules that shares no code with this one."""
    found = of_year(zone, year)
    assert found
    for place, change in enumerate(found, list(SAMPLE).index(zone)):
        count, wrong = compare(zone, change, part=slice(place % 4, None, 4))
        assert count > 100
        assert not wrong


def test_the_sample_has_every_direction_and_size() -> None:
    """N2: half an hour to three hours, forward and back."""
    sizes = {change.shift / timedelta(hours=1) for zone, year in SAMPLE.items() for change in of_year(zone, year)}
    assert sizes >= {0.5, -0.5, 1, -1, 2, -2, 3, -3}


def test_the_plain_reading_matches_like_cron_where_no_clock_is_changed() -> None:
    """N2: in UTC, by an expression of every sort."""
    change = Change(utc("2026-03-29 01:00"), timedelta(0), timedelta(hours=1))
    for text in expressions(change):
        expression, ticks = Expression(text), islice(_ticks(text, utc("2026-01-01")), 30)
        for earlier, later in pairwise(ticks):
            assert expression.matches(later.replace(tzinfo=None))
            assert not expression.matches((earlier + SECOND).replace(tzinfo=None)) or later == earlier + SECOND


def _ticks(text: str, moment: datetime | None) -> Iterator[datetime]:
    while moment is not None and (moment := cron(text, "UTC").after(moment)):
        yield moment


def broken(name: str, answer: Callable[..., object]) -> Callable[[str, str], Cron]:
    """A cron with another answer to one question."""
    return lambda text, zone: type("Broken", (Cron,), {name: answer})(text, ZoneInfo(zone))


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("_shown", lambda self, wall: wall.replace(tzinfo=self._zone, fold=0).astimezone(UTC)),
        ("_shown", lambda self, wall: wall.replace(tzinfo=self._zone, fold=1).astimezone(UTC)),
        ("_repeating", Cron._named),
        ("_named", Cron._repeating),
        ("latest", lambda self, until, since: since),
    ],
)
def test_the_plain_reading_notices_a_broken_rule(name: str, answer: Callable[..., object]) -> None:
    """N2: so the comparisons above compare something."""
    found = of_year("Europe/Berlin", 2026)
    assert any(compare("Europe/Berlin", change, broken(name, answer), slice(2, 15, 2))[1] for change in found)


# any expression, any zone, any time


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    """A field: a star, steps, a range, or a list."""
    number = st.integers(low, high)
    return st.one_of(
        st.just("*"),
        st.integers(1, high).map("*/{}".format),
        st.lists(number, min_size=1, max_size=3).map(lambda listed: ",".join(map(str, listed))),
        st.tuples(number, number).map(lambda ends: f"{min(ends)}-{max(ends)}"),
    )


days = st.sampled_from(["*", "*", "*", "L", "1", "13,28"])
weekdays = st.sampled_from(["*", "*", "*", "0", "mon-fri", "5L", "tue#2"])
five = st.tuples(fields(0, 59), fields(0, 23), days, st.just("*"), weekdays).map(" ".join)
six = st.tuples(fields(0, 59), five).map(" ".join)
zones = st.sampled_from([*SAMPLE, "Europe/Berlin", "Europe/Dublin", "Asia/Kolkata", "Pacific/Apia", "UTC"])
moments = st.integers(0, 16 * 365 * 86400 * 1_000_000).map(lambda count: utc("2020-01-01") + count * MICROSECOND)


@given(five | six, zones, moments)
def test_ticks_increase_and_lack_nothing(text: str, zone: str, moment: datetime) -> None:
    """N2: each comes after the one before, is a whole second, and is the same from anywhere in between."""
    found, last = cron(text, zone), moment
    for _ in range(10):
        tick = found.after(last)
        assert tick is not None
        assert tick > last
        assert tick.microsecond == 0
        assert found.after(last + (tick - last) / 2) in (tick, found.after(tick - MICROSECOND))
        assert found.after(tick - MICROSECOND) == tick
        last = tick


@given(five | six, zones, moments, st.integers(0, 30), st.floats(0, 1))
@example("30 2 * * *", "Europe/Berlin", utc("2026-03-28 12:00"), 3, 0.5)
@example("*/7 * * * *", "Antarctica/Troll", utc("2026-10-25 00:00"), 30, 0.0)
def test_the_latest_is_the_last_of_the_chain(text: str, zone: str, moment: datetime, count: int, part: float) -> None:
    """N2, N4: found without walking through all of them."""
    found = cron(text, zone)
    since = tick = found.after(moment)
    assert since is not None
    for _ in range(count):
        assert tick is not None
        tick = found.after(tick)
    assert tick is not None
    following = found.after(tick)
    assert following is not None
    assert found.latest(tick + part * (following - tick - MICROSECOND), since) == tick


@pytest.mark.parametrize("text", ["* * * * * *", "*/5 * * * *", "30 2 * * *", "0 0 1 1 *", "0 0 29 2 */7"])
def test_the_latest_of_a_century_is_found_in_few_steps(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """N4: however many ticks were missed."""
    asked, after = list[datetime](), Cron.after

    def counted(self: Cron, moment: datetime) -> datetime | None:
        asked.append(moment)
        return after(self, moment)

    monkeypatch.setattr(Cron, "after", counted)
    found = cron(text, "Europe/Berlin")
    since = found.after(utc("2000-01-01"))
    assert since is not None
    latest = found.latest(utc("2099-12-31 12:00:00.5"), since)
    assert len(asked) < 150
    following = after(found, latest)
    assert following is not None
    assert latest <= utc("2099-12-31 12:00:00.5") < following
    assert after(found, latest - MICROSECOND) == latest


@pytest.mark.parametrize("text", ["0 3 * * *", "0 */3 * * *"])
def test_a_slot_that_is_not_a_tick_counts_as_one(text: str) -> None:
    """N3: by the rules of another machine, or of yesterday, it was one; no tick that is to come is taken for it."""
    found, slot = cron(text, "UTC"), utc("2026-01-01 01:30")
    assert found.latest(utc("2026-01-01 02:59:59"), slot) == slot
    assert found.latest(slot, slot) == slot
    assert found.latest(utc("2026-01-01 03:00"), slot) == utc("2026-01-01 03:00")
    behind = utc("2026-01-01 03:00:02")
    assert found.latest(behind + 5 * SECOND, behind) == behind


# the ends of the calendar

END = datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York", "Europe/Berlin"])
@pytest.mark.parametrize("text", ["0 3 * * *", "*/5 * * * *", "* * * * * *", "0 0 1 1 *"])
def test_the_calendar_ends(text: str, zone: str) -> None:
    """N2: no tick, and no crash."""
    found = cron(text, zone)
    assert found.after(END) is None
    for hours in range(60):
        tick = found.after(END - timedelta(hours=hours))
        assert tick is None or tick > END - timedelta(hours=hours)
    assert found.latest(END, utc("9998-01-01")) > utc("9998-12-30")
    beginning = found.after(datetime.min.replace(tzinfo=UTC))
    assert beginning is None or beginning.year <= 2


@pytest.mark.parametrize("text", ["0 0 */31 * 1L", "0 * */31 * 1L"])
def test_what_never_happens_has_no_tick(text: str) -> None:
    """N2: a last Monday that is the first of its month."""
    assert Cron(text, ZoneInfo("UTC")).after(utc("2026-01-01")) is None


# what cannot be used


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "cron='' has 0 fields. Write five"),
        ("* * * *", "has 4 fields. Write five"),
        ("* * * * * * *", "has 7 fields. Write five"),
        (7, "cron must be text, not 7. Write five"),
        ("@reboot", "cron='@reboot' is not a known nickname: use one of @hourly, @daily"),
        ("1 " * LONGEST_TEXT, "cron has 2000 characters, the limit is 1000"),
        ("30 2 31 2 *", "cron='30 2 31 2 *' cannot be used: it never happens. Write five"),
        ("0 0 31 4 *", "it never happens"),
        ("0 0 31 feb,jun *", "it never happens"),
        ("0 0 */31 * 1L", "it never happens"),
        ("0 0 32 2 *", "cannot be used: bad day-of-month. Write five"),
        ("60 * * * *", "bad minute"),
        ("60 * * * * *", "bad second"),
        ("0 24 * * *", "bad hour"),
        ("0 0 0 * *", "bad day-of-month"),
        ("0 0 * 13 *", "bad month"),
        ("0 0 * january *", "bad month"),
        ("0 0 * * 8", "bad day-of-week"),
        ("0 0 * * mon#6", "bad day-of-week"),
        ("0 0 * * monL", "bad day-of-week"),
        ("*/0 * * * *", "bad minute"),
        ("5-1 * * * *", "bad minute"),
        ("1, * * * *", "bad minute"),
        ("? * * * *", "bad minute"),
    ],
)
def test_an_invalid_expression_is_refused(text: str, problem: str) -> None:
    """X5: the error names the mistake and shows how to write it."""
    with pytest.raises(ConfigError) as refused:
        cron(text, "UTC")
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Europe/Berln", "time zone 'Europe/Berln' is unknown: did you mean Europe/Berlin"),
        ("Berlin", "did you mean Europe/Berlin?"),
        ("europe/amsterdm", "Europe/Amsterdam"),
        ("Europe", "time zone 'Europe' is unknown: did you mean Europe/"),
        ("", "time zone '' is unknown: use a name such as Europe/Berlin"),
        ("somewhere else", "use a name such as Europe/Berlin"),
        ("../UTC", "is unknown"),
        ("/etc/passwd", "is unknown"),
        ("tzdata.zi", "is unknown"),
        ("a\0b", "is unknown"),
        ("localtime", "means something else on every machine"),
        (None, "time zone None is unknown"),
        (7, "time zone 7 is unknown"),
    ],
)
def test_an_unknown_zone_is_refused(name: str, problem: str) -> None:
    """X5: with names that are nearly the same; folders and other files are not zones."""
    with pytest.raises(ConfigError) as refused:
        cron("0 3 * * *", name)
    assert problem in str(refused.value)


def test_a_machine_without_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    """X5: as Windows and small images are; the error says what to install."""
    monkeypatch.setattr(module, "available_timezones", set[str])
    with pytest.raises(ConfigError, match="this machine has no zones at all, pip install tzdata"):
        time_zone("Nowhere/Known")
