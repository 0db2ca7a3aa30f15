"""Workflows: what a step is given, what it waits for, and what becomes of the whole."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from unittest import mock

from taskharbor import FailedStep, Flow, Retry, Run, chain, current, group
from taskharbor.admin import bulk
from taskharbor.client import client as clients
from taskharbor.core import wiring
from taskharbor.core.job import JobRecord
from taskharbor.testing import LostRequest, Slow, script
from taskharbor.workflows import parent_results as parents
from world import World, time, until

from .stage import only, scene


def of_task(world: World, name: str) -> list[JobRecord]:
    """The jobs of a task, by its last name."""
    return [job for job in world.memory._store.jobs.values() if job.type.endswith(name)]


async def over(run: Run[Any], limit: float = 300) -> str:
    """The state of a workflow once nothing of it runs any more."""
    for _ in range(int(limit)):
        if (state := await run.astate()) != "running":
            return state
        await asyncio.sleep(1)
    return "running"


@scene
async def results_come_in_order_and_nested_as_the_flow_is() -> None:
    """K3: whichever ended first, a finalizer receives them in the order of the members."""
    world, taken = World(), list[Any]()

    @world.harbor.task
    async def value(name: str, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return name

    @world.harbor.task
    async def take(given: Any, more: str) -> str:
        taken.append((given, more))
        return "taken"

    flow = group(group(value.step("c", 3), value.step("a", 1)), value.step("b", 2)).then(take, "as well").then(take, "")
    async with world.worker():
        assert await (await flow.aenqueue()).aresult(timeout=60) == "taken"
    assert taken == [([["c", "a"], "b"], "as well"), ("taken", "")]


@scene
async def a_failed_step_stands_in_for_its_result() -> None:
    """K4: where failures are collected, the finalizer runs with them in their places."""
    world, taken = World(), list[Any]()

    @world.harbor.task(max_attempts=1)
    async def member(number: int) -> int | None:
        if number == 2:
            raise ValueError("no")
        return number or None

    @world.harbor.task
    async def take(given: list[int | FailedStep | None]) -> None:
        taken.extend(given)

    flow = group(member.step(number) for number in range(4)).on_failure("collect").then(take)
    async with world.worker():
        run = await flow.aenqueue()
        assert await over(run) == "done"
    dead = of_task(world, "member")[2]
    assert taken == [None, 1, FailedStep(dead.id, "dlq", "ValueError: no"), 3]


@scene
async def results_are_read_when_a_step_starts() -> None:
    """K3: again for each run, so that a retry sees what a replay has mended."""
    world, taken, mended = World(), list[Any](), False

    @world.harbor.task(max_attempts=1)
    async def member() -> int:
        if not mended:
            raise ValueError("no")
        return 5

    @world.harbor.task(max_attempts=2, retry=Retry.fixed(60))
    async def take(given: int | FailedStep) -> None:
        taken.append(given)
        if len(taken) == 1:
            raise ValueError("not like that")

    async with world.worker():
        run = await member.step().on_failure("collect").then(take).aenqueue()
        await until(lambda: taken)
        mended = True
        assert await world.harbor.admin.dlq.areplay(of_task(world, "member")[0].id) == "replayed"
        assert await over(run) == "done"
    assert [type(each) for each in taken] == [FailedStep, int]


@scene
async def a_step_whose_parents_are_gone_is_not_run() -> None:
    """K3, F9: the replay of one whose parents were lost ends in the DLQ, with the reason."""
    world, runs = World(), 0

    @world.harbor.task
    async def member() -> None: ...

    @world.harbor.task(max_attempts=1)
    async def take(given: None) -> None:
        nonlocal runs
        runs += 1
        raise ValueError("no")

    admin = world.harbor.admin
    async with world.worker():
        run = await member.step().then(take).aenqueue()
        assert await over(run) == "failed"
        (parent,), (dead,) = of_task(world, "member"), of_task(world, "take")
        world.memory._store._remove(parent)
        assert await admin.dlq.areplay(dead.id) == "replayed"
        assert await over(run) == "failed"
    assert (runs, (await world.record(dead.id)).dlq_reason) == (1, "undecodable")


@scene
async def more_results_than_a_step_can_take_dead_letter_it() -> None:
    """K3, R4: it is not run, and the reason says so; up to the limit it is."""
    world, taken = World(), list[Any]()

    @world.harbor.task
    async def member(text: str) -> str:
        return text

    @world.harbor.task
    async def take(given: Any) -> None:
        taken.append(given)

    with mock.patch.object(wiring, "LIMIT", 10), mock.patch.object(parents, "LIMIT", 10):
        async with world.worker():
            fits = await group(member.step("abc"), member.step("def")).then(take).aenqueue()
            assert await over(fits) == "done"
            beyond = await group(member.step("abc"), member.step("defg")).then(take).aenqueue()
            assert await over(beyond) == "failed"
    dead = of_task(world, "take")[-1]
    assert (dead.dlq_reason, dead.attempts) == ("results_too_large", 1)
    assert taken == [["abc", "def"]]


@scene
async def a_cancelled_workflow_releases_no_job() -> None:
    """K5, K4: the last steps go first, or those that collect failures would run on what was cancelled."""
    world, ran = World(lambda inner: Slow(inner, 5, only("cancel"))), list[str]()

    @world.harbor.task
    async def first() -> None: ...

    @world.harbor.task
    async def link(given: Any) -> None:
        ran.append(current().id)

    flow = chain(first.using(delay=1000).step(), *[link] * 8, on_failure="collect")
    with mock.patch.object(clients, "PAGE", 3):
        async with world.worker():
            run = await flow.aenqueue()
            assert await run.acancel() == 9
            assert await over(run) == "cancelled"
            await asyncio.sleep(30)
    assert ran == []


@scene
async def between_many_and_many_stands_one_step() -> None:
    """K1, K2: a second group waits for all of the first, and edges are as many as steps."""
    world = World()
    ends: list[float] = []
    starts: list[float] = []

    @world.harbor.task
    async def early(number: int) -> None:
        await asyncio.sleep(number)
        ends.append(time())

    @world.harbor.task
    async def late() -> None:
        starts.append(time())

    flow = chain(group(early.step(number) for number in range(12)), group(late.step() for _ in range(12)))
    async with world.worker():
        run = await flow.aenqueue()
        assert len(world.memory._store.jobs) == 25
        assert sum(map(len, world.memory._store.edges.parents.values())) == 24
        assert await over(run) == "done"
    assert (len(ends), len(starts)) == (12, 12)
    assert max(ends) <= min(starts)


@scene
async def a_flow_under_a_known_key_is_the_first_one() -> None:
    """D1, I1: nothing is stored, and the run of the second is that of the first, with its result."""
    world = World()

    @world.harbor.task
    async def value(number: int) -> int:
        return number

    flow = group(group(value.step(1), value.step(2)), value.step(3), group(list[Flow[int]]()))
    first = await flow.using(idempotency_key="k").aenqueue()
    again = await flow.using(idempotency_key="k").aenqueue()
    assert (first.created, again.created, again.same_payload) == (True, False, True)
    assert (again.id, len(world.memory._store.jobs)) == (first.id, 3)
    async with world.worker():
        assert await first.aresult(timeout=60) == [[1, 2], 3, []]
        assert await again.aresult(timeout=60) == [[1, 2], 3, []]
        assert await world.harbor.workflow(first.id).aresult(timeout=60) == [[1, 2], 3, []]


@scene
async def a_store_that_is_away_when_results_are_read_costs_nothing() -> None:
    """X2, K3: the step is put off, without an attempt."""
    world = World(lambda inner: LostRequest(inner, script("parents", "parents")))

    @world.harbor.task
    async def member() -> int:
        return 5

    @world.harbor.task(max_attempts=1)
    async def take(given: int) -> int:
        return given

    async with world.worker():
        run = await member.step().then(take).aenqueue()
        assert await run.aresult(timeout=60) == 5
    (record,) = of_task(world, "take")
    assert (record.attempts, record.version) == (0, 3)


@scene
async def a_flow_comes_with_its_handlers_success() -> None:
    """D9, K1: all of it in the same step as the Ack, with its edges; nothing of it with a failure."""
    world, taken = World(), list[int]()

    @world.harbor.task
    async def member(number: int) -> int:
        await asyncio.sleep(5)
        return number

    @world.harbor.task
    async def take(given: int) -> None:
        taken.append(given)

    @world.harbor.task(max_attempts=1)
    async def starter(number: int) -> None:
        current().enqueue(member.step(number).then(take))
        if number == 2:
            raise ValueError("its flow must not be born")

    await world.harbor.aenqueue_many([starter.step(1), starter.step(2)])
    async with world.worker():
        await asyncio.sleep(30)
    assert taken == [1]
    born = [*of_task(world, "member"), *of_task(world, "take")]
    assert [record.unmet for record in born] == [0, 0]
    assert len({record.workflow_id for record in born}) == 1


@scene
async def a_replayed_workflow_goes_on_from_where_it_failed() -> None:
    """K5, Q3: what died and what was cancelled for it; what is done stays done."""
    world, runs, mended = World(), list[str](), False

    @world.harbor.task
    async def begin() -> None:
        runs.append("begin")

    @world.harbor.task(max_attempts=1)
    async def middle(given: Any) -> None:
        runs.append("middle")
        if not mended:
            raise ValueError("no")

    @world.harbor.task
    async def end(given: Any) -> None:
        runs.append("end")

    admin = world.harbor.admin
    async with world.worker():
        run = await chain(begin.step(), middle, end, on_failure="cancel").aenqueue()
        assert await over(run) == "failed"
        mended = True
        assert len(await admin.workflows.areplay(run.id)) == 2
        assert await over(run) == "done"
    assert runs == ["begin", "middle", "middle", "end"]


@scene
async def a_cancelled_workflow_that_collects_can_be_replayed() -> None:
    """K4, Q3: its finalizer waits for the members once more, and takes their results; the key is free meanwhile."""
    world, given = World(), list[Any]()

    @world.harbor.task
    async def member(number: int) -> int:
        await asyncio.sleep(1)
        return number

    @world.harbor.task
    async def gather(parts: list[int | FailedStep]) -> None:
        given.append(parts)

    members = group(member.using(delay=100).step(number) for number in range(7))
    flow = members.on_failure("collect").then(gather).using(idempotency_key="k")
    with mock.patch.object(clients, "PAGE", 3), mock.patch.object(bulk, "BITE", 3):
        run = await flow.aenqueue()
        assert await run.acancel() == 8
        assert (await flow.aenqueue()).created
        assert len(await world.harbor.admin.workflows.areplay(run.id)) == 8
    async with world.worker():
        assert await over(run) == "done"
    assert given[0] == [*range(7)]


@scene
async def a_replay_leaves_out_what_no_job_waits_for() -> None:
    """K2, K5: a failure that was collected by a step that is done; with one that is dead, it runs again too."""
    world, runs, mended = World(), Counter[str](), False

    @world.harbor.task(max_attempts=1)
    async def member() -> None:
        runs["member"] += 1
        raise ValueError("no")

    @world.harbor.task(max_attempts=1)
    async def gather(parts: list[FailedStep | None]) -> None:
        runs["gather"] += 1
        if not mended:
            raise ValueError("no")

    admin = world.harbor.admin
    async with world.worker():
        run = await group(member.step()).on_failure("collect").then(gather).aenqueue()
        assert await over(run) == "failed"
        mended = True
        assert len(await admin.workflows.areplay(run.id)) == 2
        assert await over(run) == "done"
        assert await admin.workflows.areplay(run.id) == []
    assert runs == {"member": 2, "gather": 2}
