"""The counts of jobs by state, of queues and of workflows.

A count may be off by some number, which stays the same while workers count up and down. So it is enough to know counts
and jobs at one moment, and to subtract the difference at any later one. Up to `MOST` heads are read at the moment of
the counts: all, or if there are more, those that may be moving. The others are read before and after: one that is the
same both times was the same at that moment. If too many move, the totals of queues are not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from taskharbor.drivers.redis.connection import Arg
from taskharbor.drivers.redis.entries import FLOW_COUNTS, flow_counts
from taskharbor.drivers.redis.parts import head_of
from taskharbor.drivers.redis.repair.bites import Bites, Misfit
from taskharbor.drivers.shared.columns import STATES

MOST = 10_000
ROUNDS = 5
AT_ONCE = 1000
COUNTS, FLOWS = "counts", "flowcounts"
MARKER = "repairs"  # so that no two repairs subtract the same
ENDED = (b"done ", b"dlq ", b"cancelled ")


class Moment(Struct):
    """A reading at one moment: the number of the last job, the counts, and some heads."""

    marker: bytes | None
    last: int
    counts: Counter[str]
    heads: dict[str, bytes | None]


async def check(bites: Bites) -> bool:
    """Compare all totals; False if too many jobs were moving."""
    counted = await _queues(bites)
    async for names in bites.pages("ZSCAN", "flows", 2):
        for name in names:
            await bites.mend([name.decode()], lambda found: _flow(bites, found[0]))
    async for fields in bites.pairs(FLOWS):
        await bites.mend([name for name, value in fields.items() if value != b"0"], lambda them: _gone(bites, them))
    return counted


async def _queues(bites: Bites) -> bool:
    seen: dict[str, bytes] = {}
    recent = await _scan(bites, seen)
    for _ in range(ROUNDS):
        moment = await _moment(bites, _moving(seen, recent))
        changed = await _scan(bites, seen)
        if not any(id not in moment.heads and _number(seen.get(id)) <= moment.last for id in changed):
            still = {id: head for id, head in seen.items() if id not in changed}
            await _subtract(bites, moment, _counted((still | moment.heads).values()))
            return True
        recent = changed
    return False


async def _scan(bites: Bites, seen: dict[str, bytes]) -> dict[str, None]:
    """Read all heads; return the ids of those that have changed, come or gone, in the order in which they are met."""
    changed: dict[str, None] = {}
    there: set[str] = set()
    async for heads in bites.pairs("job"):
        there |= heads.keys()
        changed |= {id: None for id, head in heads.items() if seen.get(id) != head}
        seen |= heads
    gone = seen.keys() - there
    for id in gone:
        del seen[id]
    return changed | dict.fromkeys(gone)


def _moving(seen: dict[str, bytes], recent: Iterable[str]) -> list[str]:
    if len(seen) <= MOST:
        return list(seen)
    return [*dict.fromkeys([*(id for id, head in seen.items() if not head.startswith(ENDED)), *recent])][:MOST]


async def _moment(bites: Bites, ids: Sequence[str]) -> Moment:
    commands: list[tuple[Arg, ...]] = [("GET", MARKER), ("GET", "seq"), ("HGETALL", COUNTS)]
    marker, last, counts, *heads = await bites.read([*commands, *_heads(ids)])
    stored = zip(counts[::2], counts[1::2], strict=True)
    return Moment(marker, int(last or 0), Counter({k.decode(): int(v) for k, v in stored}), _by_id(ids, heads))


def _heads(ids: Sequence[str]) -> list[tuple[Arg, ...]]:
    return [("HMGET", "job", *ids[first : first + AT_ONCE]) for first in range(0, len(ids), AT_ONCE)]


def _by_id(ids: Sequence[str], replies: Sequence[Any]) -> dict[str, bytes | None]:
    return dict(zip(ids, (head for reply in replies for head in reply), strict=True))


def _number(head: bytes | None) -> int:
    return 0 if head is None else head_of(head).seq


def _counted(heads: Iterable[bytes | None]) -> Counter[str]:
    read = [head_of(head) for head in heads if head is not None]
    return Counter(f"{head.state} {head.queue}" for head in read)


async def _subtract(bites: Bites, moment: Moment, true: Counter[str]) -> None:
    """Correct the counts by how much they were off at that moment."""
    names = [name for name in moment.counts.keys() | true.keys() if moment.counts[name] != true[name]]
    same = [("GET", MARKER, "", moment.marker)]
    found = [
        Misfit(
            f"counts has {moment.counts[name]} for {name}, not {true[name]}",
            same,
            [("HINCRBY", COUNTS, name, true[name] - moment.counts[name]), ("INCR", MARKER)],
        )
        for name in names
    ]

    async def once(_: Sequence[str]) -> list[Misfit]:
        return found

    await bites.mend([COUNTS], once)


async def _flow(bites: Bites, workflow: str) -> list[Misfit]:
    """The counts of one workflow, which are read together with its jobs."""
    (size,) = await bites.read([("ZCARD", f"flow:{workflow}")])
    if not 0 < size <= MOST:
        return []
    (members,) = await bites.read([("ZRANGE", f"flow:{workflow}", 0, -1)])
    ids = [id.decode() for id in members]
    fields = [f"{name} {workflow}" for name in FLOW_COUNTS]
    marker, size, stored, *heads = await bites.read(
        [("GET", MARKER), ("ZCARD", f"flow:{workflow}"), ("HMGET", FLOWS, *fields), *_heads(ids)]
    )
    true: Counter[str] = Counter()
    for head in _by_id(ids, heads).values():
        if head is not None:
            true.update(flow_counts(STATES[head_of(head).state]))
    same = [("GET", MARKER, "", marker), ("ZCARD", f"flow:{workflow}", "", b"%d" % size)]
    return [
        Misfit(
            f"flowcounts has {int(known or 0)} for {name} of {workflow}, not {true[name]}",
            same,
            [("HINCRBY", FLOWS, f"{name} {workflow}", true[name] - int(known or 0)), ("INCR", MARKER)],
        )
        for name, known in zip(FLOW_COUNTS, stored, strict=True)
        if size == len(ids) and int(known or 0) != true[name]
    ]


async def _gone(bites: Bites, fields: Sequence[str]) -> list[Misfit]:
    """Counts of workflows without jobs."""
    workflows = [field.partition(" ")[2] for field in fields]
    sizes = await bites.read([("ZCARD", f"flow:{workflow}") for workflow in workflows])
    return [
        Misfit(
            f"flowcounts has {field}, a workflow without jobs",
            [("ZCARD", f"flow:{it}", "", b"0")],
            [("HDEL", FLOWS, field)],
        )
        for field, it, size in zip(fields, workflows, sizes, strict=True)
        if not size
    ]
