"""Filters: which records they choose, and the words that spell them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taskharbor.core.filter import Filter, duration, parse
from taskharbor.core.job import JobRecord
from taskharbor.core.shown import shown
from taskharbor.core.states import Shown, State
from taskharbor.errors import ConfigError

from .make import NOW, SECOND, record, records

letters = st.text("ab.*\n\\[", max_size=8)


@given(records())
def test_an_empty_filter_chooses_everything(job: JobRecord) -> None:
    """Q1: a condition that is not given says nothing."""
    assert Filter().matches(job, NOW)


@given(records(), st.sets(st.sampled_from(Shown)))
def test_states_are_the_shown_ones(job: JobRecord, states: set[Shown]) -> None:
    """T: lists speak of states as people see them; several mean any of them, none means all."""
    assert Filter(states=tuple(states)).matches(job, NOW) is (not states or shown(job, NOW) in states)


@given(letters, letters)
@example("a*a", "a")
@example("*", "")
@example("**", "")
@example("", "")
@example("a*ba*b", "ab")
@example("a*ab*b", "aabb")
@example("*.*", "\n.\n")
def test_a_star_matches_any_text(pattern: str, text: str) -> None:
    """Q1: also for none and for newlines; every other character means itself."""
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None
    assert Filter(task=pattern).matches(record(type=text), NOW) is expected
    assert Filter(queue=pattern).matches(record(queue=text), NOW) is expected
    assert Filter(reason=pattern).matches(record(State.DLQ, dlq_reason=text), NOW) is expected


def test_many_stars_stay_cheap() -> None:
    """Q1: no pattern makes a list take forever (a backtracking matcher would not end within this test run)."""
    assert not Filter(task="*a" * 40 + "b").matches(record(type="a" * 250), NOW)


def test_a_job_without_a_reason_has_none_that_fits() -> None:
    """Q1: `*` means any reason, not no reason."""
    assert not Filter(reason="*").matches(record(), NOW)


@pytest.mark.parametrize(
    ("where", "job", "chosen"),
    [
        ({"error": "out"}, {"last_error": "TimeoutError: timed out"}, True),
        ({"error": "t*t"}, {"last_error": "timeout"}, False),
        ({"error": "out"}, {"last_error": None}, False),
        ({"tag": "vip"}, {"tags": ("new", "vip")}, True),
        ({"tag": "vi*"}, {"tags": ("vip",)}, False),
        ({"workflow_id": "w"}, {"workflow_id": "w"}, True),
        ({"workflow_id": "w"}, {"workflow_id": None}, False),
        ({"worker": "host:1:*"}, {"worker": "host:1:ab"}, True),
        ({"worker": "host:1:a"}, {"worker": "host:1:ab"}, False),
        ({"worker": "*"}, {"worker": None}, False),
        ({"since": NOW}, {"created_at": NOW}, True),
        ({"since": NOW + SECOND}, {"created_at": NOW}, False),
        ({"until": NOW}, {"created_at": NOW}, False),
        ({"until": NOW + SECOND}, {"created_at": NOW}, True),
        ({"queue": "mail", "tag": "vip"}, {"queue": "mail", "tags": ()}, False),
    ],
)
def test_every_condition_must_hold(where: dict[str, Any], job: dict[str, Any], chosen: bool) -> None:
    """Q1: errors by a part of their text, tags and workflows by name, times from `since` up to before `until`."""
    assert Filter(**where).matches(record(**job), NOW) is chosen


def test_words_spell_a_filter() -> None:
    """C: `state:dlq,cancelled queue:mail …`; only the first colon counts; a bare word is a task."""
    words = ("state:dlq,cancelled", "state:done", "queue:mail", "send.*", "error:a:b", "reason:x", "tag:t")
    assert parse((*words, "workflow:w", "worker:h:1:a", "since:1h", "until:30m"), NOW) == Filter(
        states=(Shown.DLQ, Shown.CANCELLED, Shown.DONE),
        queue="mail",
        task="send.*",
        error="a:b",
        reason="x",
        tag="t",
        workflow_id="w",
        worker="h:1:a",
        since=NOW - timedelta(hours=1),
        until=NOW - timedelta(minutes=30),
    )
    assert parse((), NOW) == Filter()
    assert parse(("task:a:b",), NOW) == Filter(task="a:b")
    assert parse(("queue:a b", "error:no state:x"), NOW) == Filter(queue="a b", error="no state:x")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("stat:dlq",), "unknown filter word 'stat:dlq': use state:, queue:, task:, error:, reason:, group:, tag:,"),
        ((":x",), "unknown filter word ':x'"),
        (
            ("state:dead",),
            "unknown state 'dead': use one of scheduled, ready, waiting, claimed, running, lapsed, done, dlq,",
        ),
        (("state:dead",), "done, dlq, cancelled; dead jobs are dlq"),
        (("state:overrun",), "done, dlq, cancelled; runs past their timeout are running"),
        (("state:",), "unknown state ''"),
        (("queue:a", "queue:b"), "'queue:b' repeats queue"),
        (("task:a", "b"), "'b' repeats task"),
        (("task:a.b state:done",), "'task:a.b state:done' is several words in one: leave out the quotes around them"),
        (("a.b queue:c",), "'a.b queue:c' is several words in one"),
        (("since:yesterday",), "'yesterday' is not a length of time: write a number and s, m, h, d or w"),
        (("since:900000000d",), "'900000000d' ago is before the calendar begins"),
        (("since:" + "9" * 400 + "d",), "d' is too long"),
    ],
)
def test_an_invalid_filter_is_refused_with_the_rule(words: tuple[str, ...], message: str) -> None:
    """X5: no word is ignored, since bulk actions use filters, too."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(words, NOW)


@given(st.lists(st.text(max_size=12) | st.sampled_from(["state:", "since:", "until:", "queue:"]), max_size=3))
def test_any_words_are_a_filter_or_a_config_error(words: list[str]) -> None:
    """X5: never another exception."""
    try:
        assert isinstance(parse(tuple(words), NOW), Filter)
    except ConfigError as refused:
        assert str(refused)  # noqa: PT017


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("1.5h", 5400), ("7d", 604800), ("2w", 1209600), ("0s", 0)]
)
def test_a_length_of_time(text: str, seconds: float) -> None:
    """C: a number and a unit."""
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "5", "h", "-1h", "1 h", "1H", "1h1m", "1.h", ".5h", "1e3s", "nans"])
def test_an_invalid_length_of_time_is_refused(text: str) -> None:
    """X5: with an example of how to write one."""
    with pytest.raises(ConfigError, match="such as 15m"):
        duration(text)
