"""Two at once on PostgreSQL: one stops half-way, with its transaction open, and the other has to come out right."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from itertools import count
from random import Random
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from taskharbor.core.evolve import DeadLetter, Replay
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord, NewJob
from taskharbor.core.schedule import Schedule
from taskharbor.core.states import State
from taskharbor.core.transition import Ack, Fail, Transition
from taskharbor.driver import Enqueued, Report, Swap
from taskharbor.drivers.postgres import enqueue, manage, records, reserve, settle
from taskharbor.drivers.postgres.db import Db, OwnDb, Row
from taskharbor.drivers.postgres.within import Location, settle_in
from taskharbor.drivers.shared.claims import claim
from taskharbor.errors import JobExists
from taskharbor.testing.kit.jobs import KEEP, T0, at, child, group, job, token_of

from . import stage
from .stage import LEASE, SCHEMA, Between, Play, Stage, ack, connected, fail, put_back, repeated, whole

play, url = stage.play, stage.url


# a child that moves while its parent ends


async def a_cancelled_child(s: Stage) -> JobRecord:
    """`c`, which was cancelled while its parent runs."""
    await s.driver.enqueue([group(job("p"), child("c", "p"))], T0)
    assert await s.driver.cancel(["c"], T0, KEEP) == ["cancelled"]
    return (await s.claim("p"))[0]


def test_a_child_being_replayed_sees_its_parents_end(play: Play) -> None:
    """K2, Q3: its row moves away under the look that would find it, and it must not wait for ever."""

    async def act(s: Stage) -> None:
        parent = await a_cancelled_child(s)
        async with s.other.transaction():
            assert await manage.replay(s.other, [Replay(id="c")], T0) == ["replayed"]
            settling = asyncio.ensure_future(s.driver.settle([ack(parent)], T0))
            await s.meets(settling)
        assert await settling == ["ok"]
        assert await s.state("c") is State.READY

    play(act)


def test_a_child_replayed_while_its_parent_ends_sees_the_end(play: Play) -> None:
    """K2, Q3: the replay waits for the end, and finds nothing left to wait for."""

    async def act(s: Stage) -> None:
        parent = await a_cancelled_child(s)
        async with s.other.transaction():
            assert await settle.settle(s.other, [ack(parent)], T0) == ["ok"]
            replaying = asyncio.ensure_future(s.driver.replay([Replay(id="c")], T0))
            await s.meets(replaying)
        assert await replaying == ["replayed"]
        assert await s.state("c") is State.READY

    play(act)


async def a_collector_and_a_parent(s: Stage) -> JobRecord:
    """`z`, which is dead and had collected the failure of `a`, which runs again."""
    await s.driver.enqueue([group(job("a"), child("z", "a", policy="collect"))], T0)
    for id in "az":
        await s.driver.settle(list(map(fail, await s.claim(id))), T0)
    assert await s.driver.replay([Replay(id="a")], T0) == ["replayed"]
    return (await s.claim("a"))[0]


def test_a_collector_replayed_while_its_parent_ends_sees_the_end(play: Play) -> None:
    """K2, Q3: a statement that began before the replay was committed must not overlook the child that waits again."""

    async def act(s: Stage) -> None:
        parent = await a_collector_and_a_parent(s)
        async with s.other.transaction():
            assert await manage.replay(s.other, [Replay(id="z")], T0) == ["replayed"]
            settling = asyncio.ensure_future(s.driver.settle([ack(parent)], T0))
            await s.meets(settling)
        assert await settling == ["ok"]
        assert await s.state("z") is State.READY

    play(act)


def test_a_collector_replayed_while_a_parent_ends_does_not_wait(play: Play) -> None:
    """K2, Q3: the other way round, the parent has ended."""

    async def act(s: Stage) -> None:
        parent = await a_collector_and_a_parent(s)
        async with s.other.transaction():
            assert await settle.settle(s.other, [ack(parent)], T0) == ["ok"]
            replaying = asyncio.ensure_future(s.driver.replay([Replay(id="z")], T0))
            await s.meets(replaying)
        assert await replaying == ["replayed"]
        assert await s.state("z") is State.READY

    play(act)


def test_a_new_job_sees_the_end_of_a_parent_that_settles_meanwhile(play: Play) -> None:
    """K2, D9: stored with another's outcome, while the parent had no dependants so far."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("p")), group(job("x"))], T0)
        parent, other = await s.claim("p", "x")
        async with s.other.transaction():
            new = ack(other, new_jobs=(child("c", "p"),))
            assert await settle.settle(s.other, [new], T0) == ["ok"]
            settling = asyncio.ensure_future(s.driver.settle([ack(parent)], T0))
            await s.meets(settling)
        assert await settling == ["ok"]
        assert await s.state("c") is State.READY

    play(act)


@pytest.mark.parametrize("end", ["ack", "cancel"])
def test_a_collector_waits_for_no_parent_that_is_just_ending(play: Play, end: str) -> None:
    """K2, Q3: it was dead when the replay looked for what to hold, ran again, and ends while the edge is reopened."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("a"), child("z", "a", policy="collect"))], T0)
        for id in "az":
            await s.driver.settle(list(map(fail, await s.claim(id))), T0)
        ending = s.third.transaction()

        async def begin_to_end() -> None:
            await s.driver.replay([Replay(id="a")], T0)
            held = await s.claim("a") if end == "ack" else []
            await ending.__aenter__()
            if held:
                assert await settle.settle(s.third, list(map(ack, held)), T0) == ["ok"]
            else:
                assert await manage.cancel(s.third, ["a"], T0, KEEP) == ["cancelled"]

        db = Between(s.other, "step_hold_ended", begin_to_end)
        replaying = asyncio.ensure_future(whole(s.other, manage.replay(db, [Replay(id="z")], T0)))
        await s.meets(replaying, s.third)
        await ending.__aexit__(None, None, None)
        assert await replaying == ["replayed"]
        assert await s.state("z") is State.READY

    play(act)


def test_a_collector_replayed_with_a_parent_that_runs_already_does_not_wait(play: Play) -> None:
    """K2, Q3: the parent was dead when the replay locked what runs; it was live again before the replay got to it, so
    nothing keeps it from ending."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("a"), child("z", "a", policy="collect"))], T0)
        for id in "az":
            await s.driver.settle(list(map(fail, await s.claim(id))), T0)
        db = Between(s.other, "step_hold_parents", lambda: s.driver.replay([Replay(id="a")], T0))
        async with s.other.transaction():
            answers = await manage.replay(db, [Replay(id="a"), Replay(id="z")], T0)
            assert answers == ["not_dead", "replayed"]
            assert await s.driver.settle(list(map(ack, await s.claim("a"))), T0) == ["ok"]
        assert await s.state("z") is State.READY

    play(act)


async def new_child_of(s: Stage, how: Callable[[JobRecord], Ack | Fail]) -> Ack:
    """An outcome of `x` that brings `c` along, which waits for `p`, which has ended."""
    await s.driver.enqueue([group(job("p")), group(job("x"))], T0)
    parent, other = await s.claim("p", "x")
    await s.driver.settle([how(parent)], T0)
    return ack(other, new_jobs=(child("c", "p"),))


def test_a_dead_parent_that_is_replayed_knows_of_a_new_child(play: Play) -> None:
    """K2, D9: stored with another's outcome, before the replay and committed after it began."""

    async def act(s: Stage) -> None:
        new = await new_child_of(s, fail)
        async with s.other.transaction():
            assert await settle.settle(s.other, [new], T0) == ["ok"]
            replaying = asyncio.ensure_future(s.driver.replay([Replay(id="p")], T0))
            await s.meets(replaying)
        assert await replaying == ["replayed"]
        assert await s.driver.settle(list(map(ack, await s.claim("p"))), T0) == ["ok"]
        assert await s.state("c") is State.READY

    play(act)


@pytest.mark.parametrize("how", [ack, fail])
def test_a_parent_is_not_deleted_under_a_new_child(play: Play, how: Callable[[JobRecord], Ack | Fail]) -> None:
    """K3, D9: likewise."""

    async def act(s: Stage) -> None:
        new = await new_child_of(s, how)
        async with s.other.transaction():
            assert await settle.settle(s.other, [new], T0) == ["ok"]
            deleting = asyncio.ensure_future(s.driver.delete(["p"]))
            await s.meets(deleting)
        assert await deleting == ["needed"]

    play(act)


def test_a_workflow_is_not_pruned_under_a_replay(play: Play) -> None:
    """X8, Q3: one of its jobs is put back while it is to be forgotten."""

    async def act(s: Stage) -> None:
        flow = group(job("p", workflow_id="w"), child("c", "p", workflow_id="w"), workflow_id="w")
        await s.driver.enqueue([flow], T0)
        await s.driver.cancel(["p", "c"], T0, T0)
        db = Between(s.other, "step_members", lambda: s.driver.replay([Replay(id="p")], T0))
        assert await whole(s.other, manage.prune(db, T0, 9)) == 0
        assert (await s.state("p"), await s.state("c")) == (State.READY, State.CANCELLED)

    play(act)


def test_a_workflow_is_pruned_after_one_of_it_came_and_went(play: Play) -> None:
    """X8, Q3: put back and cancelled again before it is held; then it is held, and cannot be put back."""

    async def act(s: Stage) -> None:
        flow = group(job("p", workflow_id="w"), child("c", "p", workflow_id="w"), workflow_id="w")
        await s.driver.enqueue([flow], T0)
        await s.driver.cancel(["p", "c"], T0, T0)

        async def come_and_go() -> None:
            await s.driver.replay([Replay(id="p")], T0)
            await s.driver.cancel(["p"], T0, T0)

        replays: list[asyncio.Future[Any]] = []

        async def replay() -> None:
            replays.append(asyncio.ensure_future(s.driver.replay([Replay(id="p")], T0)))
            await s.meets(replays[0])

        db = Between(Between(s.other, "step_members", come_and_go), "hold_free", replay)
        assert await whole(s.other, manage.prune(db, T0, 9)) == 2
        assert await replays[0] == ["missing"]

    play(act)


def test_a_deleted_child_delays_no_other_job(play: Play) -> None:
    """K2: if it is deleted while its parent ends, the settle still happens."""

    async def act(s: Stage) -> None:
        parent = await a_cancelled_child(s)
        async with s.other.transaction():
            assert await manage.delete(s.other, ["c"]) == ["deleted"]
            settling = asyncio.ensure_future(s.driver.settle([ack(parent)], T0))
            await s.meets(settling)
        assert await settling == ["ok"]
        assert (await s.state("p"), await s.state("c")) == (State.DONE, None)

    play(act)


def test_a_settle_whose_last_dependant_was_deleted_just_now_is_written(play: Play) -> None:
    """D7: the statement for jobs without dependants saw one; a moment later there is none."""

    async def act(s: Stage) -> None:
        parent = await a_cancelled_child(s)
        db = Between(s.third, "settle_done", lambda: s.driver.delete(["c"]))
        assert await settle.settle(db, [ack(parent)], T0) == ["ok"]
        assert await s.state("p") is State.DONE

    play(act)


@pytest.mark.parametrize("result", [None, b"1"], ids=["plain", "with results"])
def test_a_dependant_sees_a_whole_batch_at_once(play: Play, result: bytes | None) -> None:
    """K2: a chord costs as many statements for twenty members as for two, whatever these are kept for."""

    async def act(s: Stage) -> None:
        members = [f"m{number}" for number in range(20)]
        await s.driver.enqueue([group(*map(job, members), child("c", *members))], T0)
        held = await s.claim(*members)
        acks = [ack(it, keep_until=KEEP + timedelta(seconds=place), result=result) for place, it in enumerate(held)]
        db, hint = Between(s.third), settle.SettleHint()
        for some in (acks[:10], acks[10:]):
            assert await settle.settle(db, some, T0, hint=hint) == ["ok"] * 10
        ends = "settle_ended" if result else "settle_done"
        told = [ends, "dependants", "dependants_release", "dependants_satisfy"]
        assert db.asked == ([] if result else [ends]) + told * 2  # the second time it is expected
        assert await s.state("c") is State.READY

    play(act)


def test_a_dependant_is_cancelled_by_the_first_of_a_batch(play: Play) -> None:
    """K4: and its own dependants with it, all kept for as long as that one says."""

    async def act(s: Stage) -> None:
        parents = ("p", "q", "r")
        await s.driver.enqueue(
            [group(*map(job, parents), child("c", *parents, policy="cancel"), child("d", "c", policy="cancel"))], T0
        )
        held = await s.claim(*parents)
        ends: list[Transition] = [fail(held[0]), fail(held[1]), ack(held[2])]
        kept = [KEEP + timedelta(seconds=number) for number in (2, 1, 0)]
        ends = [replace(it, keep_until=until) for it, until in zip(ends, kept, strict=True)]
        assert await s.driver.settle(ends, T0) == ["ok"] * 3
        found = [it and (it.state, it.keep_until, it.unmet) for it in await s.driver.get(["c", "d"])]
        assert found == [(State.CANCELLED, kept[0], 2), (State.CANCELLED, kept[0], 1)]

    play(act)


def test_a_large_group_with_dependencies_is_copied(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """K2: edges too; and an id that is taken leaves nothing of it behind."""
    copied: list[str] = []
    copy = OwnDb.copy

    async def noted(db: OwnDb, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        copied.append(table)
        await copy(db, table, columns, rows)

    monkeypatch.setattr(OwnDb, "copy", noted)

    async def act(s: Stage) -> None:
        members = [f"m{number}" for number in range(enqueue.COPY_FROM)]
        chord = group(*map(job, members), child("c", *members), child("d", "c"))
        [stored] = await s.driver.enqueue([chord], T0)
        assert stored == tuple(Enqueued(it.id, True) for it in chord.jobs)
        assert copied == ["edge", "job"]
        found = [it and (it.state, it.unmet, it.due_at) for it in await s.driver.get(["m0", "m99", "c", "d"])]
        assert found == [
            (State.READY, 0, T0),
            (State.READY, 0, T0),
            (State.WAITING, len(members), T0),
            (State.WAITING, 1, T0),
        ]
        others = [f"n{number}" for number in range(enqueue.COPY_FROM)]
        [refused] = await s.driver.enqueue([group(*map(job, others), child("m7", *others))], T0)
        assert isinstance(refused, JobExists)
        assert await s.driver.get(["n0"]) == [None]
        assert await s.driver.parents(["m7"], 0) == [[]]

    play(act)


OVERTAKEN: dict[str, tuple[Callable[[JobRecord], Transition], str, State]] = {
    "plain": (lambda held: ack(held), "settle_done", State.DONE),
    "with a result": (lambda held: ack(held, result=b"1"), "settle_ended", State.DONE),
    "put back": (lambda held: put_back(held), "settle_put_back", State.READY),
}


@pytest.mark.parametrize("kind", OVERTAKEN)
def test_a_settle_that_a_heartbeat_overtakes_is_written(play: Play, kind: str) -> None:
    """D7, D8, T3: too late when it tried, in order when it asked why not: tried again, and taken neither for damage nor
    for a job that was asked to stop."""

    async def act(s: Stage) -> None:
        transition, after, state = OVERTAKEN[kind]
        await s.driver.enqueue([group(job("a"))], T0)
        [held] = await s.claim("a")
        report = Report("a", token_of(held))
        db = Between(s.third, after, lambda: s.driver.extend_lease([report], at(29), LEASE))
        hint = settle.SettleHint()
        hint.waited_for = True  # or there would be a second try before it asks
        assert await settle.settle(db, [transition(held)], at(31), hint=hint) == ["ok"]
        assert await s.state("a") is state
        assert not hint.waited_for or kind != "plain"

    play(act)


# a job that moves while another caller decides about it


def test_cancel_takes_nothing_away_from_a_worker(play: Play) -> None:
    """T3, G3: it saw the job dead; replayed and claimed meanwhile, the job is left to its worker."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("a"))], T0)
        await s.driver.settle(list(map(fail, await s.claim("a"))), T0)
        held: list[JobRecord] = []

        async def claim() -> None:
            await s.driver.replay([Replay(id="a")], T0)
            held.extend(await s.claim("a"))

        db = Between(s.third, "step_hold_live", claim)
        assert await whole(s.third, manage.cancel(db, ["a"], T0, KEEP)) == ["finished"]
        assert await s.driver.settle(list(map(ack, held)), T0) == ["ok"]

    play(act)


def test_a_dead_letter_by_hand_takes_nothing_away_from_a_worker(play: Play) -> None:
    """Q4, T3: claimed while the verb looks at it, a job is asked to stop, and its worker may still finish it."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("a"))], T0)
        held: list[JobRecord] = []
        async with s.other.transaction():
            held += await reserve.reserve_ids(s.other, claim(T0, LEASE, "w"), ["a"], 1)
            asking = asyncio.ensure_future(s.driver.dead_letter(deaths("a"), T0))
            await s.meets(asking)
        assert await asking == ["requested"]
        assert await s.driver.settle(list(map(ack, held)), T0) == ["ok"]
        assert await s.state("a") is State.DONE

    play(act)


def test_a_parent_that_ends_while_its_child_is_dead_lettered_counts_off(play: Play) -> None:
    """Q4, K2: the child is on its way from one table to the other, and lacks nothing once it is replayed."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("p"), child("c", "p"))], T0)
        [parent] = await s.claim("p")
        async with s.other.transaction():
            assert await manage.dead_letter(s.other, deaths("c"), T0) == ["dead"]
            settling = asyncio.ensure_future(s.driver.settle([ack(parent)], T0))
            await s.meets(settling)
        assert await settling == ["ok"]
        assert await s.driver.replay([Replay(id="c")], T0) == ["replayed"]
        assert await s.state("c") is State.READY

    play(act)


def test_a_collector_that_is_cancelled_meanwhile_is_counted_off(play: Play) -> None:
    """Q4, K2: the child leaves its table while its parent is dead-lettered, and lacks nothing once it is replayed."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("p"), child("c", "p", policy="collect"))], T0)
        async with s.other.transaction():
            assert await manage.cancel(s.other, ["c"], T0, KEEP) == ["cancelled"]
            asking = asyncio.ensure_future(s.driver.dead_letter(deaths("p"), T0))
            await s.meets(asking)
        assert await asking == ["dead"]
        assert await s.driver.replay([Replay(id="c")], T0) == ["replayed"]
        assert await s.state("c") is State.READY

    play(act)


def test_the_dependants_of_a_job_replayed_while_it_is_cancelled_are_released(play: Play) -> None:
    """T3, K2, Q3: `p` was over when the cancel looked, and it locks `p` only as a dependant of `g`. What it had seen
    below `p` is no longer so: `c` waits for it again."""

    async def act(s: Stage) -> None:
        flow = group(job("g"), child("p", "g", policy="cancel"), child("c", "p", policy="collect"))
        await s.driver.enqueue([flow], T0)
        assert await s.driver.cancel(["g"], T0, KEEP) == ["cancelled"]
        await s.driver.settle(list(map(fail, await s.claim("c"))), T0)
        db = Between(s.other, "step_below", lambda: s.driver.replay([Replay(id="p"), Replay(id="c")], T0))
        answers = await repeated(s.other, lambda: manage.cancel(db, ["g", "p"], T0, KEEP))
        assert answers == ["finished", "cancelled"]
        assert (await s.state("p"), await s.state("c")) == (State.CANCELLED, State.READY)

    play(act)


@pytest.mark.parametrize("verb", ["delete", "cancel"])
def test_a_job_that_moves_away_and_back_is_not_locked_out_of_order(play: Play, url: str, verb: str) -> None:
    """T1: the step waited for `a`, which left its table and came back while the step held `b`. Another transaction
    locks `a` and waits for `b`: to lock `a` now would be a deadlock, so the step gives `b` up and begins again."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job(id)) for id in "ab"], T0)
        steps: dict[str, Callable[[Db], Awaitable[object]]] = {
            "delete": lambda db: manage.delete(db, ["a", "b"]),
            "cancel": lambda db: manage.cancel(db, ["a", "b"], T0, KEEP),
            "replay": lambda db: manage.replay(db, [Replay(id="a"), Replay(id="b")], T0),
            "cancel a": lambda db: manage.cancel(db, ["a"], T0, KEEP),
            "replay a": lambda db: manage.replay(db, [Replay(id="a")], T0),
        }
        there, back, meeting = (
            ("replay a", "cancel a", "replay") if verb == "delete" else ("cancel a", "replay a", "cancel")
        )
        if verb == "delete":
            await s.driver.cancel(["a", "b"], T0, KEEP)
        waiting: list[asyncio.Future[Any]] = []

        async def come_back() -> None:
            if not waiting:
                await whole(s.third, steps[back](s.third))
                waiting.append(asyncio.ensure_future(whole(s.third, steps[meeting](s.third))))
                await s.meets(waiting[0], holder)

        async with connected(url) as holder:
            async with s.other.transaction():
                await steps[there](s.other)
                db = Between(holder, f"step_hold_{'ended' if verb == 'delete' else 'live'}", come_back)
                step = asyncio.ensure_future(repeated(holder, lambda: steps[verb](db)))
                await s.meets(step)
            answers = await step, await waiting[0]
        if verb == "delete":
            assert answers == (["live", "live"], ["replayed", "replayed"])
        else:
            assert answers == (["finished", "finished"], ["cancelled", "cancelled"])

    play(act)


def test_delete_frees_no_key_of_a_job_that_lives(play: Play) -> None:
    """I1, I2: a job is held until it is gone, and a replay comes too late."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("a", idempotency_key="k"))], T0)
        await s.driver.settle(list(map(fail, await s.claim("a"))), T0)
        replays: list[asyncio.Future[Any]] = []

        async def replay() -> None:
            replays.append(asyncio.ensure_future(s.driver.replay([Replay(id="a")], T0)))
            await s.meets(replays[0])

        assert await whole(s.other, manage.delete(Between(s.other, "step_below", replay), ["a"])) == ["deleted"]
        assert await replays[0] == ["missing"]
        assert (await s.state("a"), await s.keys()) == (None, [])

    play(act)


def test_two_replays_are_one(play: Play) -> None:
    """Q2: of two that replay a job, one does, and counts."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("a"))], T0)
        await s.driver.cancel(["a"], T0, KEEP)
        replays: list[asyncio.Future[Any]] = []

        async def replay() -> None:
            replays.append(asyncio.ensure_future(s.driver.replay([Replay(id="a")], T0)))
            await s.meets(replays[0])

        answers = await whole(s.other, manage.replay(Between(s.other, "step_above", replay), [Replay(id="a")], T0))
        assert (answers, await replays[0]) == (["replayed"], ["not_dead"])
        [found] = await s.driver.get(["a"])
        assert found is not None
        assert (found.state, found.replays) == (State.READY, 1)

    play(act)


def test_the_key_of_a_workflow_goes_with_its_last_record(play: Play) -> None:
    """I2, X8: also if two prune at the same time: the second leaves alone what the first is pruning."""

    async def act(s: Stage) -> None:
        flow = group(job("a", workflow_id="w"), job("b", workflow_id="w"), key="k", workflow_id="w")
        await s.driver.enqueue([flow], T0)
        await s.driver.settle([ack(it, keep_until=T0) for it in await s.claim("a", "b")], T0)
        async with s.other.transaction():
            assert await manage.prune(s.other, T0, 1) == 1
            pruning = asyncio.ensure_future(s.driver.prune(T0, 1))
            await s.meets(pruning)
        assert await pruning == 0
        assert await s.keys() == ["k"]
        assert await s.driver.prune(T0, 9) == 1
        assert await s.keys() == []

    play(act)


def test_a_prune_waits_for_no_other_transaction(play: Play) -> None:
    """X8: a workflow of which another transaction holds a record stays, and is pruned the next time."""

    async def act(s: Stage) -> None:
        flow = group(job("a", workflow_id="w"), job("b", workflow_id="w"), workflow_id="w")
        await s.driver.enqueue([flow], T0)
        await s.driver.settle([ack(it, keep_until=T0) for it in await s.claim("a", "b")], T0)
        async with s.other.transaction():
            assert await s.other.rows("hold_ended", ["b"])
            pruning = asyncio.ensure_future(s.driver.prune(T0, 9))
            await s.meets(pruning)
            assert pruning.done()
        assert (await pruning, await s.driver.prune(T0, 9)) == (0, 2)

    play(act)


# an id or a key that is stored by two at once


@pytest.mark.parametrize("within", [False, True], ids=["alone", "in a transaction"])
def test_no_key_is_left_without_its_job(play: Play, within: bool) -> None:
    """R2, D1, I1: an id that another caller is storing exists, also for a job with a key; others are stored."""

    async def act(s: Stage) -> None:
        groups = [group(job("a", idempotency_key="k")), group(job("b", idempotency_key="l"))]
        async with s.other.transaction():
            await enqueue.enqueue(s.other, [group(job("a"))], T0, None)
            if within:
                step = whole(s.third, s.driver.within(s.third.connection).enqueue(groups, T0))
            else:
                step = s.driver.enqueue(groups, T0)
            storing = asyncio.ensure_future(step)
            await s.meets(storing)
        refused, stored = await storing
        assert isinstance(refused, JobExists)
        assert (stored, await s.keys()) == ((Enqueued("b", True),), ["l"])

    play(act)


NEW: dict[str, tuple[NewJob, ...]] = {
    "plain": (job("n"), job("o")),
    "keyed": (job("n", idempotency_key="k"), job("o", idempotency_key="l")),
    "with the same key": (job("n", idempotency_key="l"), job("o", idempotency_key="l")),
    "with a parent": (job("m"), child("n", "m"), job("o", idempotency_key="l")),
}


@pytest.mark.parametrize("kind", NEW)
def test_a_new_job_whose_id_is_stored_just_now_refuses_no_settle(play: Play, kind: str) -> None:
    """D9: it is skipped, with its key; the others are stored."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("a"))], T0)
        [held] = await s.claim("a")
        async with s.other.transaction():
            await enqueue.enqueue(s.other, [group(job("n"))], T0, None)
            settling = asyncio.ensure_future(s.driver.settle([ack(held, new_jobs=NEW[kind])], T0))
            await s.meets(settling)
        assert await settling == ["ok"]
        assert (await s.state("a"), await s.state("o")) == (State.DONE, State.READY)
        assert await s.keys() == ([] if kind == "plain" else ["l"])
        assert await s.driver.parents(["n"], 9) == [[]]

    play(act)


def test_a_new_job_whose_key_is_taken_just_now_refuses_no_settle(play: Play) -> None:
    """D9, I1: it is skipped too."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("a"))], T0)
        [held] = await s.claim("a")
        async with s.other.transaction():
            await enqueue.enqueue(s.other, [group(job("x", idempotency_key="k"))], T0, None)
            new = (job("n", idempotency_key="k"), job("o"))
            settling = asyncio.ensure_future(s.driver.settle([ack(held, new_jobs=new)], T0))
            await s.meets(settling)
        assert await settling == ["ok"]
        assert [await s.state(id) for id in "anox"] == [State.DONE, None, State.READY, State.READY]

    play(act)


def test_what_a_call_has_stored_it_says_it_created(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """I1, D1: a key changed hands, which takes a second round; that one meets a deadlock, and is repeated. What
    the first one stored is not taken for another caller's."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("x", idempotency_key="l"))], T0)
        plain, rounds = OwnDb.rows, 0

        async def rows(db: OwnDb, name: str, *values: object) -> Sequence[Row]:
            nonlocal rounds
            if name != "enqueue_keyed":
                return await plain(db, name, *values)
            rounds += 1
            if rounds == 2:
                raise asyncpg.DeadlockDetectedError("deadlock detected")
            found = await plain(db, name, *values)
            if rounds == 1:
                await whole(s.third, manage.cancel(s.third, ["x"], T0, KEEP))
            return found

        monkeypatch.setattr(OwnDb, "rows", rows)
        groups = [group(job("a", idempotency_key="k")), group(job("b", idempotency_key="l"))]
        assert await s.driver.enqueue(groups, T0) == [(Enqueued("a", True),), (Enqueued("b", True),)]
        assert rounds == 3

    play(act)


def test_a_job_is_found_by_its_own_key_in_a_group_too(play: Play) -> None:
    """I1, D1: the same id with the same key again resolves to itself; the rest of the group is stored."""

    async def act(s: Stage) -> None:
        keyed = job("a", idempotency_key="k")
        await s.driver.enqueue([group(keyed, job("b"))], T0)
        [answers] = await s.driver.enqueue([group(keyed, job("c"))], T0)
        assert answers == (Enqueued("a", False), Enqueued("c", True))

    play(act)


# schedules that several swap at once


def nightly(name: str, **fields: Any) -> Schedule:
    return replace(Schedule(name=name, definition=b"", slot=T0), **fields)


def created(name: str, **fields: Any) -> Swap:
    return Swap(name=name, seen=None, then=nightly(name, **fields))


@pytest.mark.parametrize("stands", [True, False], ids=["committed", "rolled back"])
def test_creating_a_schedule_that_is_being_created_waits_and_sees_it(play: Play, stands: bool) -> None:
    """N3: a name that is not there yet is held, too; it is not overwritten, and a lost race is not an error."""

    async def act(s: Stage) -> None:
        transaction = s.other.connection.transaction()
        await transaction.start()
        assert await records.swap_schedules(s.other, [created("b", definition=b"theirs")], T0) == [True]
        swapping = asyncio.ensure_future(s.driver.swap_schedules([created("a"), created("b")], T0))
        await s.meets(swapping)
        await (transaction.commit() if stands else transaction.rollback())
        assert await swapping == [True, not stands]
        assert await s.driver.schedules() == [nightly("a"), nightly("b", definition=b"theirs" if stands else b"")]

    play(act)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_swapping_a_schedule_that_is_being_swapped_waits_and_sees_it(play: Play, order: tuple[str, str]) -> None:
    """N3: removed meanwhile, it is not as it was seen; what is left of the call stands."""

    async def act(s: Stage) -> None:
        await s.driver.swap_schedules([created("a"), created("b")], T0)
        async with s.other.transaction():
            gone = [Swap(name=order[0], seen=nightly(order[0]), then=None)]
            assert await records.swap_schedules(s.other, gone, T0) == [True]
            ticks = [Swap(name=it, seen=nightly(it), then=nightly(it, paused=True), job=job(it)) for it in order]
            swapping = asyncio.ensure_future(s.driver.swap_schedules(ticks, T0))
            await s.meets(swapping)
        assert await swapping == [False, True]
        assert await s.driver.schedules() == [nightly(order[1], paused=True)]
        assert (await s.state(order[0]), await s.state(order[1])) == (None, State.READY)

    play(act)


class Swapper:
    """Moves all schedules on, again and again, in whatever order: created, ticked, ticked, removed, created …"""

    def __init__(self, url: str, who: int, rng: Random) -> None:
        self._url, self._who, self._rng = url, who, rng
        self._numbers = count()
        self.won: list[Swap] = []

    async def work(self, rounds: int) -> None:
        async with connected(self._url) as db:
            for _ in range(rounds):
                stored = {it.name: it for it in await records.schedules(db)}
                swaps = [self._moved(name, stored.get(name)) for name in self._rng.sample("abcd", 4)]
                verdicts = await whole(db, records.swap_schedules(db, swaps, T0))
                self.won += [swap for swap, won in zip(swaps, verdicts, strict=True) if won]

    def _moved(self, name: str, seen: Schedule | None) -> Swap:
        id = f"{self._who}-{next(self._numbers)}"
        then: Schedule | None = nightly(name, last_job_id=id)
        if seen is not None:
            ticks = int(seen.definition or b"0") + 1
            then = None if ticks > 2 else replace(seen, definition=b"%d" % ticks, last_job_id=id)
        return Swap(name=name, seen=seen, then=then, job=job(id))


def test_swaps_of_the_same_schedules_in_any_order_never_deadlock(play: Play, url: str) -> None:
    """N3: no deadlock, not even one that could be tried again; of those who saw a state, one moves it on."""

    async def act(s: Stage) -> None:
        swappers = [Swapper(url, who, Random(who)) for who in range(8)]
        await asyncio.gather(*(it.work(25) for it in swappers))
        won = [swap for it in swappers for swap in it.won]
        assert sorted(it.id for it in await s.driver.query(Filter(), T0, 9999)) == sorted(
            swap.job.id for swap in won if swap.job is not None
        )
        now = {it.name: it for it in await s.driver.schedules()}
        for name in "abcd":
            mine = [swap for swap in won if swap.name == name]
            left = Counter(swap.seen for swap in mine) + Counter([now.get(name)])
            come_to = Counter(swap.then for swap in mine) + Counter([None])
            assert left == come_to
            assert len(mine) > 3
            assert all(times == 1 for state, times in left.items() if state is not None)

    play(act)


@pytest.mark.parametrize("key", [None, "k"], ids=["plain", "keyed"])
def test_a_tick_whose_id_is_stored_just_now_is_refused(play: Play, key: str | None) -> None:
    """N3, R2: as a value, with no key left behind; the other schedules of the call tick."""

    async def act(s: Stage) -> None:
        await s.driver.swap_schedules([created("a"), created("b")], T0)
        async with s.other.transaction():
            await enqueue.enqueue(s.other, [group(job("n"))], T0, None)
            ticks = [
                Swap(name=it, seen=nightly(it), then=None, job=job(id, idempotency_key=key and f"{key}-{id}"))
                for it, id in (("a", "n"), ("b", "o"))
            ]
            swapping = asyncio.ensure_future(s.driver.swap_schedules(ticks, T0))
            await s.meets(swapping)
        refused, swapped = await swapping
        assert isinstance(refused, JobExists)
        assert swapped is True
        assert await s.driver.schedules() == [nightly("a")]
        assert await s.keys() == ([] if key is None else ["k-o"])

    play(act)


def test_a_thousand_schedules_take_few_locks(play: Play) -> None:
    """N3: a server has not many, and those of all who declare their schedules at once must do."""

    async def act(s: Stage) -> None:
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        async with s.other.transaction():
            swaps = [created(f"s{n}") for n in range(1000)]
            assert await records.swap_schedules(s.other, swaps, T0) == [True] * 1000
            assert 1 < await s.other.connection.fetchval(locks) <= 64

    play(act)


# the order in which rows are held


async def three(s: Stage) -> None:
    """`z`, `y` and `x`, whose numbers grow and whose names do not."""
    await s.driver.enqueue([group(job("z"), job("y"), job("x"))], T0)


async def settle_plain(s: Stage) -> Transitions:
    await three(s)
    return list(map(ack, await s.claim("x", "y", "z")))


async def settle_results(s: Stage) -> Transitions:
    await three(s)
    return [ack(it, result=b"1") for it in await s.claim("x", "y", "z")]


async def settle_mixed(s: Stage) -> Transitions:
    await three(s)
    x, y, z = await s.claim("x", "y", "z")
    return [put_back(x), ack(y), ack(z)]


async def settle_put_backs(s: Stage) -> Transitions:
    await three(s)
    held = await s.claim("x", "y", "z")
    await s.driver.cancel(["z"], T0, KEEP)
    return list(map(put_back, held))


async def settle_parent(s: Stage) -> Transitions:
    await s.driver.enqueue([group(job("p"), child("z", "p"), child("y", "p"), child("x", "p"))], T0)
    return list(map(ack, await s.claim("p")))


async def settle_failing_parent(s: Stage) -> Transitions:
    children = child("z", "p", policy="cancel"), child("y", "p", policy="collect"), child("x", "p", policy="cancel")
    await s.driver.enqueue([group(job("p"), *children)], T0)
    return list(map(fail, await s.claim("p")))


async def settle_new_child(s: Stage) -> Transitions:
    await s.driver.enqueue([group(job("a"), job("z"), job("y"), job("x"))], T0)
    return [ack(it, new_jobs=(child("c", "x", "y", "z"),)) for it in await s.claim("a")]


Transitions = list[Transition]
SETTLES = [
    settle_plain,
    settle_results,
    settle_mixed,
    settle_put_backs,
    settle_parent,
    settle_failing_parent,
    settle_new_child,
]


@pytest.mark.parametrize("given", SETTLES)
def test_a_settle_and_a_heartbeat_never_wait_for_each_other(
    play: Play, given: Callable[[Stage], Awaitable[Transitions]]
) -> None:
    """X2, K2: statements lock rows in the order of their numbers, whatever order jobs finish in. A settle that has to
    wait for the first of them holds none of the others."""

    async def act(s: Stage) -> None:
        transitions = await given(s)
        async with s.other.transaction():
            assert await s.take("z")
            settling = asyncio.ensure_future(s.driver.settle(transitions, T0))
            await s.meets(settling)
            assert [await s.take("y"), await s.take("x")] == [True, True]
        assert set(await settling) == {"ok"}

    play(act)


def deaths(*ids: str) -> list[DeadLetter]:
    return [DeadLetter(id=id, reason="by hand", fingerprint="f", keep_until=KEEP) for id in ids]


@pytest.mark.parametrize("verb", ["cancel", "dead_letter"])
def test_a_stop_and_a_heartbeat_never_wait_for_each_other(play: Play, verb: str) -> None:
    """T3, Q4, X2: likewise."""

    async def act(s: Stage) -> None:
        await three(s)
        await s.claim("x", "y", "z")
        stop = s.driver.cancel([*"xyz"], T0, KEEP) if verb == "cancel" else s.driver.dead_letter(deaths(*"xyz"), T0)
        async with s.other.transaction():
            assert await s.take("z")
            stopping = asyncio.ensure_future(stop)
            await s.meets(stopping)
            assert [await s.take("y"), await s.take("x")] == [True, True]
        assert await stopping == ["requested"] * 3

    play(act)


class Caller:
    """A transaction of a caller."""

    def __init__(self, db: Db) -> None:
        self.location = Location("", SCHEMA, "races_work")
        self._db = db

    async def db(self) -> Db:
        return self._db


def test_a_settle_in_a_transaction_outlives_a_deadlock(play: Play) -> None:
    """D9, K2: it goes back to its savepoint, which lets the other one pass, and is tried again."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("p"), child("z", "p"), child("y", "p"))], T0)
        await s.driver.cancel(["z"], T0, KEEP)
        [parent] = await s.claim("p")

        async def take_z_then_y() -> None:
            async with s.other.transaction():
                await s.other.rows("hold_ended", ["z"])
                holding.set()
                await released.wait()
                await s.other.rows("hold", ["y"])

        async def cross() -> None:
            released.set()
            await s.meets(other, s.third)

        holding, released = asyncio.Event(), asyncio.Event()
        other = asyncio.ensure_future(take_z_then_y())
        await holding.wait()
        db = Between(s.third, "dependants_release", cross)
        async with s.third.transaction():
            await s.third.connection.execute("SET LOCAL deadlock_timeout = '1ms'")
            assert await settle_in(Caller(db), [ack(parent)], T0) == ["ok"]
        await other
        assert db.asked.count("dependants_release") == 2
        assert (await s.state("p"), await s.state("y")) == (State.DONE, State.READY)

    play(act)


def test_a_delete_and_a_settle_never_wait_for_each_other(play: Play) -> None:
    """Q2, K2: a job is held before its edges; a settle that waits for a child being deleted holds none of them."""

    async def act(s: Stage) -> None:
        parent = await a_cancelled_child(s)
        async with s.other.transaction():
            assert await s.other.rows("hold_ended", ["c"])
            settling = asyncio.ensure_future(s.driver.settle([ack(parent)], T0))
            await s.meets(settling)
            edges = f"SELECT parent FROM {SCHEMA}.edge WHERE child = 'c' FOR UPDATE NOWAIT"
            assert await s.other.connection.fetchval(edges) == "p"
        assert await settling == ["ok"]

    play(act)


def test_two_deletes_take_jobs_in_one_order(play: Play) -> None:
    """Q2: a delete that has to wait for the first job holds none of the others."""

    async def act(s: Stage) -> None:
        await three(s)
        await s.driver.cancel([*"xyz"], T0, KEEP)
        row = f"SELECT id FROM {SCHEMA}.ended JOIN {SCHEMA}.job USING (seq) WHERE id = $1 FOR UPDATE OF ended NOWAIT"
        async with s.other.transaction():
            assert await s.other.connection.fetchval(row, "z") == "z"
            deleting = asyncio.ensure_future(s.driver.delete([*"xyz"]))
            await s.meets(deleting)
            assert [await s.other.connection.fetchval(row, id) for id in "yx"] == ["y", "x"]
        assert await deleting == ["deleted"] * 3

    play(act)


def test_two_that_delete_never_wait_for_each_other(play: Play) -> None:
    """Q2, X8: edges are taken in one order, whether by their parents or by their children."""

    async def act(s: Stage) -> None:
        await s.driver.enqueue([group(job("p"), child("b", "p")), group(job("q"), child("a", "q"))], T0)
        async with s.other.transaction():
            edges = f"SELECT parent FROM {SCHEMA}.edge WHERE child = $1 FOR UPDATE NOWAIT"
            assert await s.other.connection.fetchval(edges, "a") == "q"
            deleting = asyncio.ensure_future(s.third.rows("step_remove_edges", ["a", "p"]))
            await s.meets(deleting)
            assert await s.other.connection.fetchval(edges, "b") == "p"
        await deleting

    play(act)


# round trips


def test_successes_are_one_statement_whenever_each_began_and_however_long_it_is_kept(play: Play) -> None:
    """D9, R1: jobs whose keys outlive them are kept until then, each until a time of its own; each began at its own."""

    async def act(s: Stage) -> None:
        await three(s)
        times = {id: KEEP + timedelta(seconds=number) for number, id in enumerate("xyz")}
        started = {"x": T0, "y": T0 + timedelta(milliseconds=1), "z": None}
        db = Between(s.third)
        acks = [ack(it, keep_until=times[it.id], started_at=started[it.id]) for it in await s.claim(*"xyz")]
        assert await settle.settle(db, acks, T0) == ["ok"] * 3
        assert db.asked == ["settle_done"]
        found = await s.driver.get(list("xyz"))
        assert {it.id: it.keep_until for it in found if it is not None} == times
        assert {it.id: it.started_at for it in found if it is not None} == started

    play(act)


def test_schedules_are_read_and_written_once_however_many(play: Play) -> None:
    """N3: and what is as it was is not written."""

    async def act(s: Stage) -> None:
        held = ["schedule_hold", "schedule_get"]
        db = Between(s.third)
        swaps = [created(name) for name in "abc"]
        assert await whole(s.third, records.swap_schedules(db, swaps, T0)) == [True] * 3
        assert await whole(s.third, records.swap_schedules(db, swaps, T0)) == [False] * 3
        ends = [Swap(name=name, seen=nightly(name), then=None) for name in "abc"]
        ticks = [Swap(name=name, seen=None, then=nightly(name), job=job(name)) for name in "ab"]
        assert await whole(s.third, records.swap_schedules(db, [*ends, *ticks], T0)) == [True] * 5
        written = [*["enqueue_one"] * 2, "schedule_put", "schedule_remove"]
        assert db.asked == [*held, "schedule_put", *held, *held, *written]

    play(act)
