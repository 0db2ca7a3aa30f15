"""Workers stopped for three times their lease by SIGSTOP, and let go on (L4, L5, X7)."""

from __future__ import annotations

import signal
import time

import pytest

from .crew import Crew, until

LEASE = 1.0


def outlast(started: float) -> None:
    """Let three leases pass since then: the pause itself is the fault."""
    until(lambda: time.monotonic() > started + 3 * LEASE, "three leases")


@pytest.mark.parametrize(("task", "learns"), [("hold", "cancelled"), ("hold_sync", "LeaseLost")])
def test_a_stopped_worker_learns_that_its_lease_is_lost(crew: Crew, task: str, learns: str) -> None:
    """L4, L5, H4: the handler of the old lease is cancelled, writes nothing, and the new one's outcome stands."""
    old = crew.worker(lease=LEASE)
    job = crew.enqueue(task, {"gate": "gate"})
    crew.runs(job)
    old.stop()
    started = time.monotonic()
    new = crew.worker(lease=LEASE)
    again = crew.runs(job, 2)
    assert (again.who, again.version) == (new.name, 2)
    outlast(started)
    old.go_on()

    until(lambda: (job, 1, learns) in crew.notes(job), f"the old handler is {learns}")
    old.says("lease.lost")
    assert crew.job(job).state == "inflight"
    crew.open_gate("gate")
    ended = crew.ended(job)
    assert (ended.state, ended.version, ended.attempts) == ("done", 2, 0)
    assert [note[1:] for note in crew.notes(job)] == [(1, learns), (2, "through")]
    crew.judge()


@pytest.mark.parametrize(
    ("strike", "versions"),
    [(("settle", "before"), 2), (("settle", "after"), 1), (("reserve", "after"), 2)],
    ids=["before the settle", "after the settle", "after the reserve"],
)
def test_a_stop_between_claim_and_settle(crew: Crew, strike: tuple[str, str], versions: int) -> None:
    """L5, D7, H4: the stop falls between two steps of the store; a late settle never overwrites a newer claim."""
    old = crew.worker(lease=LEASE, strike=strike)
    job = crew.enqueue("quick", {"number": 7})
    until(lambda: old.stopped, "the worker stops itself")
    started = time.monotonic()
    new = crew.worker(lease=LEASE)
    ended = crew.ended(job)
    assert (ended.state, ended.version, ended.attempts) == ("done", versions, 0)
    outlast(started)
    old.go_on()
    new.signal(signal.SIGTERM)
    assert new.ends() == 0

    after = crew.enqueue("quick", {"number": 8})
    crew.ended(after)
    assert crew.runs(after).who == old.name
    assert crew.job(job) == ended
    crew.judge()


def test_a_claim_that_arrives_too_late_is_not_run(crew: Crew) -> None:
    """L4: by the local monotonic clock the lease is lost before the handler begins, so it does not begin."""
    old = crew.worker(lease=LEASE, strike=("reserve", "after"))
    job = crew.enqueue("quick", {"number": 7})
    until(lambda: old.stopped, "the worker stops itself")
    started = time.monotonic()
    new = crew.worker(lease=LEASE)
    crew.ended(job)
    outlast(started)
    new.signal(signal.SIGTERM)
    assert new.ends() == 0
    old.go_on()
    after = crew.enqueue("quick", {"number": 8})
    crew.ended(after)
    crew.judge()
    assert [run.who for run in crew.began(job)] == [new.name]
