"""How several queues share one reserve, and who comes first."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from taskharbor.core.job import JobRecord
from taskharbor.core.line import SINCE_EVER, effective_due, shares
from taskharbor.core.states import State

from .make import NOW, SECOND, claimed, lease, moments, records

queues = st.lists(st.sampled_from("abcde"), min_size=1, max_size=12)


@given(queues, st.integers(0, 200))
def test_the_shares_sum_to_the_limit(names: list[str], limit: int) -> None:
    """D11: nothing of the limit is lost or invented, and every queue is named once, in the order given."""
    taken = shares(names, limit)
    assert sum(taken.values()) == limit
    assert list(taken) == list(dict.fromkeys(names))


@given(queues, st.integers(0, 200))
def test_no_queue_starves_while_there_is_one_for_each_share(names: list[str], limit: int) -> None:
    """D11: with a limit of at least the number of shares, every queue may take something."""
    assert all(shares(names, len(names) + limit).values())


@given(queues, st.integers(0, 200))
def test_a_name_given_several_times_has_that_many_shares(names: list[str], limit: int) -> None:
    """D11: weights by repetition, exact to one job per share."""
    each = limit // len(names)
    for queue, weight in Counter(names).items():
        assert weight * each <= shares(names, limit)[queue] <= weight * (each + 1)


@given(st.sets(st.text(), min_size=1).map(sorted), st.integers(0, 200))
def test_equal_queues_differ_by_one_at_most(names: list[str], limit: int) -> None:
    """D11: without weights the limit is shared evenly; the earlier names get what is over."""
    taken = list(shares(names, limit).values())
    assert taken == sorted(taken, reverse=True)
    assert taken[0] - taken[-1] <= 1


def test_there_may_be_nothing_to_share() -> None:
    """D2: no queue, or a limit of zero and less, is an empty answer and never an error."""
    assert shares([], 5) == {}
    assert shares(["a"], -1) == {"a": 0}


@given(records(set(State) - {State.INFLIGHT}))
def test_a_job_in_line_is_due_since_its_due_time(job: JobRecord) -> None:
    """D11: `run_at`, else the time of the enqueue."""
    assert effective_due(job) == job.due_at


@given(moments)
def test_a_first_crash_goes_to_the_front_and_later_ones_queue_up(expiry: datetime) -> None:
    """D11, F7: since ever the first time, since the last lease's expiry afterwards."""
    assert effective_due(claimed(crashes=0, lease=lease(expires_at=expiry))) == SINCE_EVER
    assert effective_due(claimed(crashes=1, lease=lease(expires_at=expiry))) == expiry


def test_an_inflight_record_without_a_lease_keeps_its_place() -> None:
    """D11: a damaged record does not break the line."""
    assert effective_due(claimed(lease=None, due_at=NOW - SECOND)) == NOW - SECOND
