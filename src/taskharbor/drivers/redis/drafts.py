"""Runs steps of the core: reads with revisions, commits if nothing that was read has changed, else starts again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Concatenate, ParamSpec, TypeVar

import msgspec
from msgspec.structs import replace

from taskharbor.core.backoff import Backoff
from taskharbor.core.job import JobRecord
from taskharbor.core.schedule import Schedule
from taskharbor.core.states import INFLIGHT, READY, TERMINAL
from taskharbor.core.steps.draft import Draft, EdgePlace
from taskharbor.core.steps.needs import (
    KeptUntil,
    Keys,
    Look,
    Members,
    NamedSchedules,
    Need,
    Owned,
    Payloads,
    StoredEdge,
    VerbStep,
)
from taskharbor.core.tally import Tally
from taskharbor.drivers.redis.calls import RedisCalls
from taskharbor.drivers.redis.connection import Arg
from taskharbor.drivers.redis.entries import FLOW_COUNTS, Write, changes, difference, entries, numbers, together
from taskharbor.drivers.redis.parts import PARTS, Head, micros, split
from taskharbor.drivers.redis.reader import Compared, Reader, StoredJob
from taskharbor.drivers.redis.scripts import load
from taskharbor.errors import DriverUnavailable

P = ParamSpec("P")
R = TypeVar("R")

COMMIT = load("commit")
# A write that needs no memory. A full server takes those behind it in the same script, as `insist` in `head.lua` says.
INSIST: Write = ("DEL", "")
# Conflicts in a row after which a step gives up: each means that another step has committed.
MOST_TRIES = 50
CONFLICT = Backoff(base=0.001, cap=0.05, spread=1.0)
RNG = Random()

_pack = msgspec.msgpack.Encoder().encode
_schedule = msgspec.msgpack.Decoder(Schedule).decode


async def run(
    calls: RedisCalls, step: Callable[Concatenate[Draft, P], VerbStep[R]], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Run a step until it commits."""
    found = await run_if(calls, {}, step, *args, **kwargs)
    assert found is not None
    return found[0]


async def run_if(
    calls: RedisCalls,
    guards: Mapping[Compared, bytes | None],
    step: Callable[Concatenate[Draft, P], VerbStep[R]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> tuple[R] | None:
    """Run a step until it commits while these comparisons hold; None if one does not."""
    for attempt in range(MOST_TRIES):
        reader, draft = Reader(calls), Draft()
        reader.compares |= guards
        try:
            answer = await _run(reader, draft, step(draft, *args, **kwargs))
            writes = await _writes(reader, draft)
        except Exception:
            if await _commit(calls, reader.compares, []):  # what was read was true: the step itself refuses
                raise
        else:
            if (not writes and len(reader.compares) <= 1) or await _commit(calls, reader.compares, writes):
                return (answer,)
        if guards and not await _commit(calls, guards, []):
            return None
        if attempt:  # nearly always the second try commits
            await calls.pause(CONFLICT.delay(attempt, RNG))
    raise DriverUnavailable(f"others changed the same jobs {MOST_TRIES} times in a row: nothing was changed, try again")


async def _commit(calls: RedisCalls, compared: Mapping[Compared, bytes | None], writes: Sequence[Write]) -> bool:
    compares: list[Arg] = []
    for (command, key, member), value in compared.items():
        compares += (command, key, member, int(value is not None), value or b"")
    words = [word for write in writes for word in (len(write), *write)]
    return bool(await calls.run(COMMIT, len(compared), *compares, *words))


async def write(calls: RedisCalls, *writes: Write) -> None:
    """Write what rests on nothing that was read, also to a full server."""
    await _commit(calls, {}, [INSIST, *writes])


async def _run(reader: Reader, draft: Draft, step: VerbStep[R]) -> R:
    while True:
        try:
            need = next(step)
        except StopIteration as end:
            answer: R = end.value
            return answer
        await _answer(reader, draft, need)


async def _answer(reader: Reader, draft: Draft, need: Need) -> None:
    match need:
        case Look(ids, above, below):
            edges = await reader.look(ids, above, below)
            ends = (end for edge in edges for end in (edge.child, edge.parent))
            _learn(reader, draft, (*ids, *above, *below, *ends))
            draft.learn_edges(edges)
        case Keys(keys, unfinished):
            await _look_up(reader, draft, keys, unfinished)
        case Owned(workflows):
            await _look_up(reader, draft, await reader.keys_of(workflows), unfinished=False)
        case KeptUntil(workflows):
            draft.kept |= await reader.kept_until(workflows)
        case Members(workflow, most):
            jobs = await reader.members(workflow, most)
            draft.learn((), jobs)
            draft.members[workflow] = [job.id for job in jobs]
        case Payloads(ids):
            draft.payloads |= {id: draft.existing(id).payload for id in ids}
        case NamedSchedules(names):
            await _learn_schedules(reader, draft, names)


async def _learn_schedules(reader: Reader, draft: Draft, names: Sequence[str]) -> None:
    stored = await reader.values("schedules", [f"={name}" for name in names])  # a name may be empty
    for name, found in zip(names, stored, strict=True):
        draft.schedules.learn(name, None if found is None else _schedule(found))


def _learn(reader: Reader, draft: Draft, ids: Iterable[str]) -> None:
    asked = list(dict.fromkeys(ids))
    stored = [reader.jobs.get(id) for id in asked]
    draft.learn(asked, [each.record for each in stored if each is not None])


async def _look_up(reader: Reader, draft: Draft, keys: Sequence[str], unfinished: bool) -> None:
    known = await reader.keys(keys)
    for key, stored in zip(keys, known, strict=True):
        draft.keys.learn(key, stored)
    if unfinished:
        draft.unfinished |= await reader.unfinished([stored.owner for stored in known if stored is not None])


async def _writes(reader: Reader, draft: Draft) -> list[Write]:
    """The commands that write the changes of a draft. A full server refuses them only if they store new jobs."""
    for workflow, until in draft.keep.items():
        await _prolong(reader, draft, workflow, until)
    changed = [(id, after) for id, before, after in draft.jobs.changes() if before is not after]
    removed = [id for id, after in changed if after is None]
    around = await reader.look((), removed, removed) if removed else []  # also edges that the step did not look at
    parents = {edge.parent for _, before, edge in draft.edges.changes() if edge is not None and before is None}
    fresh = [id for id, after in changed if after is not None and reader.jobs.get(id) is None]
    seq = 0
    if fresh:
        seq = int(await reader.calls.command("INCRBY", f"{reader.calls.prefix}seq", len(fresh))) - len(fresh)
    seqs = {id: seq + 1 + place for place, id in enumerate(fresh)}
    writes: list[Write] = []
    for id, after in changed:
        writes += _job(reader.jobs.get(id), id, after, seqs.get(id, 0), id in parents)
    for id in parents - {id for id, _ in changed}:
        if (stored := reader.jobs.get(id)) is not None:  # so that a step that saw it without the edge starts again
            writes.append(("HSET", "job", id, replace(stored.head, rev=stored.head.rev + 1, cold=1).text()))
    writes += _edges(draft, around)
    writes += await _changed_keys(reader, draft)
    for name, _, schedule in draft.schedules.changes():
        gone, field = schedule is None, f"={name}"  # a name may be empty
        writes.append(("HDEL", "schedules", field) if gone else ("HSET", "schedules", field, _pack(schedule)))
    for tally in draft.tallies:
        writes += _tallied(tally)
    writes += await _flows_gone(reader, changed)
    writes = list(together(writes + _hints(draft)))
    return writes if fresh or not writes else [INSIST, *writes]


async def _prolong(reader: Reader, draft: Draft, workflow: str, until: datetime) -> None:
    """Keep the records of a workflow that has to stay."""
    before = micros(until)
    name = f"{reader.calls.prefix}flowends:{workflow}"
    found = await reader.calls.command("ZRANGEBYSCORE", name, "-inf", f"({before}")
    ids = [id.decode() for id in found]
    if ids:
        await reader.look(ids, (), ())
    for id in ids:
        if id not in draft.jobs.before:
            _learn(reader, draft, [id])
            job = draft.job(id)
            if job is not None and job.keep_until is not None and job.keep_until < until:
                draft.put(replace(job, keep_until=until))


def _job(stored: StoredJob | None, id: str, after: JobRecord | None, seq: int, is_parent: bool) -> Iterator[Write]:
    """The commands that write one job, with its entries in the indexes."""
    head = Head("") if stored is None else stored.head
    seq = head.seq or seq
    before_entries = {} if stored is None else entries(stored.record, seq, head.lined)
    before_numbers = {} if stored is None else numbers(stored.record)
    if after is None:
        for part in PARTS:
            yield "HDEL", part, id
        yield from difference(before_entries, {})
        yield from changes(before_numbers, {})
        return
    is_same_lease = stored is not None and after.state is INFLIGHT and after.lease == stored.record.lease
    lined = head.lined if is_same_lease else 0
    cold = int(head.cold or is_parent or after.workflow_id is not None)
    was = {} if stored is None else msgspec.structs.asdict(stored.parts)
    for part, value in split(after, seq, head.rev + 1, lined, cold).items():
        if value is None and was.get(part) is not None:
            yield "HDEL", part, id
        elif value is not None and value != was.get(part):
            yield "HSET", part, id, value
    yield from difference(before_entries, entries(after, seq, lined))
    yield from changes(before_numbers, numbers(after))


def _edges(draft: Draft, gone: Sequence[StoredEdge]) -> Iterator[Write]:
    changed: dict[EdgePlace, tuple[StoredEdge | None, StoredEdge | None]] = {
        (edge.child, edge.position): (edge, None) for edge in gone
    }
    changed |= {place: (before, after) for place, before, after in draft.edges.changes()}
    for (child, position), (before, after) in changed.items():
        edge = after or before
        if edge is None:
            continue
        place = f"{position} {child}"
        if after is None:
            yield "HDEL", f"up:{child}", str(position)
            yield "SREM", f"down:{edge.parent}", place
        else:
            yield "HSET", f"up:{child}", str(position), f"{edge.policy} {int(edge.satisfied)} {edge.parent}"
            yield "SADD", f"down:{edge.parent}", place


async def _changed_keys(reader: Reader, draft: Draft) -> list[Write]:
    writes: list[Write] = []
    owned: dict[str, list[str]] = {}
    changed = list(draft.keys.changes())
    await reader.values("flowkeys", [each.owner for _, *both in changed for each in both if each is not None])
    for key, before, after in changed:
        if after is None:
            writes.append(("HDEL", "keys", key))
        else:
            writes.append(("HSET", "keys", key, _pack((after.owner, after.digest, after.expires_at))))
        for owner in dict.fromkeys(each.owner for each in (before, after) if each is not None):
            if not _is_jobs(draft, owner, key):
                keys = owned[owner] if owner in owned else await reader.keys_of([owner])
                is_owned = after is not None and after.owner == owner
                owned[owner] = [each for each in keys if each != key] + ([key] if is_owned else [])
    for owner, keys in owned.items():
        writes.append(("HSET", "flowkeys", owner, _pack(keys)) if keys else ("HDEL", "flowkeys", owner))
    return writes


def _is_jobs(draft: Draft, owner: str, key: str) -> bool:
    """Whether a job owns the key, and not a workflow, which may have the same id as a job."""
    records = draft.jobs.known.get(owner), draft.jobs.before.get(owner)
    return any(job is not None and job.idempotency_key == key for job in records)


def counted(tally: Tally) -> tuple[str, int, int, int]:
    """A total as stored: its name, runs, microseconds that they ran, and waited."""
    name = msgspec.json.encode((tally.queue, tally.task, tally.outcome)).decode()
    return name, tally.count, round(tally.seconds * 1e6), round(tally.waited * 1e6)


def _tallied(tally: Tally) -> Iterator[Write]:
    """The commands that add to a total."""
    minute = micros(tally.minute)
    name, *numbers = counted(tally)
    for what, by in zip(("count", "ran", "waited"), numbers, strict=True):
        yield "HINCRBY", f"tally:{minute}", f"{what} {name}", by
    yield "ZADD", "minutes", minute, str(minute)


async def _flows_gone(reader: Reader, changed: Sequence[tuple[str, JobRecord | None]]) -> list[Write]:
    """The commands that forget workflows whose last job goes."""
    going = Counter(
        stored.record.workflow_id for id, after in changed if after is None and (stored := reader.jobs[id]) is not None
    )
    staying = {after.workflow_id for _, after in changed if after is not None}
    writes: list[Write] = []
    for workflow, number in going.items():
        if workflow is None or workflow in staying:
            continue
        if await reader.size(f"flow:{workflow}") == number:
            writes.append(("ZREM", "flows", workflow))
            writes.append(("HDEL", "flowcounts", *(f"{name} {workflow}" for name in FLOW_COUNTS)))
    return writes


def _hints(draft: Draft) -> list[Write]:
    states = [after.state for _, before, after in draft.jobs.changes() if after is not None and after is not before]
    ready = [("PUBLISH", "wake", "")] if READY in states else []
    return [*ready, *([("PUBLISH", "ends", "")] if any(state in TERMINAL for state in states) else [])]
