"""What the end of a job means for those that wait for it (K2, K4), and how a job that nobody runs is cancelled."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from apsw import Connection

from taskharbor.core.dependency import Effect, effect
from taskharbor.core.states import State
from taskharbor.core.transition import Transition
from taskharbor.drivers.sqlite.rows import Row
from taskharbor.drivers.sqlite.sql import load

ANY, OPEN, DEPENDANTS = load("dependants_any"), load("dependants_open"), load("dependants")
SATISFY, RELEASE = load("dependants_satisfy"), load("dependants_release")
WITHDRAW, WITHDRAW_WAITING = load("withdraw"), load("withdraw_waiting")
FREE_KEY, DROP_KEY = load("key_free"), load("withdraw_key")


def with_dependants(db: Connection, transitions: Sequence[Transition]) -> set[str]:
    """Those of the jobs that somebody waits for: most have nobody, and one look tells for a whole batch."""
    if db.execute(ANY).get is None:
        return set()
    return {id for (id,) in db.execute(OPEN, (msgspec.json.encode([to.id for to in transitions]).decode(),))}


def tell(db: Connection, id: str, state: State, now: int, keep_until: int) -> None:
    """Carry a terminal move on to the dependants, and from cancelled ones to theirs.

    Each edge is satisfied at most once, so a chord's finalizer costs one small step per member.
    """
    ended = [(id, state)]
    while ended:
        parent, came_to = ended.pop()
        met: list[tuple[str, int]] = []
        edges: list[Row] = db.execute(DEPENDANTS, (parent,)).fetchall()
        for child, position, policy in edges:
            outcome = effect(policy, came_to)
            if outcome is Effect.SATISFY:
                met.append((child, position))
            elif outcome is Effect.CANCEL and _withdraw(db, WITHDRAW_WAITING, child, now, keep_until):
                ended.append((child, State.CANCELLED))
        db.executemany(SATISFY, met)
        db.executemany(RELEASE, [(child, now) for child, _ in met])


def withdraw(db: Connection, id: str, now: int, keep_until: int) -> bool:
    """Cancel an unfinished job that nobody runs, and tell its dependants; False if it has ended."""
    if not _withdraw(db, WITHDRAW, id, now, keep_until):
        return False
    tell(db, id, State.CANCELLED, now, keep_until)
    return True


def _withdraw(db: Connection, statement: str, id: str, now: int, keep_until: int) -> bool:
    keys: list[Row] = db.execute(statement, (id, now, keep_until)).fetchall()
    for (key,) in keys:
        if key is not None:
            free_key(db, id, key)
    return bool(keys)


def free_key(db: Connection, id: str, key: str) -> None:
    """A cancelled job gives its key up (T3)."""
    db.execute(FREE_KEY, (key, id))
    db.execute(DROP_KEY, (id,))
