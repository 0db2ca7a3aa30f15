"""What the end of a job means for those that wait for it (K2, K4), and how a job that nobody runs is cancelled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from taskharbor.core.dependency import Effect, effect
from taskharbor.core.states import CANCELLED, State
from taskharbor.drivers.postgres.db import Db, Row
from taskharbor.errors import StoreCorrupt

# A look into `live` and then into `ended` misses a row that moves between the two. The next look finds it, unless it
# has moved again.
LOOKS = 10


async def with_dependants(db: Db, ids: Sequence[str]) -> set[str]:
    """Those of the jobs that somebody waits for."""
    return {row[0] for row in await db.rows("dependants_open", list(ids))}


async def tell(db: Db, ended: Mapping[str, State], now: datetime, keep_until: datetime) -> None:
    """Carry terminal moves on to the dependants, and from cancelled ones to theirs. Each edge is satisfied once.

    A job is held before its edges, by whoever deletes it too; and nobody else ends a parent that this step has ended.
    """
    while ended:
        edges = await db.rows("dependants", list(ended))
        met = [edge for edge in edges if effect(edge[3], ended[edge[0]]) is Effect.SATISFY]
        lost = {edge[1] for edge in edges if effect(edge[3], ended[edge[0]]) is Effect.CANCEL}
        counts = Counter(edge[1] for edge in met)
        await hold(db, lost.union(counts))
        if met:
            await _release(db, counts, now)
            await db.rows("dependants_satisfy", [edge[1] for edge in met], [edge[2] for edge in met])
        gone = await _withdraw(db, lost, ("waiting",), now, keep_until) if lost else []
        ended = dict.fromkeys(gone, CANCELLED)


async def hold(db: Db, ids: Collection[str]) -> None:
    """Of several live jobs that a step is about to change, take hold in the order that everybody keeps to."""
    if len(ids) > 1:
        await db.rows("hold", list(ids))


async def _release(db: Db, counts: Mapping[str, int], now: datetime) -> None:
    """Count dependencies off, whether a job is live, has ended, or is on its way from one to the other."""
    left = dict(counts)
    for _ in range(LOOKS):
        left = _less(left, await db.rows("dependants_release", list(left), list(left.values()), now))
        if left:
            left = _less(left, await db.rows("dependants_release_ended", list(left), list(left.values())))
        if left:
            stored = {row[0] for row in await db.rows("states", list(left))}
            left = {id: met for id, met in left.items() if id in stored}
        if not left:
            return
    raise nowhere(min(left))


def _less(counts: Mapping[str, int], rows: Iterable[Row]) -> dict[str, int]:
    hit = {row[0] for row in rows}
    return {id: met for id, met in counts.items() if id not in hit}


def nowhere(id: str) -> StoreCorrupt:
    """What there is to say about a job that is neither live nor has ended, however often one looks."""
    return StoreCorrupt(f"job {id} is stored, but nothing says in what state: delete its row of the table `job`")


async def withdraw(db: Db, ids: Iterable[str], states: Sequence[str], now: datetime, keep_until: datetime) -> list[str]:
    """Cancel jobs that are in one of these states, which nobody runs, and tell their dependants; which ones it were."""
    gone = await _withdraw(db, ids, states, now, keep_until)
    await tell(db, dict.fromkeys(gone, CANCELLED), now, keep_until)
    return gone


async def _withdraw(
    db: Db, ids: Iterable[str], states: Sequence[str], now: datetime, keep_until: datetime
) -> list[str]:
    gone = [row[0] for row in await db.rows("withdraw", sorted(ids), list(states), now, keep_until)]
    if gone:
        await db.rows("key_free", gone)
    return gone
