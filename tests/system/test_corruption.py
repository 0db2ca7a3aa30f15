"""Flipped bytes in the store (F9, X5)."""

from __future__ import annotations

from random import Random

import apsw
import pytest

from .crew import Crew

pytestmark = pytest.mark.parametrize("engine", ["sqlite"])


def flip(crew: Crew, id: str, rng: Random) -> None:
    """Damage some bytes of a job's payload, so that it is JSON no more."""
    db = apsw.Connection(str(crew.store))
    try:
        payload = bytearray(db.execute("SELECT payload FROM job WHERE id = ?", (id,)).get)
        for place in (0, rng.randrange(1, len(payload)), rng.randrange(1, len(payload))):
            payload[place] ^= 0xFF
        db.execute("UPDATE job SET payload = ? WHERE id = ?", (bytes(payload), id))
        assert db.changes() == 1
    finally:
        db.close()


def spoil(crew: Crew, id: str, change: str) -> None:
    """Write nonsense into a column of a job."""
    db = apsw.Connection(str(crew.store))
    try:
        db.execute(f"UPDATE job SET {change} WHERE id = ?", (id,))
        assert db.changes() == 1
    finally:
        db.close()


def test_a_corrupt_payload_is_dead_lettered_and_others_go_on(crew: Crew) -> None:
    """F9, F7: one claim, no run, no crash; the reason can be read, and the worker goes on."""
    good = crew.enqueue_many("quick", [{"number": number} for number in range(20)])
    bad = [crew.enqueue("bulky", {"cargo": "x" * 100}, priority=priority) for priority in (5, 0, -5, 5, 0)]
    rng = Random(1)
    for id in bad:
        flip(crew, id, rng)
    worker = crew.worker(concurrency=4)
    crew.drained()
    after = crew.enqueue("quick", {"number": 99})
    crew.ended(after)
    assert worker.running
    assert not any(crew.began(id) for id in bad)
    jobs = {job.id: job for job in crew.judge()}
    for id in bad:
        dead = jobs[id]
        assert (dead.state, dead.dlq_reason, dead.version, dead.crashes) == ("dlq", "undecodable", 1, 0)
        assert dead.last_error
    assert {jobs[id].state for id in [*good, after]} == {"done"}


def test_a_corrupt_record_is_dead_lettered_and_others_go_on(crew: Crew) -> None:
    """X5, F9: an unreadable record is moved aside by the first worker that meets it, and stops no other job."""
    good = crew.enqueue_many("quick", [{"number": number} for number in range(20)])
    changes = [
        "headers = '{bad'",
        "failures = '[{'",
        "type = CAST(x'41ff' AS TEXT)",
        "created_at = 9223372036854775807",
    ]
    bad = [crew.enqueue("quick", {"number": 1}, priority=5) for _ in changes]
    for id, change in zip(bad, changes, strict=True):
        spoil(crew, id, change)
    workers = [crew.worker(), crew.worker()]
    crew.drained()
    assert all(worker.running for worker in workers)
    assert not any(crew.began(id) for id in bad)
    jobs = {job.id: job for job in crew.judge(damaged=bad)}
    assert {(jobs[id].state, jobs[id].dlq_reason, jobs[id].crashes) for id in bad} == {("dlq", "undecodable", 0)}
    assert {jobs[id].state for id in good} == {"done"}
