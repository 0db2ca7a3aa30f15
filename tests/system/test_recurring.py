"""Schedulers in many processes: one job per slot, whatever their clocks say and whichever is killed (N3, N5, H10)."""

from __future__ import annotations

import signal
import time
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from taskharbor.core.job import JobRecord
from taskharbor.testing.history import Called, SwapEntry

from .crew import Crew, Member, off_by, until

HOUR = 3600.0
# Where the hosts' own clocks count, the fastest ticks: so several are as fast as that, and begin.
SKEWS = [HOUR, HOUR, HOUR, -HOUR, HOUR / 2, -HOUR / 2, 60.0, 0.0]
OFTEN = {"every": 0.25, "catch_up": "all", "max_catch_up": 1000, "overlap": "allow"}
STEP = timedelta(seconds=0.25)


def slot_of(job: JobRecord) -> datetime:
    """The slot that a job is for."""
    return datetime.fromisoformat(job.headers["slot"])


def last_slot(crew: Crew) -> datetime | None:
    """The slot of the last tick."""
    return next((it.last_run for it in crew.harbor.admin.recurring.list()), None)


def goes_on(crew: Crew, seconds: float) -> None:
    """Wait until slots of so many more seconds have had their ticks."""
    start = until(lambda: last_slot(crew), "the first tick")
    assert start is not None
    goal = start + timedelta(seconds=seconds)
    until(lambda: (last_slot(crew) or start) >= goal, f"ticks up to {goal}")


def ended(crew: Crew) -> list[JobRecord]:
    """Let no more ticks come and every job end; all of them by slot."""
    crew.harbor.admin.recurring.pause("tick")
    crew.drained()
    jobs = sorted(crew.judge(), key=slot_of)
    assert {job.state for job in jobs} == {"done"}
    return jobs


def test_eight_processes_with_wrong_clocks_make_one_job_per_slot(crew: Crew) -> None:
    """N3, X1, X4, H10: clocks an hour off, processes killed and replaced meanwhile; no slot twice, none missing."""
    crew.max_crashes = None
    start = datetime.now(UTC)

    def worker(skew: float, ready: bool = True) -> Member:
        return crew.worker(lease=5, environment=off_by(skew), recurring=OFTEN, ready=ready)

    crowd = {number: worker(skew, ready=not number) for number, skew in enumerate(SKEWS)}
    for member in crowd.values():
        member.says("worker.started")
    rng = Random(7)
    for number in (0, *rng.sample(range(1, 8), 3)):
        goes_on(crew, 1)
        crowd[number].kill()
        crowd[number] = worker(SKEWS[number], ready=False)
    for member in crowd.values():
        member.says("worker.started")
    goes_on(crew, 2)
    jobs = ended(crew)
    slots = [slot_of(job) for job in jobs]
    assert slots == [slots[0] + number * STEP for number in range(len(slots))]
    assert len(slots) >= 24
    assert len({event.who for event in crew.events() if isinstance(event, Called) and ticks(event)}) > 1
    if not crew.url.startswith("sqlite"):
        assert slots[0] > start - timedelta(seconds=5)
        since_epoch = time.time() - time.monotonic()
        for event in crew.events():
            for slot in ticks(event):
                assert slot / 1e6 < event.at / 1e6 + since_epoch + 5, "nobody ticks early by the server's clock"


def ticks(event: Any) -> list[int]:
    """The slots that a process asked for at once."""
    items = event.items if isinstance(event, Called) else ()
    return [
        item.slot for item in items if isinstance(item, SwapEntry) and item.slot is not None and item.job is not None
    ]


def test_a_deploy_changes_a_definition_once(crew: Crew) -> None:
    """N5, N3: old and new code side by side; from the first new worker on, all tick by its definition."""
    each = {"catch_up": "all", "max_catch_up": 1000, "overlap": "allow"}
    before = {"cron": "* * * * * *", "tags": ["old"], **each}
    after = {"cron": "*/2 * * * * *", "tags": ["new"], **each}
    old = [crew.worker(recurring=before, ready=False) for _ in range(2)]
    for member in old:
        member.says("worker.started")
    goes_on(crew, 2)
    new = [crew.worker(recurring=after, generation=2, ready=False) for _ in range(2)]
    for member in new:
        member.says("worker.started")
    goes_on(crew, 4)
    for member in old:
        member.signal(signal.SIGTERM)
        assert member.ends() == 0, member.story
        goes_on(crew, 2)
    assert crew.harbor.admin.recurring.get("tick").when.cron == "*/2 * * * * *"
    jobs = ended(crew)
    tags = [job.tags for job in jobs]
    assert tags == [("old",)] * tags.count(("old",)) + [("new",)] * tags.count(("new",))
    slots = {kind: [slot_of(job) for job in jobs if job.tags == (kind,)] for kind in ("old", "new")}
    for kind, step in (("old", 1), ("new", 2)):
        first = slots[kind][0]
        assert slots[kind] == [first + timedelta(seconds=step * n) for n in range(len(slots[kind]))]
        assert len(slots[kind]) >= 2
    assert all(slot.second % 2 == 0 for slot in slots["new"])
    assert slots["new"][0] - slots["old"][-1] <= timedelta(seconds=3)
