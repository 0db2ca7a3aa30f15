"""Every entry of every index: whether it has a job that must be there."""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.drivers.redis.entries import FLOW_COUNTS, entries
from taskharbor.drivers.redis.repair.bites import AuditedJob, Bites, Misfit, head_is

INDEXES = ("all", "leases", "lined", "expiring", "stopping", "ended", "dead")
LINE, RANKS = "line:", "ranks:"
NUMBER = 16  # digits before the id of a job in line


async def check(bites: Bites) -> None:
    """Remove entries of jobs that do not belong there."""
    for key in INDEXES:
        await _index(bites, key)
    async for key in bites.keys(LINE, "flow:", "flowborn:", "flowends:"):
        await _index(bites, key)
    async for key in bites.keys(RANKS):
        await _ranks(bites, key.removeprefix(RANKS))
    async for names in bites.pages("ZSCAN", "flows", 2):
        await bites.mend([name.decode() for name in names], lambda found: _flows(bites, found))
    async for key in bites.keys("tally:"):
        await bites.mend([key.removeprefix("tally:")], lambda found: _minutes(bites, found))


async def _index(bites: Bites, key: str) -> None:
    async def find(members: Sequence[str]) -> list[Misfit]:
        ids = [member[NUMBER:] if key.startswith(LINE) else member for member in members]
        jobs = await bites.jobs(ids)
        found: list[Misfit] = []
        for member, id in zip(members, ids, strict=True):
            job = jobs.get(id)
            if not _belongs(key, member, job):
                what = f"{key} has job {id}, which does not belong there"
                found.append(Misfit(what, [head_is(job, id)], [("ZREM", key, member)]))
        return found

    async for members in bites.pages("ZSCAN", key, 2):
        await bites.mend([member.decode() for member in members], find)


def _belongs(key: str, member: str, job: AuditedJob | None) -> bool:
    """Whether an entry is one of this job. A record that cannot be read may have any, and is reported already."""
    if job is None:
        return False
    if job.record is None or job.head is None:
        return True
    return (key, member) in entries(job.record, job.head.seq, job.head.lined)


async def _ranks(bites: Bites, queue: str) -> None:
    """Priorities of a queue that have no line."""

    async def find(priorities: Sequence[str]) -> list[Misfit]:
        places = [(f"{RANKS}{queue}", f"{LINE}{priority}:{queue}", priority) for priority in priorities]
        scores = await bites.read([("ZSCORE", ranks, priority) for ranks, _, priority in places])
        sizes = await bites.read([("ZCARD", line) for _, line, _ in places])
        return [
            Misfit(
                f"{ranks} has priority {priority}, which has no line",
                [("ZSCORE", ranks, priority, score), ("ZCARD", line, "", b"0")],
                [("ZREM", ranks, priority)],
            )
            for (ranks, line, priority), score, size in zip(places, scores, sizes, strict=True)
            if score is not None and not size and line not in bites.incomplete
        ]

    async for priorities in bites.pages("ZSCAN", f"{RANKS}{queue}", 2):
        await bites.mend([priority.decode() for priority in priorities], find)


async def _flows(bites: Bites, names: Sequence[str]) -> list[Misfit]:
    sizes = await bites.read([("ZCARD", f"flow:{name}") for name in names])
    return [
        Misfit(
            f"flows has workflow {name} without jobs",
            [("ZCARD", f"flow:{name}", "", b"0")],
            [("ZREM", "flows", name), ("HDEL", "flowcounts", *(f"{state} {name}" for state in FLOW_COUNTS))],
        )
        for name, size in zip(names, sizes, strict=True)
        if not size
    ]


async def _minutes(bites: Bites, names: Sequence[str]) -> list[Misfit]:
    """Totals of minutes are found by `minutes`."""
    scores = await bites.read([("ZSCORE", "minutes", name) for name in names])
    return [
        Misfit(f"minutes lacks {name}", [], [("ZADD", "minutes", name, name)])
        for name, score in zip(names, scores, strict=True)
        if score is None and name.isdigit()
    ]
