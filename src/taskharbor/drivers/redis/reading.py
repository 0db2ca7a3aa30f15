"""Reading: records, lists and counts. Nothing here changes the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import datetime

import msgspec
from msgspec.structs import replace

from taskharbor.core.dependency import Parent
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.states import Shown, State
from taskharbor.core.tally import Tally
from taskharbor.driver import DeadGroup, QueueCounts, WorkflowCounts
from taskharbor.drivers.redis.connection import Server
from taskharbor.drivers.redis.entries import ACTIVE
from taskharbor.drivers.redis.parts import micros, moment
from taskharbor.drivers.redis.reader import LOOK, looked
from taskharbor.drivers.redis.scripts import load

PAGE = 200
# Jobs at the head of a line that are looked at for when the first is due: some only wait for the sweep.
FIRST = 20
COUNTS = load("counts")
SHOWN = ("scheduled", "ready", "waiting", "claimed", "running", "lapsed", "done", "dlq", "cancelled")
COUNTED = (State.WAITING, State.DONE, State.DLQ, State.CANCELLED)
_name = msgspec.json.Decoder(tuple[str, str, str]).decode


async def get(server: Server, ids: Sequence[str]) -> list[JobRecord | None]:
    """The records of these ids."""
    found: dict[str, JobRecord | None] = {}
    for first in range(0, len(ids), PAGE):
        page = ids[first : first + PAGE]
        reply = await server.run(LOOK, len(page), *page, 0, 0)
        found |= {id: None if stored is None else stored.record for id, stored in looked(reply)}
    return [found[id] for id in ids]


async def pages(server: Server, key: str, after: float | None) -> AsyncIterator[list[JobRecord]]:
    """The records of an index by number, the newest first, those with a smaller number than `after`."""
    last = "+inf" if after is None else f"({after:.0f}"
    while True:
        name = f"{server.prefix}{key}"
        found = await server.command("ZREVRANGEBYSCORE", name, last, "-inf", "WITHSCORES", "LIMIT", 0, PAGE)
        if not found:
            return
        records = await get(server, [id.decode() for id in found[::2]])
        yield [job for job in records if job is not None]
        last = f"({float(found[-1]):.0f}"


async def number(server: Server, id: str | None) -> float | None:
    """The number of a job."""
    found = None if id is None else await server.command("ZSCORE", f"{server.prefix}all", id)
    return None if found is None else float(found)


def index_of(where: Filter) -> str:
    """The smallest index that holds every match."""
    if where.workflow_id is not None:
        return f"flow:{where.workflow_id}"
    died = where.reason is not None or where.fingerprint is not None  # only dead jobs have either
    return "dead" if set(where.states) == {Shown.DLQ} or (not where.states and died) else "all"


async def query(server: Server, where: Filter, now: datetime, limit: int, after: str | None) -> list[JobRecord]:
    """Matching records, the newest first."""
    found: list[JobRecord] = []
    async for page in pages(server, index_of(where), await number(server, after)):
        found += [job for job in page if where.matches(job, now)]
        if len(found) >= limit:
            break
    return found[:limit]


async def counts(server: Server, now: datetime) -> list[QueueCounts]:
    """The jobs of every queue by shown state, at one moment."""
    found = [
        QueueCounts(
            queue=queue.decode(),
            paused=bool(paused),
            oldest_due=None if oldest is None else moment(oldest.decode()),
            **dict(zip(SHOWN, numbers, strict=True)),
        )
        for queue, paused, oldest, *numbers in await server.run(COUNTS, micros(now))
    ]
    return sorted(found, key=lambda each: each.queue)


async def _held(server: Server) -> list[JobRecord]:
    """All claimed jobs."""
    ids: list[str] = []
    for key in ("leases", "lined"):
        ids += [id.decode() for id in await server.command("ZRANGE", f"{server.prefix}{key}", 0, -1)]
    return [job for job in await get(server, list(dict.fromkeys(ids))) if job is not None and job.lease is not None]


async def _ranks(server: Server, queue: str) -> list[str]:
    found = await server.command("ZREVRANGE", f"{server.prefix}ranks:{queue}", 0, -1)
    return [f"{server.prefix}line:{priority.decode()}:{queue}" for priority in found]


async def dead_groups(server: Server, where: Filter, now: datetime, limit: int) -> list[DeadGroup]:
    """Matching dead jobs by cause (Q1)."""
    groups: dict[str, DeadGroup] = {}
    last: dict[str, tuple[datetime, str]] = {}
    async for page in pages(server, "dead", None):
        for job in page:
            if not where.matches(job, now):
                continue
            fingerprint, died = job.fingerprint or "", job.completed_at or job.created_at
            known = groups.get(fingerprint)
            if known is None:
                known = groups[fingerprint] = DeadGroup(
                    fingerprint=fingerprint,
                    task=job.type,
                    error=job.last_error,
                    count=0,
                    first_at=died,
                    last_at=died,
                    last_id=job.id,
                )
            known = replace(known, count=known.count + 1, first_at=min(known.first_at, died))
            if (died, job.id) >= last.get(fingerprint, (died, job.id)):
                last[fingerprint] = died, job.id
                known = replace(known, last_at=died, last_id=job.id, task=job.type, error=job.last_error)
            groups[fingerprint] = known
    return sorted(groups.values(), key=lambda group: (-group.count, group.fingerprint))[:limit]


async def workflows(server: Server, limit: int, after: str | None, ids: Sequence[str] | None) -> list[WorkflowCounts]:
    """Workflows by id, the greatest first."""
    prefix, found = server.prefix, list[WorkflowCounts]()
    held = Counter(job.workflow_id for job in await _held(server) if job.workflow_id is not None)
    if ids is not None:
        for id in sorted((id for id in set(ids) if after is None or id < after), reverse=True):
            found += await _workflow(server, id, held)
        return found[:limit]
    last = "+" if after is None else f"({after}"
    while len(found) < limit:
        names = await server.command("ZREVRANGEBYLEX", f"{prefix}flows", last, "-", "LIMIT", 0, PAGE)
        if not names:
            break
        for name in names:
            if len(found) < limit:
                found += await _workflow(server, name.decode(), held)
        last = f"({names[-1].decode()}"
    return found


async def _workflow(server: Server, id: str, held: Counter[str]) -> list[WorkflowCounts]:
    names = (ACTIVE, *(state.value for state in COUNTED))
    stored = await server.command("HMGET", f"{server.prefix}flowcounts", *(f"{name} {id}" for name in names))
    active, *others = (int(number or 0) for number in stored)
    claimed = min(held[id], active)  # some may have ended since those were read
    numbers = {State.READY: active - claimed, State.INFLIGHT: claimed, **dict(zip(COUNTED, others, strict=True))}
    states = {state: number for state, number in numbers.items() if number}
    first = await server.command("ZRANGE", f"{server.prefix}flowborn:{id}", 0, 0, "WITHSCORES")
    if not states or not first:
        return []
    return [WorkflowCounts(id=id, created_at=moment(f"{float(first[1]):.0f}"), states=states)]


async def parents(server: Server, id: str, most: int) -> list[Parent]:
    """The dependencies of a job in order (K3)."""
    reply = await server.run(LOOK, 0, 1, id, 0)
    jobs = {name: stored.record for name, stored in looked(reply) if stored is not None}
    edges = sorted(
        (int(reply[-1][n + 1]), *reply[-1][n + 2].decode().split(" ", 2)) for n in range(0, len(reply[-1]), 3)
    )
    known = [(policy, satisfied == "1", jobs[parent]) for _, policy, satisfied, parent in edges if parent in jobs]
    sizes = [len(job.result or b"") for _, _, job in known]
    fits = sum(sizes) <= most
    return [
        Parent(job.id, policy, satisfied, job.state, job.result if fits else None, job.last_error, size)
        for (policy, satisfied, job), size in zip(known, sizes, strict=True)
    ]


async def paused(server: Server) -> set[str]:
    """The paused queues."""
    return {name.decode() for name in await server.command("SMEMBERS", f"{server.prefix}paused")}


async def to_sweep(server: Server, now: datetime, limit: int) -> list[str]:
    """Jobs that have expired, up to `limit`, and all claimed ones that were asked to stop."""
    expired = await server.command("ZRANGEBYSCORE", f"{server.prefix}expiring", "-inf", micros(now), "LIMIT", 0, limit)
    stopping = await server.command("ZRANGE", f"{server.prefix}stopping", 0, -1)
    return [id.decode() for id in dict.fromkeys((*expired, *stopping))]


async def next_due(server: Server, queues: Sequence[str]) -> datetime | None:
    """When the next job of the queues is due, or a lease runs out."""
    closed = await paused(server)
    times: list[datetime] = []
    for queue in queues:
        if queue not in closed:
            for name in await _ranks(server, queue):
                first = await server.command("ZRANGE", name, 0, FIRST - 1)
                for job in await get(server, [each[16:].decode() for each in first]):
                    if job is not None and job.stop_requested_at is None:
                        times.append(job.due_at if job.lease is None else job.lease.expires_at)
                        break
    for job in await _first_leases(server):
        if job.lease is None or job.stop_requested_at is not None:  # the latter is for the sweep only
            continue
        if job.queue in queues and job.queue not in closed:
            times.append(job.lease.expires_at)
            break
    return min(times, default=None)


async def _first_leases(server: Server) -> list[JobRecord]:
    ids = await server.command("ZRANGE", f"{server.prefix}leases", 0, PAGE)
    return [job for job in await get(server, [id.decode() for id in ids]) if job is not None]


async def tallies(server: Server, since: datetime) -> list[Tally]:
    """The totals of the minutes at or after `since`."""
    found: list[Tally] = []
    for minute in await server.command("ZRANGEBYSCORE", f"{server.prefix}minutes", micros(since), "+inf"):
        stored = await server.command("HGETALL", f"{server.prefix}tally:{minute.decode()}")
        sums: dict[str, dict[str, int]] = {}
        for name, value in zip(stored[::2], stored[1::2], strict=True):
            what, _, key = name.decode().partition(" ")
            sums.setdefault(key, {})[what] = int(value)
        for key in sums:
            total = sums[key]
            found.append(
                Tally(
                    moment(minute.decode()),
                    *_name(key),
                    total.get("count", 0),
                    total.get("ran", 0) / 1e6,
                    total.get("waited", 0) / 1e6,
                )
            )
    return sorted(found, key=lambda it: (it.minute, it.queue, it.task, it.outcome))
