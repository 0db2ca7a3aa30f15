"""What the end of a job means for those that wait for it (K2, K4), and how a job that nobody runs is cancelled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from taskharbor.core.dependency import Effect, effect
from taskharbor.core.states import CANCELLED, State
from taskharbor.drivers.postgres.db import Db

UNFINISHED = ("ready", "waiting", "inflight")


async def with_dependants(db: Db, ids: Sequence[str]) -> set[str]:
    """Those of the jobs that somebody waits for."""
    return {row[0] for row in await db.rows("dependants_open", list(ids))}


async def tell(db: Db, ended: Mapping[str, State], now: datetime, keep_until: datetime) -> None:
    """Carry terminal moves on to the dependants, and from cancelled ones to theirs. Each edge is satisfied once."""
    while ended:
        edges = await db.rows("dependants", sorted(ended))
        met = [edge for edge in edges if effect(edge[3], ended[edge[0]]) is Effect.SATISFY]
        if met:
            await db.rows("dependants_satisfy", [edge[1] for edge in met], [edge[2] for edge in met])
            counts = Counter(edge[1] for edge in met)
            await db.rows("dependants_release", list(counts), list(counts.values()), now)
            await db.rows("dependants_release_ended", list(counts), list(counts.values()))
        lost = {edge[1] for edge in edges if effect(edge[3], ended[edge[0]]) is Effect.CANCEL}
        gone = await _withdraw(db, lost, ("waiting",), now, keep_until) if lost else []
        ended = dict.fromkeys(gone, CANCELLED)


async def withdraw(
    db: Db, ids: Iterable[str], now: datetime, keep_until: datetime, states: Sequence[str] = UNFINISHED
) -> list[str]:
    """Cancel unfinished jobs that nobody runs, and tell their dependants; which ones it were."""
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
