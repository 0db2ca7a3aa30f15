"""The file of the store cannot grow any more: limited for one process, as a full disk would for all."""

from __future__ import annotations

import json

import pytest

from .crew import Crew, until

pytestmark = pytest.mark.parametrize("engine", ["sqlite"])

CARGO = "x" * 50_000
ROOM = 1_500_000


def test_a_client_on_a_full_disk_gets_an_error_and_loses_nothing(crew: Crew) -> None:
    """X2, X5, H1: what was acknowledged stays, what is refused is refused loudly, and others go on."""
    crew.enqueue("quick", {"number": 1})
    client = crew.client([("bulky", {"cargo": CARGO}, {})], rounds=200)
    client.limit_files(ROOM)
    client.go()
    assert client.ends() == 0, client.story
    assert "check the disk" in client.says("refused: ") or client.has_said("is full")
    acknowledged = json.loads(client.lines[-1])
    assert 0 < len(acknowledged) < 200

    more = crew.client([("bulky", {"cargo": CARGO}, {})], rounds=10)
    more.go()
    assert more.ends() == 0, more.story
    crew.worker()
    crew.drained()
    jobs = {job.id: job for job in crew.judge()}
    assert {id for id, _ in acknowledged} <= set(jobs)
    assert len(jobs) == 1 + len(acknowledged) + 10
    assert {job.state for job in jobs.values()} == {"done"}


def test_a_worker_on_a_full_disk_recovers_by_itself(crew: Crew) -> None:
    """X2, L4, H1: it says what is wrong, gives up leases it cannot renew, lives on, and resumes when there is room."""
    worker = crew.worker()
    before = crew.enqueue("quick", {"number": 1})
    crew.ended(before)
    held = crew.enqueue("hold", {"gate": "gate"})
    crew.runs(held)
    worker.limit_files(ROOM)
    crew.enqueue_many("bulky", [{"cargo": CARGO}] * 60)  # by this process, which has no limit: now the log is too long
    jobs = crew.enqueue_many("quick", [{"number": number} for number in range(20)], priority=1)
    worker.says("store.unavailable")
    worker.says("lease.lost")
    assert worker.running
    until(
        lambda: (held, 1, "cancelled") in crew.notes(held), "its handler was cancelled"
    )  # after the keeper has logged it
    assert not any(crew.began(id) for id in jobs)

    worker.limit_files(None)
    crew.open_gate("gate")
    crew.drained()
    assert worker.running
    assert [run.version for run in crew.began(held)] == [1, 2]
    assert {job.state for job in crew.judge()} == {"done"}
