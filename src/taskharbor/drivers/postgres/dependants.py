"""Applies the end of a job to its dependants (K2, K4): successes by statements, the rest as a step of the core."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from taskharbor.core.dependency import Effect, effect
from taskharbor.core.states import State
from taskharbor.core.steps.dependants import apply_stored_ends
from taskharbor.drivers.postgres.db import Db, Row
from taskharbor.drivers.postgres.drafts import LIVE, LOOKS, nowhere, run


async def dependants(db: Db, ids: Sequence[str]) -> Sequence[Row]:
    """The edges to dependants that still wait for these jobs: parent, child, position, policy."""
    return await db.rows("dependants", list(ids)) if ids else []


async def apply_ends(db: Db, states: Mapping[str, State], edges: Sequence[Row], now: datetime) -> bool:
    """Apply the end of jobs to their dependants, and of cancelled ones to theirs; return whether any is in line now.

    Satisfied edges are counted off first, once for each dependant. A dependant that is to be cancelled has an edge
    that is never satisfied, so it is not released. A job is locked before its edges.
    """
    effects = [(effect(edge[3], states[edge[0]]), edge) for edge in edges]
    met = [edge for outcome, edge in effects if outcome is Effect.SATISFY]
    cancelling = {edge[0] for outcome, edge in effects if outcome is Effect.CANCEL}
    released = False
    await hold(db, {edge[1] for outcome, edge in effects if outcome is not Effect.HOLD})
    if met:
        counts = Counter(edge[1] for edge in met)
        released = await _release(db, counts, now)
        await db.rows("dependants_satisfy", [edge[1] for edge in met], [edge[2] for edge in met])
    if cancelling:
        released |= await run(db, LIVE, apply_stored_ends, [id for id in states if id in cancelling], now)
    return released


async def hold(db: Db, ids: Collection[str]) -> None:
    """Lock several live jobs that are about to change, in the order that every transaction keeps to."""
    if len(ids) > 1:
        await db.rows("hold", list(ids))


async def _release(db: Db, counts: Mapping[str, int], now: datetime) -> bool:
    """Count dependencies off, whether a job is live, has ended, or is moving; return whether any is in line now."""
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
