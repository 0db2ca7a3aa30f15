"""Applies the end of a job to its dependants (K2, K4): successes by statements, the rest as a step of the core."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from apsw import Connection

from taskharbor.core.dependency import Effect, effect
from taskharbor.core.states import State
from taskharbor.core.steps.dependants import apply_stored_ends
from taskharbor.drivers.sqlite.drafts import run
from taskharbor.drivers.sqlite.rows import SqliteRow, moment
from taskharbor.drivers.sqlite.sql import load

ANY, DEPENDANTS = load("dependants_any"), load("dependants")
SATISFY, SATISFY_ALL = load("dependants_satisfy"), load("dependants_satisfy_all")
RELEASE = load("dependants_release")
FREE_KEY, DROP_KEY = load("key_free"), load("key_drop")

# A job that has ended: its id and its state.
EndedJob = tuple[str, State]
# The edges to dependants that still wait for a job, by its id.
EdgeRows = dict[str, list[SqliteRow]]


def dependants(db: Connection, ids: Iterable[str]) -> EdgeRows:
    """Return the open edges of these jobs. Most stores have none, which one read shows for a whole batch."""
    edges: EdgeRows = {}
    if db.execute(ANY).get is not None:
        for edge in db.execute(DEPENDANTS, (msgspec.json.encode(list(ids)).decode(),)):
            edges.setdefault(edge[0], []).append(edge)
    return edges


def apply_ends(db: Connection, ended: Sequence[EndedJob], edges: EdgeRows, now: int) -> None:
    """Apply the end of jobs to their dependants, and of cancelled ones to theirs.

    Satisfied edges are counted off first, once for each dependant, so a chord's finalizer costs one small step per
    batch of members. A dependant that is to be cancelled has an edge that is never satisfied, so it is not released.
    """
    effects = [
        (effect(policy, state), child, position, id)
        for id, state in ended
        for _, child, position, policy in edges.get(id, ())
    ]
    met = [(child, position) for outcome, child, position, _ in effects if outcome is Effect.SATISFY]
    db.executemany(SATISFY, met)
    _count_off(db, (child for child, _ in met), now)
    if cancelling := dict.fromkeys(id for outcome, _, _, id in effects if outcome is Effect.CANCEL):
        run(db, apply_stored_ends, list(cancelling), moment(now))


def apply_successes(db: Connection, ids: Iterable[str], now: int) -> None:
    """The same for jobs that all succeeded: every open edge is satisfied."""
    if db.execute(ANY).get is not None:
        met = db.execute(SATISFY_ALL, (msgspec.json.encode(list(ids)).decode(),))
        _count_off(db, [child for (child,) in met], now)


def _count_off(db: Connection, children: Iterable[str], now: int) -> None:
    db.executemany(RELEASE, [(child, number, now) for child, number in Counter(children).items()])


def free_key(db: Connection, id: str, key: str) -> None:
    """Let a cancelled job give up its key (T3)."""
    db.execute(FREE_KEY, (key, id))
    db.execute(DROP_KEY, (id,))
