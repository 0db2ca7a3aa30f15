"""Enqueues that come at the same time go together, and none of them suffers for another."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskharbor import Job
from taskharbor.client.batching import MANY
from taskharbor.driver import Driver
from taskharbor.errors import DriverUnavailable, JobExists
from taskharbor.testing import Outage, Slow, Wrapper
from world import World, time, virtual


class Picky(Wrapper):
    """Chokes on a call that brings a certain payload."""

    async def enqueue(self, groups: Any, now: Any) -> Any:
        if any(b"bad" in job.payload for group in groups for job in group.jobs):
            raise ValueError("indigestible")
        return await self.inner.enqueue(groups, now)


def speaker(world: World) -> Any:
    @world.harbor.task
    async def say(word: str) -> None: ...

    return say


@pytest.mark.parametrize(
    ("number", "calls"), [(2, [2]), (MANY - 1, [MANY - 1]), (MANY, [MANY // 2] * 2), (99, [49, 50])]
)
@virtual
async def test_enqueues_of_one_turn_are_one_call_or_two(number: int, calls: list[int]) -> None:
    """D1: and every caller gets its own job."""
    world = World()
    say = speaker(world)
    await asyncio.gather(say.aenqueue("one"), say.aenqueue("two"))
    jobs = await asyncio.gather(*(say.aenqueue(str(each)) for each in range(number)))
    assert [len(call["groups"]) for call in world.log.calls("enqueue")] == [2, *calls]
    for each, job in enumerate(jobs):
        assert (await world.record(job)).payload == b'{"v":1,"args":{"word":"%d"}}' % each


@virtual
async def test_one_that_was_alone_goes_straight_away_the_next_time() -> None:
    """A single caller does not wait; later ones are batched again."""
    world = World(lambda inner: Slow(inner, 1))
    say = speaker(world)
    for _ in range(3):
        await say.aenqueue("alone")
    await asyncio.gather(*(say.aenqueue(str(each)) for each in range(5)))
    await asyncio.gather(*(say.aenqueue(str(each)) for each in range(5)))
    assert [len(call["groups"]) for call in world.log.calls("enqueue")] == [1, 1, 1, 1, 4, 5]


@virtual
async def test_one_key_in_one_turn_is_one_job() -> None:
    """I1."""
    say = speaker(World()).using(idempotency_key="k")
    jobs: list[Job[None]] = await asyncio.gather(*(say.aenqueue("once") for _ in range(5)))
    assert len({job.id for job in jobs}) == 1
    assert [job.created for job in jobs].count(True) == 1


@virtual
@pytest.mark.parametrize("position", [0, 1, 4])
@pytest.mark.parametrize("turns", [0, 1, 2, 3])
async def test_a_cancelled_caller_cancels_no_other(position: int, turns: int) -> None:
    """D1: any of them, at any time."""
    world = World(lambda inner: Slow(inner, 1))
    say = speaker(world)
    await say.aenqueue("open")
    calls = [asyncio.create_task(say.aenqueue(str(number))) for number in range(5)]
    for _ in range(turns):
        await asyncio.sleep(0)
    calls[position].cancel()
    results: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results.pop(position), asyncio.CancelledError)
    assert {await world.state(job) for job in results} == {"ready"}


@virtual
async def test_one_that_the_store_cannot_take_fails_alone() -> None:
    """D1."""
    world = World(Picky)
    say = speaker(world)
    results: list[Any] = await asyncio.gather(
        *(say.aenqueue(word) for word in ("a", "b", "bad", "c")), return_exceptions=True
    )
    assert isinstance(results.pop(2), ValueError)
    assert {await world.state(job) for job in results} == {"ready"}


@virtual
async def test_one_that_is_refused_is_refused_alone() -> None:
    """R2."""
    world = World()
    say = speaker(world)
    await say.using(id="taken").aenqueue("before")
    ids = ("taken", "free", "twice", "twice")
    results: list[Any] = await asyncio.gather(*(say.using(id=id).aenqueue("x") for id in ids), return_exceptions=True)
    assert [isinstance(result, JobExists) for result in results] == [True, False, False, True]


@virtual
async def test_all_of_them_get_the_error_of_an_unavailable_store() -> None:
    """X2: each with an error of its own."""
    world = World(Outage)
    say = speaker(world)
    await say.aenqueue("open")
    world.store.down = True
    errors: list[Any] = await asyncio.gather(*(say.aenqueue("x") for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in errors] == [DriverUnavailable] * 3
    assert len({id(error) for error in errors}) == 3


@virtual
async def test_no_job_waits_longer_than_the_bound() -> None:
    """X2: in company as alone."""

    def hanging(inner: Driver) -> Driver:
        return Slow(inner, 100)

    world = World(hanging, store_timeout=5)
    say = speaker(world)
    errors: list[Any] = await asyncio.gather(*(say.aenqueue("x") for _ in range(3)), return_exceptions=True)
    assert {type(error) for error in errors} == {DriverUnavailable}
    assert all("may still take effect" in str(error) for error in errors)
    assert time() == 5
