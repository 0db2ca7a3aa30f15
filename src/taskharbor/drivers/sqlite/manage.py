"""Pause, sweep and prune. The other acts on jobs are steps of the core, which the driver runs directly."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from apsw import Connection

from taskharbor.core.steps import forget, stop
from taskharbor.drivers.shared.queries import BEYOND_ALL
from taskharbor.drivers.sqlite.drafts import run
from taskharbor.drivers.sqlite.rows import SqliteRow, micros
from taskharbor.drivers.sqlite.sql import load

PAUSE, UNPAUSE = load("pause"), load("pause_end")
STOPPING, EXPIRED = load("sweep_stopping"), load("sweep_expired")
PRUNE, PRUNE_PLAIN = load("prune"), load("prune_delete")
PRUNE_KEY, PRUNE_EDGES = load("key_free"), load("step_remove_edges")


def pause(db: Connection, queue: str, paused: bool) -> None:
    """Stop or resume handing out the jobs of a queue."""
    db.execute(PAUSE if paused else UNPAUSE, (queue,))


def sweep(db: Connection, now: datetime, keep_until: datetime, limit: int) -> int:
    """End jobs that expired or were asked to stop and that no worker holds (T1, N1)."""
    swept = 0
    for candidates in (STOPPING, EXPIRED):
        # A job that ends may cancel dependants that were found too, so there may be fewer to end.
        while swept < limit:
            found: list[str] = [id for (id,) in db.execute(candidates, (micros(now), limit - swept))]
            ended = run(db, stop.sweep, found, now, keep_until, limit - swept) if found else 0
            if not ended:
                break
            swept += ended
    return swept


def prune(db: Connection, now: datetime, limit: int) -> int:
    """Remove jobs past their retention, with their keys (X8)."""
    pruned = 0
    place: SqliteRow = (-BEYOND_ALL, 0)
    while pruned < limit:
        rows: list[SqliteRow] = db.execute(PRUNE, (micros(now), *place, limit - pruned)).fetchall()
        if not rows:
            break
        if any(workflow is not None for _, workflow, _, _ in rows):
            pruned += run(db, forget.prune, [row[0] for row in rows], now, limit - pruned)
        else:
            pruned += _prune_plain(db, [row[3] for row in rows])
        place = rows[-1][2:]
    return pruned


def _prune_plain(db: Connection, numbers: Sequence[int]) -> int:
    """Remove jobs that belong to no workflow, which are most, without reading them."""
    gone: list[SqliteRow] = db.execute(PRUNE_PLAIN, (msgspec.json.encode(numbers).decode(),)).fetchall()
    db.executemany(PRUNE_KEY, [(key, id) for id, key in gone if key is not None])
    db.execute(PRUNE_EDGES, (msgspec.json.encode([id for id, _ in gone]).decode(),))
    return len(gone)
