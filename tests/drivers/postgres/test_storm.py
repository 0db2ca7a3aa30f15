"""Every verb at once on the same few jobs: no deadlock reaches a caller, and no job waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from itertools import count
from random import Random

from taskharbor.core.dependency import Effect, effect
from taskharbor.core.evolve import DeadLetter, Replay, Reschedule
from taskharbor.core.filter import Filter
from taskharbor.core.job import NewJob
from taskharbor.core.states import CANCELLED, DLQ, TERMINAL, State
from taskharbor.core.transition import Transition
from taskharbor.drivers import from_url
from taskharbor.drivers.postgres.driver import PostgresDriver
from taskharbor.testing.kit.jobs import KEEP, T0, child, group, job

from . import stage
from .stage import LEASE, SCHEMA, Play, Stage, ack, connected, fail, put_back

play, url = stage.play, stage.url

HANDS, ROUNDS = 6, 60
POLICIES = ("cancel", "collect", "hold")

# What must not be there, whatever happened.
STRAYS = {
    "a job in no table, or in both": """
        SELECT id FROM job WHERE (SELECT count(*) FROM live WHERE live.seq = job.seq)
            + (SELECT count(*) FROM ended WHERE ended.seq = job.seq) <> 1""",
    "a job that waits for more or fewer than its edges": """
        SELECT id FROM record WHERE unmet <> (SELECT count(*) FROM edge WHERE child = id AND NOT satisfied)""",
    "an edge without one of its jobs": """
        SELECT child FROM edge WHERE child NOT IN (SELECT id FROM job) OR parent NOT IN (SELECT id FROM job)""",
    "a dependant that its parent does not know of": """
        SELECT child FROM edge JOIN job ON job.id = parent JOIN live USING (seq) WHERE NOT satisfied AND NOT awaited""",
    "a key without an owner": """
        SELECT key FROM keys WHERE owner NOT IN (SELECT id FROM job)
            AND owner NOT IN (SELECT workflow_id FROM job WHERE workflow_id IS NOT NULL)""",
    "an unfinished job whose key belongs to another": """
        SELECT id FROM live JOIN job USING (seq) LEFT JOIN keys ON key = idempotency_key
        WHERE idempotency_key IS NOT NULL AND owner IS DISTINCT FROM id""",
}
OPEN = """
SELECT child.id, edge.policy, parent.state, child.state, child.replays FROM edge
JOIN record AS parent ON parent.id = edge.parent JOIN record AS child ON child.id = edge.child WHERE NOT edge.satisfied
"""


class Hand:
    """Does whatever can be done to jobs, each time to several, in whatever order."""

    def __init__(self, driver: PostgresDriver, who: int, ids: list[str]) -> None:
        self._driver, self._who, self._rng, self._ids = driver, who, Random(who), ids
        self._numbers = count()

    async def work(self) -> None:
        verbs: list[Callable[[datetime], Awaitable[object]]] = [
            *(self._enqueue, self._run, self._run, self._cancel, self._dead_letter, self._replay, self._replay),
            *(self._delete, self._reschedule, self._upkeep),
        ]
        for number in range(ROUNDS):
            await self._rng.choice(verbs)(T0 + timedelta(seconds=number))

    def _some(self) -> list[str]:
        return self._rng.sample(self._ids[-60:], min(12, len(self._ids)))

    async def _enqueue(self, now: datetime) -> None:
        flow = f"w{self._who}-{next(self._numbers)}"
        jobs = [job(f"{flow}-0", workflow_id=flow)]
        for number in range(1, 6):
            parents = [it.id for it in jobs if it.idempotency_key is None and self._rng.random() < 0.5]
            jobs.append(self._new(f"{flow}-{number}", parents, flow, now))
        key = f"flow-{self._rng.randrange(4)}"
        [stored] = await self._driver.enqueue([group(*jobs, workflow_id=flow, key=key, key_expires_at=now)], now)
        assert isinstance(stored, tuple)
        self._ids += [it.id for it in stored if it.created]

    def _new(self, id: str, parents: list[str], flow: str, now: datetime) -> NewJob:
        key = self._rng.choice([None, f"job-{self._rng.randrange(8)}"])
        expires_at = self._rng.choice([None, None, now + timedelta(seconds=3)])
        policy = self._rng.choice(POLICIES)
        return child(id, *parents, policy=policy, workflow_id=flow, idempotency_key=key, expires_at=expires_at)

    async def _run(self, now: datetime) -> None:
        ends: list[Callable[..., Transition]] = [ack, ack, fail, put_back]
        held = await self._driver.reserve(["q"], now, LEASE, 8, "w")
        await self._driver.settle([self._rng.choice(ends)(it) for it in held], now)

    async def _cancel(self, now: datetime) -> None:
        await self._driver.cancel(self._some(), now, now)

    async def _dead_letter(self, now: datetime) -> None:
        deaths = [DeadLetter(id=id, reason="x", fingerprint="f", keep_until=now) for id in self._some()]
        await self._driver.dead_letter(deaths, now)

    async def _replay(self, now: datetime) -> None:
        await self._driver.replay([Replay(id=id) for id in self._some()], now)

    async def _delete(self, _: datetime) -> None:
        await self._driver.delete(self._some())

    async def _reschedule(self, now: datetime) -> None:
        await self._driver.reschedule([Reschedule(id=id, run_at=now, priority=1) for id in self._some()], now)

    async def _upkeep(self, now: datetime) -> None:
        await self._driver.sweep(now, now, 20)
        await self._driver.prune(now, 20)


async def strays(url: str) -> list[str]:
    """The faults of the store."""
    async with connected(url) as db:
        await db.connection.execute(f"SET search_path TO {SCHEMA}")
        found = [what for what, sql in STRAYS.items() if await db.connection.fetch(sql)]
        edges = await db.connection.fetch(OPEN)
    return found + [f"{id} missed the end of a parent" for id, *edge in edges if is_missed(*edge)]


def is_missed(policy: str, parent: str, dependant: str, replays: int) -> bool:
    """Whether an open edge should have been satisfied, or should have cancelled its dependant.

    A dependant that was replayed waits for a parent that may be replayed too.
    """
    if State(parent) not in TERMINAL:
        return False
    outcome = effect(policy, State(parent))
    return outcome is Effect.SATISFY or (outcome is Effect.CANCEL and dependant == "waiting" and replays == 0)


async def drain(driver: PostgresDriver, now: datetime) -> set[State]:
    """Finish everything, and return the states of what is left."""
    while True:
        held = await driver.reserve(["q"], now, LEASE, 999, "w")
        await driver.settle([ack(it, keep_until=KEEP) for it in held], now)
        if held or await driver.sweep(now, KEEP, 999):
            continue
        stored = await driver.query(Filter(), now, 9999)
        dead = [Replay(id=it.id) for it in stored if it.state in (DLQ, CANCELLED)]
        if not dead:
            return {it.state for it in stored}
        await driver.replay(dead, now)


def test_every_verb_at_once(play: Play, url: str) -> None:
    """X2, K2, I2, Q3: no error, no stray row, and in the end everything can be finished."""

    async def act(s: Stage) -> None:
        drivers = [await from_url(url) for _ in range(2)]
        ids: list[str] = []
        owned = [it for it in drivers if isinstance(it, PostgresDriver)]
        await asyncio.gather(*(Hand(owned[who % 2], who, ids).work() for who in range(HANDS)))
        assert await strays(url) == []
        assert await drain(s.driver, T0 + timedelta(hours=1)) == {State.DONE}
        assert await strays(url) == []
        for it in drivers:
            await it.close()

    play(act)
