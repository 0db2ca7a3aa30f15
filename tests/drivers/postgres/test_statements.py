"""Properties of single statements that no case of the kit can see: locks and their order, wake-ups, bookmarks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from taskharbor.core.evolve import Replay
from taskharbor.core.job import JobRecord
from taskharbor.core.states import State
from taskharbor.driver import Group
from taskharbor.drivers.postgres import enqueue, manage, reserve, settle
from taskharbor.drivers.postgres.bookmarks import Bookmarks, Mark
from taskharbor.drivers.postgres.db import OwnDb
from taskharbor.drivers.shared.claims import claim
from taskharbor.testing.kit.jobs import KEEP, T0, at, child, group, job

from . import stage
from .stage import LEASE, SCHEMA, Between, Play, Stage, ack, fail, whole

play, url = stage.play, stage.url

Claim = Callable[[Stage, datetime], Awaitable[list[JobRecord]]]


async def by_queue(s: Stage, now: datetime) -> list[JobRecord]:
    return await s.driver.reserve(["q"], now, LEASE, 2, "w")


async def by_id(s: Stage, now: datetime) -> list[JobRecord]:
    return await s.driver.reserve([], now, LEASE, 2, "w", ids=["a", "b"])


async def behind_a_bookmark(s: Stage, now: datetime) -> list[JobRecord]:
    return await going_on(s.third, now, 2)


async def going_on(db: OwnDb, now: datetime, limit: int) -> list[JobRecord]:
    """Claim what lies behind a bookmark an hour before `T0`."""
    mark = Mark(0, T0 - timedelta(hours=1), 0)
    return await reserve.reserve_on(db, claim(now, LEASE, "w"), ["q"], limit, Bookmarks(), {"q": mark})


CLAIMS: dict[str, tuple[Claim, bool]] = {
    "ready": (by_queue, False),
    "lapsed": (by_queue, True),
    "ready by id": (by_id, False),
    "lapsed by id": (by_id, True),
    "behind a bookmark": (behind_a_bookmark, False),
}


@pytest.mark.parametrize("kind", CLAIMS)
def test_a_claim_passes_over_what_another_transaction_holds(play: Play, kind: str) -> None:
    """D12: it neither waits for it nor returns it."""
    claim, is_lapsed = CLAIMS[kind]

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("a")), group(job("b"))], T0)
        if is_lapsed:
            await s.claim("a", "b")
        async with s.other.transaction():
            assert await s.take("a")
            claiming = asyncio.ensure_future(claim(s, at(31)))
            await s.meets(claiming)
            assert claiming.done()
        assert [it.id for it in await claiming] == ["b"]

    play(act)


WHY_NOT: dict[str, dict[str, Any]] = {
    "expired": {"expires_at": T0},
    "not due": {"run_at": at(1)},
    "another priority": {"priority": 1},
    "paused": {},
}


@pytest.mark.parametrize("why", WHY_NOT)
def test_a_claim_behind_a_bookmark_hands_out_nothing_else(play: Play, why: str) -> None:
    """D3, N1: the rules are those of every claim."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("a", **WHY_NOT[why]))], T0)
        await s.driver.pause("q", why == "paused")
        assert await going_on(s.third, T0, 2) == []

    play(act)


def test_a_claim_behind_a_bookmark_takes_the_first_by_due_time(play: Play) -> None:
    """D11: then by number."""

    async def act(s: Stage) -> None:
        due = {"c": 2, "b": 1, "a": 1}
        await s.driver.enqueue([group(job(id, run_at=at(seconds))) for id, seconds in due.items()], T0)
        found = [it.id for _ in due for it in await going_on(s.third, at(9), 1)]
        assert found == ["b", "a", "c"]

    play(act)


STORED: dict[str, list[Group]] = {
    "one": [group(job("a"))],
    "several": [group(job("a")), group(job("b"))],
    "keyed": [group(job("a", idempotency_key="k"))],
    "a group": [group(job("a"), child("b", "a"))],
}


@pytest.mark.parametrize("kind", STORED)
def test_an_enqueue_notifies_with_its_commit(play: Play, kind: str) -> None:
    """D13: the server keeps the order of commits, so a later notification marks the end."""

    async def act(s: Stage) -> None:
        heard: list[str] = []
        listener = s.third.connection
        await listener.add_listener("work", lambda _connection, _pid, _channel, text: heard.append(str(text)))
        await enqueue.enqueue(s.other, STORED[kind], T0, "work")
        await listener.execute("SELECT pg_notify('work', 'end')")
        while "end" not in heard:
            await listener.execute("SELECT 1")
        assert heard == ["", "end"]

    play(act)


# locks


def test_a_replay_locks_the_parents_of_a_job_first(play: Play) -> None:
    """K2, Q3: as the end of a parent does, so that the two never wait for each other."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("a"), child("z", "a", policy="collect"))], T0)
        for id in "az":
            await s.driver.settle(list(map(fail, await s.claim(id))), T0)
        await s.driver.replay([Replay(id="a")], T0)
        [parent] = await s.claim("a")
        replays: list[asyncio.Future[object]] = []

        async def replay() -> None:
            replays.append(asyncio.ensure_future(s.driver.replay([Replay(id="z")], T0)))
            await s.meets(replays[0])
            row = (
                f"SELECT id FROM {SCHEMA}.ended JOIN {SCHEMA}.job USING (seq) WHERE id = 'z' FOR UPDATE OF ended NOWAIT"
            )
            assert await s.other.connection.fetchval(row) == "z"

        db = Between(s.other, "settle_ended", replay)
        assert await whole(s.other, settle.settle(db, [ack(parent, result=b"1")], T0)) == ["ok"]
        assert await replays[0] == ["replayed"]
        assert await s.state("z") is State.READY

    play(act)


def test_a_replay_takes_keys_in_their_order(play: Play) -> None:
    """I2, Q2: whatever order its jobs come in, so that two never wait for each other."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("a", idempotency_key="y")), group(job("b", idempotency_key="x"))], T0)
        await s.driver.settle(list(map(fail, await s.claim("a", "b"))), T0)
        row = f"SELECT key FROM {SCHEMA}.keys WHERE key = $1 FOR UPDATE NOWAIT"
        async with s.other.transaction():
            assert await s.other.connection.fetchval(row, "x") == "x"
            replaying = asyncio.ensure_future(s.driver.replay([Replay(id="a"), Replay(id="b")], T0))
            await s.meets(replaying)
            assert await s.other.connection.fetchval(row, "y") == "y"
        assert await replaying == ["replayed"] * 2

    play(act)


def test_a_replay_leaves_no_key_that_it_does_not_take(play: Play) -> None:
    """I2, Q2: a key that does not exist, as the job's own here, is locked by a placeholder."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("a", idempotency_key="k", key_expires_at=at(1)))], T0)
        await s.driver.settle(list(map(fail, await s.claim("a"))), T0)
        await s.driver.enqueue([group(job("b", idempotency_key="k"))], at(1))
        assert await s.driver.cancel(["b"], at(1), KEEP) == ["cancelled"]
        assert await s.driver.replay([Replay(id="a", idempotency_key="n")], at(1)) == ["replayed"]
        assert await s.keys() == ["n"]

    play(act)


def test_the_key_of_a_workflow_goes_with_the_last_of_two_deletes(play: Play) -> None:
    """I2, X8: each removes one record, and neither sees what the other has removed before it commits."""

    async def act(s: Stage) -> None:
        flow = group(job("a", workflow_id="w"), job("b", workflow_id="w"), key="k", workflow_id="w")
        await s.driver.enqueue([flow], T0)
        await s.driver.settle(list(map(ack, await s.claim("a", "b"))), T0)
        async with s.other.transaction():
            assert await manage.delete(s.other, ["a"]) == ["deleted"]
            deleting = asyncio.ensure_future(s.driver.delete(["b"]))
            await s.meets(deleting)
        assert await deleting == ["deleted"]
        assert await s.keys() == []

    play(act)


def test_a_record_that_is_being_pruned_is_not_replayed(play: Play) -> None:
    """X8, Q2: it is locked from the search of a prune to its delete."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("a"))], T0)
        await s.driver.cancel(["a"], T0, T0)
        replays: list[asyncio.Future[Any]] = []

        async def replay() -> None:
            replays.append(asyncio.ensure_future(s.driver.replay([Replay(id="a")], T0)))
            await s.meets(replays[0])

        assert await whole(s.other, manage.prune(Between(s.other, "prune", replay), T0, 9)) == 1
        assert await replays[0] == ["missing"]

    play(act)


def test_a_record_that_got_a_dependant_is_not_pruned(play: Play) -> None:
    """X8, K3, D9: the dependant may be stored while the search of a prune is under way."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("p"), child("c", "p"))], T0)
        await s.driver.settle([ack(it, keep_until=T0) for it in await s.claim("p")], T0)
        assert await s.third.rows("prune_delete", ["p"]) == []
        assert await s.state("p") is State.DONE

    play(act)


# order and batches


def test_members_of_a_workflow_come_with_dependants_first(play: Play) -> None:
    """X8, K3: so that a prune that stops half-way leaves no dependant without its parent."""

    async def act(s: Stage) -> None:
        flows = [group(job(f"{id}p", workflow_id=id), child(f"{id}c", f"{id}p", workflow_id=id)) for id in "vw"]
        await s.driver.enqueue(flows, T0)
        assert [row[0] for row in await s.third.rows("step_members", "w", 9)] == ["wc", "wp"]

    play(act)


def test_a_copied_group_releases_its_dependants(play: Play) -> None:
    """K2: also by plain successes, which look for dependants only where a job is marked as awaited."""

    async def act(s: Stage) -> None:
        members = [f"m{number}" for number in range(enqueue.COPY_FROM)]
        await s.driver.enqueue([group(*map(job, members), child("c", *members))], T0)
        held = await s.driver.reserve(["q"], T0, LEASE, len(members), "w")
        assert await s.driver.settle(list(map(ack, held)), T0) == ["ok"] * len(members)
        assert await s.state("c") is State.READY

    play(act)


def test_a_long_line_is_cancelled_by_few_statements(play: Play) -> None:
    """K4: a round trip for each job would hold the transaction open for seconds on a busy host."""

    async def act(s: Stage) -> None:
        ids = [f"n{number:03}" for number in range(300)]
        await s.driver.enqueue([group(job(ids[0]), *(child(id, up, policy="cancel") for up, id in pairwise(ids)))], T0)
        (held,) = await s.claim(ids[0])
        noted = Between(s.other)
        assert await settle.settle(noted, [fail(held)], T0) == ["ok"]
        assert await s.state(ids[-1]) is State.CANCELLED
        assert len(noted.asked) < 20

    play(act)
