"""Totals of runs: the sum of a batch is that of its parts (D9, D13)."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from taskharbor.core.tally import Tally, added, key_of, tallies
from taskharbor.core.transition import Ack, Increment

from .make import NOW, SECOND, moments

names = st.sampled_from(["a", "b"])
increments = st.none() | st.builds(Increment, names, names, st.sampled_from(["done", "dlq"]), moments)
ack = st.builds(
    Ack,
    id=st.just("x"),
    token=st.just("t"),
    keep_until=st.just(NOW),
    started_at=st.none() | moments,
    increment=increments,
)
# Jobs of a batch share their increment and their start, some of them only one of the two.
alike = st.builds(lambda to, number: [to] * number, ack, st.integers(1, 3))
akin = st.builds(lambda to, start: [to, replace(to, started_at=start)], ack, st.none() | moments)
acks = st.lists(alike | akin).map(lambda runs: [to for run in runs for to in run])


@given(acks)
def test_a_batch_is_the_sum_of_its_parts(settled: list[Ack]) -> None:
    """D9: per queue, task and outcome, in order; without an increment nothing."""
    sums: dict[tuple[str, str, str], Tally] = {}
    for to in settled:
        key = key_of(to)
        assert (key is None) == (to.increment is None)
        for single in tallies([to], NOW):
            assert (single.queue, single.task, single.outcome) == key
            sums[key] = added(sums[key], single) if key in sums else single
    assert tallies(settled, NOW) == [exact(sums[key]) for key in sorted(sums)]


def exact(tally: Tally) -> Tally:
    """Sums of floats are off in their last digits."""
    return replace(tally, seconds=round(tally.seconds, 6), waited=round(tally.waited, 6))


def one(started_at: datetime | None) -> list[Tally]:
    add = Increment("q", "t", "done", NOW)
    return tallies([Ack(id="x", token="t", keep_until=NOW, started_at=started_at, increment=add)], NOW + 9 * SECOND)


def test_waiting_ends_where_running_begins() -> None:
    """D9: from the due time to the start, and from there to the settle."""
    minute = NOW.replace(second=0, microsecond=0)
    assert one(NOW + 2 * SECOND) == [Tally(minute, "q", "t", "done", 1, 7.0, 2.0)]
    assert one(NOW - timedelta(hours=1)) == [Tally(minute, "q", "t", "done", 1, 3609.0, 0.0)]
    assert one(None) == [Tally(minute, "q", "t", "not_started:done", 1)]
