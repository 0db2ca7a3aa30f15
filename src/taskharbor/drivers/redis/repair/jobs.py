"""Every record, and every entry that an index must have for it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from taskharbor.core.states import TERMINAL
from taskharbor.drivers.redis.entries import Write, entries
from taskharbor.drivers.redis.parts import EPOCH, PARTS, ClaimPart, Head, pack
from taskharbor.drivers.redis.repair.bites import AuditedJob, Bites, Misfit, head_is

UNKNOWN_WORKER = "unknown"


async def check(bites: Bites) -> int:
    """Return the number of jobs."""
    seen: set[bytes] = set()
    last = 0

    async def find(ids: Sequence[str]) -> list[Misfit]:
        nonlocal last
        found = await bites.jobs(ids)
        last = max([last, *(job.head.seq for job in found.values() if job.head is not None)])
        return await _misfits(bites, found)

    async for names in bites.pages("HSCAN", "job", 2):
        seen.update(names)
        await bites.mend([name.decode() for name in names], find)
    await _numbering(bites, last)
    for part in PARTS[1:]:
        async for names in bites.pages("HSCAN", part, 2):
            await bites.mend([(part, name.decode()) for name in names], lambda places: _without_head(bites, places))
    return len(seen)


async def _misfits(bites: Bites, jobs: dict[str, AuditedJob]) -> list[Misfit]:
    """The misfits of these jobs."""
    wanted = {
        id: entries(job.record, job.head.seq, job.head.lined)
        for id, job in jobs.items()
        if job.record is not None and job.head is not None
    }
    places = [(id, place) for id, found in wanted.items() for place in found]
    scores = await bites.read([("ZSCORE", *place) for _, place in places])
    found = [misfit for job in jobs.values() if (misfit := _record(job)) is not None]
    for (id, (key, member)), score in zip(places, scores, strict=True):
        right = wanted[id][key, member]
        if score is None or float(score) != float(right):
            what = f"{key} lacks job {id}" if score is None else f"{key} has job {id} in a wrong place"
            found.append(Misfit(what, [head_is(jobs[id], id)], [("ZADD", key, right, member)]))
            bites.incomplete.add(key)
    return found


def _record(job: AuditedJob) -> Misfit | None:
    """The misfits within a record: mostly a change of which a cut-off log has kept the first half."""
    head, record, wrong = job.head, job.record, job.wrong
    writes: Sequence[Write] = ()
    if head is not None and record is not None:
        if record.state in TERMINAL and record.keep_until is None:  # it runs again
            wrong, writes = "has ended, and its outcome is not stored", [_head(job.id, head, state="ready")]
        elif record.workflow_id is not None and not head.cold:
            wrong, writes = "belongs to a workflow, and is not marked so", [marked(job.id, head)]
        else:
            return None
    elif job.parts["card"] is None:
        writes = [("HDEL", part, job.id) for part in PARTS]
    elif head is not None and head.state == "inflight" and job.parts["claim"] is None:
        writes = [("HSET", "claim", job.id, pack(ClaimPart(UNKNOWN_WORKER, EPOCH))), _head(job.id, head)]
    # Else it cannot be read: it is reported, and left as it is.
    return Misfit(f"job {job.id} {wrong}", [head_is(job, job.id)], writes, again=bool(writes))


def marked(id: str, head: Head) -> Write:
    """The command that leaves the end of a job to steps."""
    return _head(id, head, cold=1)


def _head(id: str, head: Head, **changes: str | int) -> Write:
    return "HSET", "job", id, replace(head, rev=head.rev + 1, **changes).text()


async def _without_head(bites: Bites, places: Sequence[tuple[str, str]]) -> list[Misfit]:
    heads = await bites.read([("HGET", "job", id) for _, id in places])
    return [
        Misfit(f"{part} of job {id}, which is not there", [("HGET", "job", id, None)], [("HDEL", part, id)])
        for (part, id), head in zip(places, heads, strict=True)
        if head is None
    ]


async def _numbering(bites: Bites, last: int) -> None:
    """Raise `seq` if it is behind the number of the last job: the next job needs a number of its own."""

    async def find(names: Sequence[str]) -> list[Misfit]:
        (found,) = await bites.read([("GET", "seq")])
        if int(found or 0) >= last:
            return []
        return [
            Misfit(f"seq is {int(found or 0)}, less than {last}", [("GET", "seq", "", found)], [("SET", "seq", last)])
        ]

    await bites.mend(["seq"], find)
