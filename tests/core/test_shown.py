"""Overruns, the spread of attempts, and the duration of the last run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor.core.job import Failure
from taskharbor.core.shown import last_run, overrun_since, spread_of
from taskharbor.core.states import State

from .make import NOW, SECOND, claimed, failure, lease, record


@pytest.mark.parametrize(
    ("given", "since"),
    [
        ({"started_at": NOW - 5 * SECOND, "timeout": 3.0}, NOW - 2 * SECOND),
        ({"started_at": NOW - 5 * SECOND, "timeout": 5.0}, None),
        ({"started_at": NOW - 5 * SECOND, "timeout": 1e300}, None),
        ({"started_at": NOW - 5 * SECOND, "timeout": None}, None),
        ({"started_at": None, "timeout": 3.0}, None),
        ({"started_at": NOW - 5 * SECOND, "timeout": 3.0, "lease": lease(expires_at=NOW)}, None),
    ],
)
def test_a_run_past_its_timeout_is_an_overrun(given: dict[str, Any], since: object) -> None:
    """F5: from the moment of the timeout on, while its worker holds the lease."""
    assert overrun_since(claimed(**given), NOW) == since


@pytest.mark.parametrize("state", sorted(set(State) - {State.INFLIGHT}))
def test_only_what_runs_can_overrun(state: State) -> None:
    """F5: a finished or waiting job is not an overrun, whatever its times say."""
    assert overrun_since(record(state, started_at=NOW - 5 * SECOND, timeout=3.0), NOW) is None


def test_the_spread_of_attempts_is_from_the_first_start_to_the_last_failure() -> None:
    """F2: with the start of the first run where it is known."""
    first = replace(failure(1), started_at=NOW - 9 * SECOND)
    assert spread_of([first, failure(2), failure(3)]) == 12 * SECOND
    assert spread_of([failure(1), failure(2)]) == SECOND


@pytest.mark.parametrize(
    ("attempts", "spread"),
    [((), None), ((1,), None), ((1, 2, 3, 4, 1), None), ((1, 1), None), ((1, 2, 3, 4, 1, 2), SECOND)],
)
def test_attempts_before_a_replay_do_not_count(attempts: tuple[int, ...], spread: timedelta | None) -> None:
    """F2, Q2: a replayed job starts again at attempt 1, and one attempt has no spread."""
    failures: list[Failure] = [failure(attempt) for attempt in attempts]
    assert spread_of(failures) == spread


@pytest.mark.parametrize(
    ("started", "settled", "took"),
    [(None, None, None), (0, None, None), (None, 5, None), (0, 5, 5), (0, 0, 0), (5, 0, None)],
)
def test_the_last_run_took_from_its_start_to_its_settle(
    started: int | None, settled: int | None, took: int | None
) -> None:
    """R1: None if it never started or settled, or was settled before: then it still runs, or its lease ran out."""
    job = record(
        State.DONE,
        started_at=None if started is None else NOW + started * SECOND,
        settled_at=None if settled is None else NOW + settled * SECOND,
    )
    assert last_run(job) == (None if took is None else took * SECOND)
