"""What the end of a job means for those that wait for it (K2, K4), and how a job that nobody runs ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby

from taskharbor.core.dependency import Effect, effect
from taskharbor.core.job import LAST_MOMENT
from taskharbor.core.states import CANCELLED, State
from taskharbor.drivers.postgres.db import Db, Row
from taskharbor.drivers.shared.columns import STATES
from taskharbor.errors import StoreCorrupt

# A look into `live` and then into `ended` misses a row that moves between the two. The next look finds it, unless it
# has moved again.
LOOKS = 10

# What a job came to, and until when those are kept that it takes along; and a job that has ended, with its id.
Came = tuple[State, datetime]
Ended = tuple[str, State, datetime]


async def dependants(db: Db, ids: Sequence[str]) -> Sequence[Row]:
    """The edges to those who still wait for these jobs: parent, child, position, policy."""
    return await db.rows("dependants", list(ids)) if ids else []


async def tell(db: Db, ended: Sequence[Ended], edges: Sequence[Row], now: datetime) -> bool:
    """Carry terminal moves on to the dependants, and from cancelled ones to theirs; whether any is in line now.

    Each edge is satisfied once. What is satisfied is counted off first, once for each dependant: whoever has an edge
    that cancels it has one that is never satisfied, and is not released. It is cancelled by the first of its parents.
    A job is held before its edges, by whoever deletes it too; and nobody else ends a parent that this step has ended.
    """
    released = False
    lost: list[tuple[datetime, list[str]]] = []  # to be cancelled, the next one last: a line of them may be very long
    while True:
        if edges:
            states = {id: state for id, state, _ in ended}
            met = [edge for edge in edges if effect(edge[3], states[edge[0]]) is Effect.SATISFY]
            dropped = [edge for edge in edges if effect(edge[3], states[edge[0]]) is Effect.CANCEL]
            counts = Counter(edge[1] for edge in met)
            await hold(db, {edge[1] for edge in dropped}.union(counts))
            if met:
                released |= await _release(db, counts, now)
                await db.rows("dependants_satisfy", [edge[1] for edge in met], [edge[2] for edge in met])
            lost += reversed(_taken_along(ended, dropped))
        if not lost:
            return released
        keep_until, children = lost.pop()
        gone = [id for id, *_ in await _withdraw(db, children, ("waiting",), now, keep_until)]
        ended = [(id, CANCELLED, keep_until) for id in gone]
        edges = await dependants(db, gone)


def _taken_along(ended: Sequence[Ended], edges: Sequence[Row]) -> list[tuple[datetime, list[str]]]:
    """Which dependants are cancelled, and until when they are kept, in the order of what ended."""
    children: dict[str, list[str]] = {}
    for parent, child, *_ in edges:
        children.setdefault(parent, []).append(child)
    first: dict[str, datetime] = {}
    for id, _, keep_until in ended:
        for child in children.get(id, ()):
            first.setdefault(child, keep_until)
    return [(keep_until, list(some)) for keep_until, some in groupby(first, key=first.__getitem__)]


async def hold(db: Db, ids: Collection[str]) -> None:
    """Of several live jobs that a step is about to change, take hold in the order that everybody keeps to."""
    if len(ids) > 1:
        await db.rows("hold", list(ids))


async def _release(db: Db, counts: Mapping[str, int], now: datetime) -> bool:
    """Count dependencies off, whether a job is live, has ended, or is on its way from one to the other; whether any is
    in line now."""
    left, released = dict(counts), False
    for _ in range(LOOKS):
        rows = await db.rows("dependants_release", list(left), list(left.values()), now)
        released |= any(row[1] for row in rows)
        left = _less(left, rows)
        if left:
            left = _less(left, await db.rows("dependants_release_ended", list(left), list(left.values())))
        if left:
            stored = {row[0] for row in await db.rows("states", list(left))}
            left = {id: met for id, met in left.items() if id in stored}
        if not left:
            return released
    raise nowhere(min(left))


def _less(counts: Mapping[str, int], rows: Iterable[Row]) -> dict[str, int]:
    hit = {row[0] for row in rows}
    return {id: met for id, met in counts.items() if id not in hit}


def nowhere(id: str) -> StoreCorrupt:
    """What there is to say about a job that is neither live nor has ended, however often one looks."""
    return StoreCorrupt(f"job {id} is stored, but nothing says in what state: delete its row of the table `job`")


async def withdraw(
    db: Db, ids: Collection[str], states: Sequence[str], now: datetime, keep_until: datetime
) -> list[str]:
    """End jobs that are in one of these states, which nobody runs, and tell their dependants; which ones it were."""
    return await told(db, ids, await _withdraw(db, ids, states, now, keep_until), now)


async def told(db: Db, ids: Iterable[str], ended: Sequence[Ended], now: datetime) -> list[str]:
    """Tell the dependants of jobs that ended in one step, in the order of `ids`; which ones it were."""
    by_id = {it[0]: it for it in ended}
    gone = [id for id in ids if id in by_id]
    await tell(db, [by_id[id] for id in gone], await dependants(db, gone), now)
    return gone


async def _withdraw(
    db: Db, ids: Iterable[str], states: Sequence[str], now: datetime, keep_until: datetime
) -> list[Ended]:
    rows = await db.rows("withdraw", sorted(ids), list(states), now, keep_until, LAST_MOMENT)
    ended = [(id, STATES[state], until) for id, state, until in rows]
    await free_keys(db, [id for id, state, _ in ended if state is CANCELLED])
    return ended


async def free_keys(db: Db, cancelled: Sequence[str]) -> None:
    """Let cancelled jobs give their keys up, but for those that are kept (T3, M1)."""
    if cancelled:
        await db.rows("key_free", sorted(cancelled), False)
