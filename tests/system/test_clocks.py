"""Hosts whose clocks are an hour off, on engines that have a clock of their own (L8, X4)."""

from __future__ import annotations

import json
import time

import pytest

from taskharbor.testing.history import Called

from .crew import Crew, off_by, until
from .storm import Job

pytestmark = pytest.mark.parametrize("engine", ["postgres", "redis", "nats"])

HOUR = 3600.0
LEASE = 3.0
DELAY = 1.5
ORDER: list[Job] = [
    ("quick", {"number": 1}, {"delay": DELAY}),
    ("quick", {"number": 2}, {"expires": 60}),
    ("snoozer", {}, {}),
    ("flaky", {"failures": 1}, {}),
    ("quick", {"number": 3}, {"idempotency_key": "one", "idempotency_ttl": 60}),
]


def test_the_tests_clocks_are_really_wrong(crew: Crew) -> None:
    """These tests would show nothing otherwise."""
    for skew in (HOUR, -HOUR):
        told = crew.start(
            crew.name("told"),
            ["-c", "import time, datetime as d; print(time.time(), d.datetime.now(d.UTC).timestamp())"],
            environment=off_by(skew),
        )
        assert told.ends() == 0, told.story
        assert [float(word) for word in told.lines[0].split()] == pytest.approx([time.time() + skew] * 2, abs=60)


def test_wrong_clocks_change_nothing(crew: Crew) -> None:
    """L8, X4, H3, H7, H8: no early run, no late one, no stolen lease, one job per key, with clocks an hour off."""
    workers = [crew.worker(lease=LEASE, concurrency=4, environment=off_by(skew)) for skew in (HOUR, -HOUR)]
    held = crew.enqueue("hold", {"gate": "gate"})
    holder = crew.runs(held).who
    clients = [crew.client(ORDER, environment=off_by(skew), wait=False) for skew in (-HOUR, HOUR, 0)]
    made: list[list[str]] = []
    for client in clients:
        client.says("ready")
        client.go()
        assert client.ends() == 0, client.story
        made.append([id for id, _ in json.loads(client.lines[-1])])
    until(lambda: crew.unfinished() == 1, "all but one have ended")
    assert len({ids[-1] for ids in made}) == 1, "the key belongs to one job"
    delayed = [crew.job(ids[0]) for ids in made]
    for job in delayed:
        assert job.lease is None
        assert job.run_at is not None
        assert job.completed_at is not None
        assert (job.run_at - job.created_at).total_seconds() == pytest.approx(DELAY, abs=1)
        assert job.run_at <= job.completed_at
    first = crew.last_expiry(held, 1)
    until(lambda: crew.last_expiry(held, 1) >= first + 2 * LEASE * 1e6, "two leases")
    assert len(crew.began(held)) == 1, "the other worker takes it for what it is: held"

    [victim] = [worker for worker in workers if worker.name == holder]
    victim.kill()
    crew.runs(held, 2)
    crew.open_gate("gate")
    crew.drained()
    since_epoch = time.time() - time.monotonic()
    for event in crew.events():
        if isinstance(event, Called) and event.now is not None:
            assert abs(event.now / 1e6 - (event.at / 1e6 + since_epoch)) < 60, event
    jobs = crew.judge()
    assert {job.state for job in jobs} == {"done"}
    assert len(jobs) == 1 + 3 * (len(ORDER) - 1) + 1
