"""Keys on PostgreSQL that have run out while their owners come and go: one living owner, whichever comes first (I2)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from itertools import count
from random import Random

import pytest

from taskharbor.core.evolve import DeadLetter, Replay
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord, NewJob
from taskharbor.core.states import Shown, State
from taskharbor.driver import Enqueued, Group, GroupResult
from taskharbor.drivers.postgres import enqueue, manage, reserve, settle
from taskharbor.drivers.postgres.bookmarks import Bookmarks
from taskharbor.drivers.postgres.db import Db, OwnDb
from taskharbor.drivers.shared.claims import claim
from taskharbor.testing.kit.jobs import KEEP, T0, at, group, job

from . import stage
from .stage import SCHEMA, Play, Stage, ack, connected, fail, repeated, whole

play, url = stage.play, stage.url

LATER = at(3600)  # when the keys of all owners have run out
LEASE = timedelta(days=1)
UNFINISHED = Filter(states=(Shown.READY, Shown.CLAIMED))


def keyed(id: str, key: str = "k") -> NewJob:
    return job(id, idempotency_key=key, key_expires_at=at(60))


async def owner(s: Stage) -> JobRecord:
    """`a`, which runs and holds a key past its time."""
    await s.driver.enqueue([group(keyed("a"))], T0)
    [held] = await s.driver.reserve(["q"], T0, LEASE, 1, "w")
    return held


async def dead(s: Stage) -> None:
    """`a`, which has a key past its time, and is dead."""
    assert await s.driver.settle([fail(await owner(s))], T0) == ["ok"]


async def key_of(s: Stage, id: str) -> str | None:
    [found] = await s.driver.get([id])
    return None if found is None else found.idempotency_key


# Each of the statements that take a key: what is stored, or None if another job has it.
Taker = Callable[[Db], Awaitable[str | None]]


async def by_enqueue(db: Db) -> str | None:
    [result] = await enqueue.enqueue(db, [group(keyed("b"))], LATER, None)
    return _taken(result)


async def by_group(db: Db) -> str | None:
    flow = Group(jobs=(job("b", workflow_id="w"),), key="k", workflow_id="w")
    [result] = await enqueue.enqueue(db, [flow], LATER, None)
    return _taken(result)


async def by_settle(db: Db) -> str | None:
    await enqueue.add(db, [keyed("b")], LATER)
    return "b" if await db.rows("states", ["b"]) else None


def _taken(result: GroupResult) -> str | None:
    assert isinstance(result, tuple)
    assert result[0].created or result[0].id == "a"
    return "b" if result[0].created else None


TAKERS = [by_enqueue, by_group, by_settle]


@pytest.mark.parametrize("taker", TAKERS)
def test_a_key_past_its_time_is_held_while_its_owner_is_replayed(play: Play, taker: Taker) -> None:
    """I2, Q2: a statement that began before the replay was committed saw a dead owner, and must not take its key."""

    async def act(s: Stage) -> None:
        await dead(s)
        async with s.other.transaction():
            assert await manage.replay(s.other, [Replay(id="a")], LATER) == ["replayed"]
            taking = asyncio.ensure_future(whole(s.third, taker(s.third)))
            await s.meets(taking)
        assert await taking is None
        assert (await s.state("a"), await key_of(s, "a")) == (State.READY, "k")
        assert await s.driver.find_key("k", LATER) == "a"

    play(act)


@pytest.mark.parametrize("taker", TAKERS)
def test_a_key_past_its_time_is_free_if_the_replay_of_its_owner_is_undone(play: Play, taker: Taker) -> None:
    """I2: likewise, but nothing came of the replay."""

    async def act(s: Stage) -> None:
        await dead(s)
        replaying = s.other.connection.transaction()
        await replaying.start()
        assert await manage.replay(s.other, [Replay(id="a")], LATER) == ["replayed"]
        taking = asyncio.ensure_future(whole(s.third, taker(s.third)))
        await s.meets(taking)
        await replaying.rollback()
        assert await taking == "b"

    play(act)


@pytest.mark.parametrize("taker", TAKERS)
def test_a_replay_finds_its_key_taken_just_now(play: Play, taker: Taker) -> None:
    """I2, Q2: and says so."""

    async def act(s: Stage) -> None:
        await dead(s)
        async with s.other.transaction():
            assert await taker(s.other) == "b"
            replaying = asyncio.ensure_future(s.driver.replay([Replay(id="a")], LATER))
            await s.meets(replaying)
        assert await replaying == ["replayed_without_key"]
        assert await key_of(s, "a") is None
        assert await s.driver.find_key("k", LATER) in ("b", "w")

    play(act)


@pytest.mark.parametrize("taker", TAKERS)
def test_a_key_is_free_with_the_end_of_its_owner_and_not_before(play: Play, taker: Taker) -> None:
    """I2: an end that is not committed is none."""

    async def act(s: Stage) -> None:
        held = await owner(s)
        async with s.other.transaction():
            assert await settle.settle(s.other, [ack(held)], LATER) == ["ok"]
            assert await whole(s.third, taker(s.third)) is None
        assert await whole(s.third, taker(s.third)) == "b"

    play(act)


def test_an_outcome_may_hand_the_key_on(play: Play) -> None:
    """I2, D9: with its end, in one step, a job leaves a key past its time to the next."""

    async def act(s: Stage) -> None:
        held = await owner(s)
        async with s.other.transaction():
            assert await settle.settle(s.other, [ack(held, new_jobs=(keyed("b"),))], LATER) == ["ok"]
            enqueuing = asyncio.ensure_future(s.driver.enqueue([group(keyed("c"))], LATER))
            await s.meets(enqueuing)
        assert await enqueuing == [(Enqueued("b", False),)]

    play(act)


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_a_key_that_is_given_up_just_now_is_free(play: Play, verb: str) -> None:
    """I2, T3: its row is gone when the lock is."""

    async def act(s: Stage) -> None:
        if verb == "delete":
            await dead(s)
        else:
            await s.driver.enqueue([group(keyed("a"))], T0)
        async with s.other.transaction():
            if verb == "delete":
                assert await manage.delete(s.other, ["a"]) == ["deleted"]
            else:
                assert await manage.cancel(s.other, ["a"], LATER, KEEP) == ["cancelled"]
            enqueuing = asyncio.ensure_future(s.driver.enqueue([group(keyed("b"))], LATER))
            await s.meets(enqueuing)
        assert await enqueuing == [(Enqueued("b", True),)]
        assert await s.driver.find_key("k", LATER) == "b"

    play(act)


@pytest.mark.parametrize("verb", ["delete", "prune"])
def test_a_job_that_just_lost_its_key_frees_nothing(play: Play, verb: str) -> None:
    """I2: the new owner's key stays, though the row was the old one's when the statement began."""

    async def act(s: Stage) -> None:
        await dead(s)
        async with s.other.transaction():
            assert await by_enqueue(s.other) == "b"
            step = s.driver.delete(["a"]) if verb == "delete" else s.driver.prune(KEEP, 9)
            going = asyncio.ensure_future(step)
            await s.meets(going)
        await going
        assert await s.state("a") is None
        assert await s.driver.find_key("k", LATER) == "b"

    play(act)


# many at once

KEYS = "klmn"
# Living jobs whose key refers to another job: none, at any time.
STRAYS = f"""
SELECT job.id FROM {SCHEMA}.live JOIN {SCHEMA}.job USING (seq) LEFT JOIN {SCHEMA}.keys ON keys.key = job.idempotency_key
WHERE job.idempotency_key IS NOT NULL AND keys.owner IS DISTINCT FROM job.id
"""


class Hand:
    """Does whatever can be done to jobs with keys, each time to several, in whatever order."""

    def __init__(self, url: str, who: int) -> None:
        self._url, self._who, self._rng = url, who, Random(who)
        self._numbers = count()
        self.done: Counter[str] = Counter()

    async def work(self, rounds: int) -> None:
        verbs = [self._enqueue, self._enqueue, self._settle, self._cancel, self._bury, self._delete, self._replay]
        async with connected(self._url) as db:
            for _ in range(rounds):
                verb = self._rng.choice(verbs)
                await repeated(db, partial(verb, db))
                assert await db.connection.fetch(STRAYS) == []

    async def _ids(self, db: OwnDb) -> list[str]:
        found = await db.connection.fetch(f"SELECT id FROM {SCHEMA}.job ORDER BY seq DESC LIMIT 12")
        return self._rng.sample([row[0] for row in found], min(3, len(found)))

    async def _enqueue(self, db: OwnDb) -> None:
        new = [keyed(f"{self._who}-{next(self._numbers)}", key) for key in self._rng.sample(KEYS, 3)]
        results = await enqueue.enqueue(db, [group(it) for it in new], LATER, None)
        self.done.update("created" if it[0].created else "known" for it in results if isinstance(it, tuple))

    async def _settle(self, db: OwnDb) -> None:
        held = await reserve.reserve(db, claim(LATER, LEASE, "w"), ["q"], 3, Bookmarks())
        await settle.settle(db, [fail(it) if self._rng.random() < 0.5 else ack(it) for it in held], LATER)

    async def _cancel(self, db: OwnDb) -> None:
        self.done.update(await manage.cancel(db, await self._ids(db), LATER, KEEP))

    async def _bury(self, db: OwnDb) -> None:
        deaths = [DeadLetter(id=id, reason="by hand", fingerprint="f", keep_until=KEEP) for id in await self._ids(db)]
        self.done.update(await manage.dead_letter(db, deaths, LATER))

    async def _delete(self, db: OwnDb) -> None:
        self.done.update(await manage.delete(db, await self._ids(db)))

    async def _replay(self, db: OwnDb) -> None:
        self.done.update(await manage.replay(db, [Replay(id=id) for id in await self._ids(db)], LATER))


def test_enqueues_of_the_same_keys_never_deadlock(play: Play, url: str) -> None:
    """I2: whatever happens to their owners, each key has at most one living owner, and finds it; no deadlock, not
    even one that could be tried again."""

    async def act(s: Stage) -> None:
        hands = [Hand(url, who) for who in range(6)]
        await asyncio.gather(*(it.work(60) for it in hands))
        done = sum((it.done for it in hands), Counter[str]())
        assert done.keys() >= {"created", "known", "cancelled", "dead", "deleted", "replayed", "replayed_without_key"}
        for key in KEYS:
            living = [it.id for it in await s.driver.query(UNFINISHED, LATER, 9999) if it.idempotency_key == key]
            assert living in ([], [await s.driver.find_key(key, LATER)])

    play(act)
