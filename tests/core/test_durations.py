"""Durations and ages for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from taskharbor.core.durations import ago, count, length

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (0, "0 s"),
        (0.0001, "under 1 ms"),
        (0.04, "40 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (2.5, "2.5 s"),
        (5, "5 s"),
        (9.96, "10 s"),
        (42.4, "42 s"),
        (59.6, "1 min"),
        (90, "1 min 30 s"),
        (3599.7, "1 h"),
        (7500, "2 h 5 min"),
        (86400 * 3 + 4 * 3600 + 59, "3 d 4 h"),
        (86400 * 30 + 4 * 3600, "30 d"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    """C: durations for people."""
    assert length(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "just now"),
        (0.9, "just now"),
        (-0.9, "now"),
        (1, "1 s ago"),
        (119.9, "119 s ago"),
        (120, "2 min ago"),
        (7199, "119 min ago"),
        (7500, "2 h ago"),
        (86400 * 3.9, "3 d ago"),
        (86400 * 5000, "5,000 d ago"),
        (-3599.9, "in 60 min"),
        (-86400 * 8.9999, "in 9 d"),
        (-40, "in 40 s"),
    ],
)
def test_an_age_has_one_unit(seconds: float, text: str) -> None:
    """C: ages for people; a time to come is rounded, so that a delay of 9 days is in 9 days."""
    assert ago(NOW - timedelta(seconds=seconds), NOW) == text


def test_a_count_has_its_noun() -> None:
    """C: one job, more jobs."""
    assert [count(number, "job") for number in (0, 1, 2000)] == ["0 jobs", "1 job", "2,000 jobs"]
