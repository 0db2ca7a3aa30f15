"""How long the last run took."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskharbor.core.last_run import last_run
from taskharbor.core.states import State

from .make import NOW, record

SECOND = timedelta(seconds=1)


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
