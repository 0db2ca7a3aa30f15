"""What the end of a job means for those that wait for it (K2, K4), and how a job that nobody runs comes to its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from apsw import Connection

from taskharbor.core.dependency import Effect, effect
from taskharbor.core.states import State
from taskharbor.drivers.shared.columns import STATES
from taskharbor.drivers.sqlite.rows import FOR_EVER, Row
from taskharbor.drivers.sqlite.sql import load

ANY, DEPENDANTS = load("dependants_any"), load("dependants")
SATISFY, SATISFY_ALL = load("dependants_satisfy"), load("dependants_satisfy_all")
RELEASE = load("dependants_release")
WITHDRAW, WITHDRAW_WAITING = load("withdraw"), load("withdraw_waiting")
FREE_KEY, DROP_KEY = load("key_free"), load("key_drop")

# A job that has ended: its id, the state it came to, and until when those are kept that it takes along.
Ended = tuple[str, State, int]


# The edges to those who still wait for a job, by its id.
Edges = dict[str, list[Row]]


def dependants(db: Connection, ids: Iterable[str]) -> Edges:
    """Who waits for these jobs: for most it is nobody, and one look tells for a whole batch."""
    edges: Edges = {}
    if db.execute(ANY).get is not None:
        for edge in db.execute(DEPENDANTS, (msgspec.json.encode(list(ids)).decode(),)):
            edges.setdefault(edge[0], []).append(edge)
    return edges


def tell(db: Connection, ended: Sequence[Ended], edges: Edges, now: int) -> None:
    """Carry terminal moves on to the dependants, one after the other, and from cancelled ones to theirs.

    Each edge is satisfied at most once. What is satisfied is counted off at the end, once for each dependant, so a
    chord's finalizer costs one small step per batch of members. That it waits so long changes nothing: whoever has an
    edge that cancels it has one that is never satisfied, and is not released.
    """
    met: list[tuple[str, int]] = []
    for id, state, keep_until in ended:
        left = [(state, edges.get(id, []))]
        while left:
            came_to, own = left.pop()
            for _, child, position, policy in own:
                outcome = effect(policy, came_to)
                if outcome is Effect.SATISFY:
                    met.append((child, position))
                elif outcome is Effect.CANCEL and _withdraw(db, WITHDRAW_WAITING, child, now, keep_until) is not None:
                    left.append((State.CANCELLED, dependants(db, [child]).get(child, [])))
    db.executemany(SATISFY, met)
    _count_off(db, (child for child, _ in met), now)


def tell_done(db: Connection, ids: Iterable[str], now: int) -> None:
    """The same for jobs that all succeeded: whoever waits for one, its edge is satisfied."""
    if db.execute(ANY).get is not None:
        met = db.execute(SATISFY_ALL, (msgspec.json.encode(list(ids)).decode(),))
        _count_off(db, [child for (child,) in met], now)


def _count_off(db: Connection, children: Iterable[str], now: int) -> None:
    db.executemany(RELEASE, [(child, number, now) for child, number in Counter(children).items()])


def withdraw(db: Connection, ids: Iterable[str], now: int, keep_until: int) -> int:
    """End unfinished jobs that nobody runs, and then tell their dependants; how many had not ended."""
    gone = [ended for id in ids if (ended := _withdraw(db, WITHDRAW, id, now, keep_until)) is not None]
    tell(db, gone, dependants(db, [id for id, _, _ in gone]), now)
    return len(gone)


def _withdraw(db: Connection, statement: str, id: str, now: int, keep_until: int) -> Ended | None:
    found: tuple[str, int, str | None] | None = db.execute(statement, (id, now, keep_until, FOR_EVER)).get
    return None if found is None else came_to(db, id, *found)


def came_to(db: Connection, id: str, state: str, keep_until: int, freed: str | None) -> Ended:
    """The end of a job as a statement wrote it, which names the key that goes with it."""
    if freed is not None:
        free_key(db, id, freed)
    return id, STATES[state], keep_until


def free_key(db: Connection, id: str, key: str) -> None:
    """A cancelled job gives its key up (T3)."""
    db.execute(FREE_KEY, (key, id))
    db.execute(DROP_KEY, (id,))
