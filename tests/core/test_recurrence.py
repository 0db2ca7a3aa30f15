"""A recurring task: its ticks, its words, its rules and its stored form."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from taskharbor.core.recurrence import (
    ANCHOR,
    LONGEST,
    MICROSECOND,
    SHORTEST,
    Definition,
    Recurrence,
    checked,
    decode,
    encode,
    span,
)
from taskharbor.errors import ConfigError

from .make import NOW, moments

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
lengths = st.integers(SHORTEST // MICROSECOND, 10**14)


def every(length: timedelta, **given: Any) -> Recurrence:
    """A recurrence by its interval."""
    return checked(Recurrence(every=length // MICROSECOND, **given))


def definition(**given: Any) -> Definition:
    """A definition with all that it needs."""
    known = {"task": "mail.send", "when": every(HOUR), "payload": b"{}", "queue": "mail"}
    return Definition(**{**known, "max_attempts": 4, "max_crashes": 5, **given})


# ticks


@given(lengths, moments, moments)
@example(100_000, ANCHOR, ANCHOR)
def test_intervals_count_from_the_anchor_and_never_drift(length: int, anchor: datetime, moment: datetime) -> None:
    """N2: a fixed rate ticks at whole multiples of the interval, whenever it is asked for."""
    when = Recurrence(every=length, anchor=anchor)
    tick = when.after(moment)
    assert tick is not None
    assert moment < tick <= moment + when.interval
    assert (tick - anchor) % when.interval == timedelta(0)
    assert when.after(tick) == tick + when.interval
    assert when.after(tick - MICROSECOND) == tick
    assert when.latest(tick, tick) == when.latest(tick + when.interval - MICROSECOND, tick) == tick


@pytest.mark.parametrize(
    ("length", "tick"),
    [
        (MINUTE, "2026-01-02 03:05"),
        (HOUR, "2026-01-02 04:00"),
        (DAY, "2026-01-03"),
        (7 * DAY, "2026-01-05"),  # a Monday
    ],
)
def test_whole_units_begin_where_people_expect_them_to(length: timedelta, tick: str) -> None:
    """N2: every hour is on the hour, every week from Monday to Monday."""
    assert every(length).after(NOW) == datetime.fromisoformat(tick).replace(tzinfo=UTC)


def test_cron_ticks_in_its_zone() -> None:
    """N2: by the same two questions."""
    when = checked(Recurrence(cron="0 3 * * *", tz="Europe/Berlin"))
    tick = when.after(NOW)
    assert tick == datetime(2026, 1, 3, 2, tzinfo=UTC)
    assert when.latest(NOW + 9 * DAY, tick) == tick + 8 * DAY


def test_intervals_end_with_the_calendar() -> None:
    """N2: no tick, and no crash."""
    assert every(LONGEST).after(datetime.max.replace(tzinfo=UTC) - DAY) is None


# words


@pytest.mark.parametrize(
    ("when", "words"),
    [
        (every(10 * MINUTE), "Every 10 minutes"),
        (every(MINUTE), "Every minute"),
        (every(HOUR), "Every hour"),
        (every(DAY), "Every day"),
        (every(timedelta(seconds=1)), "Every second"),
        (every(1.5 * HOUR), "Every 1 hour 30 minutes"),
        (every(HOUR, mode="fixed_delay"), "1 hour after each run"),
        (Recurrence(cron="0 3 * * *", tz="Europe/Berlin"), "At 03:00 every day, Europe/Berlin time"),
    ],
)
def test_words(when: Recurrence, words: str) -> None:
    """N5: for lists of recurring tasks."""
    assert when.words() == words


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (timedelta(0), "0 seconds"),
        (timedelta(seconds=0.1), "0.1 seconds"),
        (timedelta(seconds=1), "1 second"),
        (timedelta(seconds=61.5), "1 minute 1.5 seconds"),
        (2 * MINUTE, "2 minutes"),
        (DAY + 2 * HOUR, "1 day 2 hours"),
        (36_500 * DAY, "36500 days"),
    ],
)
def test_lengths_in_words(length: timedelta, words: str) -> None:
    """N5: no unit that is zero."""
    assert span(length) == words


# rules


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "a recurring task needs cron= or every=, such as every=timedelta"),
        ({"cron": "@daily", "every": 10**6}, "either cron= or every="),
        ({"cron": "@never"}, "not a known nickname"),
        ({"cron": "@daily", "tz": "Mars"}, "time zone 'Mars' is unknown"),
        ({"every": 99_999}, "every must be from 0.1 seconds to 36,500 days, not 0.099999 s"),
        ({"every": 0}, "every must be from"),
        ({"every": -(10**6)}, "every must be from"),
        ({"every": (LONGEST + MICROSECOND) // MICROSECOND}, "every must be from"),
        ({"every": 10**6, "tz": "Europe/Berlin"}, "tz= goes with cron=: every= counts seconds, not times of day"),
        ({"cron": "@daily", "anchor": NOW}, "anchor= goes with every=: cron= says its times itself"),
        ({"cron": "@daily", "mode": "fixed_delay"}, 'mode="fixed_delay" goes with every='),
        ({"every": 10**6, "mode": "fixed_delay", "anchor": NOW}, 'anchor= goes with mode="fixed_rate"'),
        ({"every": 10**6, "mode": "fixed_delay", "catch_up": "all"}, 'catch_up= goes with mode="fixed_rate"'),
        ({"every": 10**6, "mode": "fixed_delay", "overlap": "allow"}, "never overlaps: leave overlap= out"),
        ({"every": 10**6, "max_catch_up": 0}, "max_catch_up must be a whole number from 1 to 1000, not 0"),
        ({"every": 10**6, "max_catch_up": 1001}, "not 1001"),
        ({"every": 10**6, "jitter": -0.5}, "jitter must be zero or more seconds and no more than every=, not -0.5 s"),
        ({"every": 10**6, "jitter": 1.001}, "no more than every="),
        ({"every": 10**6, "jitter": float("nan")}, "jitter must be"),
        ({"cron": "@daily", "jitter": float("inf")}, "jitter must be"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], problem: str) -> None:
    """X5, N2: the error names the rule."""
    with pytest.raises(ConfigError) as refused:
        checked(Recurrence(**given))
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    "when",
    [
        Recurrence(every=SHORTEST // MICROSECOND),
        Recurrence(every=LONGEST // MICROSECOND, jitter=LONGEST.total_seconds()),
        Recurrence(every=10**6, anchor=NOW, catch_up="all", max_catch_up=1000, overlap="allow", jitter=1.0),
        Recurrence(every=10**6, mode="fixed_delay", jitter=0.5),
        Recurrence(cron="*/5 * * * * *", tz="Asia/Tokyo", catch_up="skip", max_catch_up=1, jitter=3600.0),
    ],
)
def test_what_can_be_meant_comes_back(when: Recurrence) -> None:
    """N2: the bounds themselves are fine."""
    assert checked(when) is when


# the stored form

FULL = definition(
    when=Recurrence(
        every=1_500_000, anchor=NOW, catch_up="all", max_catch_up=7, overlap="allow", jitter=0.25, mode="fixed_rate"
    ),
    payload=b'{"v":1}',
    priority=-5,
    timeout=30.0,
    max_attempts=None,
    max_crashes=None,
    tags=("a", "b"),
    in_code=False,
)
PINNED = {
    b'{"task":"mail.send","when":{"every":3600000000},"payload":"e30=","queue":"mail","max_attempts":4,'
    b'"max_crashes":5}': definition(),
    b'{"task":"mail.send","when":{"cron":"0 3 * * *","tz":"Europe/Berlin","catch_up":"skip"},"payload":"e30=",'
    b'"queue":"mail","max_attempts":4,"max_crashes":5}': definition(
        when=Recurrence(cron="0 3 * * *", tz="Europe/Berlin", catch_up="skip")
    ),
    b'{"task":"mail.send","when":{"every":60000000,"mode":"fixed_delay"},"payload":"e30=","queue":"mail",'
    b'"max_attempts":4,"max_crashes":5}': definition(when=Recurrence(every=60_000_000, mode="fixed_delay")),
    b'{"task":"mail.send","when":{"every":1500000,"anchor":"2026-01-02T03:04:05.678901Z","catch_up":"all",'
    b'"max_catch_up":7,"overlap":"allow","jitter":0.25},"payload":"eyJ2IjoxfQ==","queue":"mail","priority":-5,'
    b'"timeout":30.0,"max_attempts":null,"max_crashes":null,"tags":["a","b"],"in_code":false}': FULL,
}


@pytest.mark.parametrize(("stored", "meant"), PINNED.items())
def test_stored_definitions_do_not_change(stored: bytes, meant: Definition) -> None:
    """N5, R5: these bytes lie in stores. A release that writes others redefines every schedule; defaults are left out,
    so a default that changes changes what these mean."""
    assert encode(meant) == stored
    assert decode(stored) == meant


def test_defaults_stay() -> None:
    """N4, N5: what is left out of the stored form means this, in every release."""
    when = Recurrence(every=1)
    assert (when.tz, when.anchor, when.mode) == ("UTC", datetime(2001, 1, 1, tzinfo=UTC), "fixed_rate")
    assert (when.catch_up, when.max_catch_up, when.overlap, when.jitter) == ("last", 100, "skip", 0.0)
    plain = definition()
    assert (plain.version, plain.priority, plain.timeout, plain.tags, plain.in_code) == (1, 0, None, (), True)


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"null",
        b"\xff",
        encode(definition()).replace(b"mail.send", b"\xff"),
        encode(replace(definition(), version=2)),
        encode(definition(when=Recurrence())),
        encode(definition(when=Recurrence(cron="0 3 * * *", tz="Mars"))),
        encode(definition()).replace(b'"every"', b'"each"'),
        encode(definition()).replace(b"3600000000", b"1" + b"0" * 40),
        encode(definition()).replace(b'"every"', b'"mode":"fixed_moon","every"'),
        encode(definition()).replace(b'"every"', b'"anchor":"2026-01-01T00:00:00","every"'),
    ],
)
def test_what_this_version_cannot_read_is_left_alone(stored: bytes) -> None:
    """N5, R5: another version's, or garbage; never an error that would stop the other schedules."""
    assert isinstance(decode(stored), ConfigError)


def test_the_error_says_why_a_definition_cannot_be_read() -> None:
    """N5, X5: an upgrade does not help where a time zone is missing."""
    assert "upgrade" in str(decode(b"{}"))
    away = encode(definition(when=Recurrence(cron="0 3 * * *", tz="Mars")))
    assert str(decode(away)) == "time zone 'Mars' is unknown: use a name such as Europe/Berlin"


def test_fields_of_a_later_version_are_accepted() -> None:
    """R5: as long as it calls it version 1."""
    assert decode(encode(definition()).replace(b'"queue"', b'"colour":"red","queue"')) == definition()
