"""Handlers that block the loop, cannot be stopped, or do not want to be (L3, F5)."""

from __future__ import annotations

import pytest

from .crew import Crew, until

LEASE = 1.0


def test_a_blocked_event_loop_keeps_its_leases(crew: Crew) -> None:
    """L3: an async handler that sleeps synchronously for three leases is run exactly once, and so is its neighbour."""
    crew.worker(lease=LEASE, concurrency=2)
    neighbour = crew.enqueue("hold", {"gate": "gate"})
    crew.runs(neighbour)
    blocking = crew.enqueue("block", {"seconds": 3 * LEASE})
    crew.runs(blocking)
    crew.worker(lease=LEASE)
    crew.ended(blocking)
    crew.open_gate("gate")
    crew.drained()
    for id in (blocking, neighbour):
        (run,) = crew.began(id)
        assert run.version == 1
    assert {(job.state, job.version, job.crashes) for job in crew.judge()} == {("done", 1, 0)}


@pytest.mark.parametrize(
    ("engine", "task"), [("sqlite", "stubborn"), ("sqlite", "stubborn_sync"), ("postgres", "stubborn_sync")]
)
def test_a_handler_that_outlives_its_timeout_keeps_slot_and_lease(crew: Crew, task: str) -> None:
    """F5, H9: whether it swallows its cancellation or is a thread, no second run starts beside it."""
    holder = crew.worker(lease=LEASE, concurrency=1)
    job = crew.enqueue(task, {"gate": "gate"}, timeout=0.2, max_attempts=2)
    crew.runs(job)
    first = crew.last_expiry(job, 1)
    crew.worker(lease=LEASE)
    until(lambda: crew.last_expiry(job, 1) >= first + 3 * LEASE * 1e6, "three leases after the timeout")
    assert len(crew.began(job)) == 1
    assert crew.job(job).version == 1

    crew.open_gate("gate")
    ended = crew.ended(job)
    begins, ends = crew.began(job), crew.finished(job)
    assert (begins[0].who, begins[0].version) == (holder.name, 1)
    assert ended.failures[0].kind == "TimeoutError"
    assert all(end.at <= begin.at for end, begin in zip(ends, begins[1:], strict=False))
    assert ended.attempts == len(ended.failures) <= 2
    crew.judge()
