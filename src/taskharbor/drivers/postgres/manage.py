"""Acts of operators and of upkeep on jobs, as steps of the core; pause and plain prune are statements."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from taskharbor.core.evolve import DeadLetter, Replay
from taskharbor.core.line import SINCE_EVER
from taskharbor.core.steps import forget, stop
from taskharbor.core.steps import replay as replaying
from taskharbor.core.steps import reschedule as rescheduling
from taskharbor.driver import Cancellation, DeadLettering, Deletion, Replaying, Reschedule
from taskharbor.drivers.postgres.db import Db, Row
from taskharbor.drivers.postgres.drafts import ENDED, LIVE, run


async def cancel(db: Db, ids: Sequence[str], now: datetime, keep_until: datetime) -> list[Cancellation]:
    """Cancel ready and waiting jobs, and ask the holders of inflight ones to stop (T3)."""
    return await run(db, LIVE, stop.cancel, ids, now, keep_until)


async def dead_letter(db: Db, deaths: Sequence[DeadLetter], now: datetime) -> list[DeadLettering]:
    """Dead-letter ready and waiting jobs, and ask the holders of inflight ones to stop (Q4)."""
    return await run(db, LIVE, stop.dead_letter, deaths, now)


async def delete(db: Db, ids: Sequence[str]) -> list[Deletion]:
    """Remove ended jobs that no dependant needs (K3)."""
    return await run(db, ENDED, forget.delete, ids)


async def free_workflow_key(db: Db, workflow_id: str) -> bool:
    """Delete the key of a workflow (I2)."""
    return await run(db, LIVE, forget.free_workflow_key, workflow_id)


async def replay(db: Db, replays: Sequence[Replay], now: datetime) -> list[Replaying]:
    """Put dead or cancelled jobs back in line (Q2)."""
    return await run(db, ENDED, replaying.replay, replays, now)


async def reschedule(db: Db, changes: Sequence[Reschedule]) -> list[bool]:
    """Move ready jobs in time or rank."""
    return await run(db, LIVE, rescheduling.reschedule, changes)


async def pause(db: Db, queue: str, paused: bool) -> None:
    """Stop or resume handing out the jobs of a queue."""
    await db.rows("pause" if paused else "pause_end", queue)


async def sweep(db: Db, now: datetime, keep_until: datetime, limit: int) -> int:
    """End jobs that expired or were asked to stop and that no worker holds (T1, N1)."""
    swept = 0
    for candidates in ("sweep_stopping", "sweep_expired"):
        # A job that ends may cancel dependants that were found too, so there may be fewer to end.
        while swept < limit:
            found = [row[0] for row in await db.rows(candidates, now, limit - swept)]
            ended = await run(db, LIVE, stop.sweep, found, now, keep_until, limit - swept) if found else 0
            if not ended:
                break
            swept += ended
    return swept


async def prune(db: Db, now: datetime, limit: int) -> int:
    """Remove jobs past their retention, with their keys (X8, I2)."""
    pruned = 0
    place: Row = (SINCE_EVER, 0)
    while pruned < limit:
        rows = await db.rows("prune", now, *place, limit - pruned)
        if not rows:
            break
        ids = [row[0] for row in rows]
        if any(row[1] is not None for row in rows):
            pruned += await run(db, ENDED, forget.prune, ids, now, limit - pruned)
        else:
            pruned += await _prune_plain(db, ids)
        place = rows[-1][2:]
    return pruned


async def _prune_plain(db: Db, ids: Sequence[str]) -> int:
    """Remove jobs that belong to no workflow, which are most, without reading them."""
    gone = [row[0] for row in await db.rows("prune_delete", ids)]
    if gone:
        await db.rows("step_remove_edges", gone)
    return len(gone)
