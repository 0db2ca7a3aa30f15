"""Fault wrappers: the same protocols as the driver inside, faults from a seed or a script, nothing by accident."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from random import Random

import pytest

from taskharbor.core.job import NewJob
from taskharbor.driver import COMMON, Driver, Group, Inspect, ServerClock
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import DriverClosed, DriverUnavailable
from taskharbor.testing import (
    Flaky,
    LostReply,
    LostRequest,
    ManualClock,
    Outage,
    Recording,
    Slow,
    Wrapper,
    run,
    script,
    sometimes,
)

WRAPPERS: list[Callable[[Driver], Wrapper]] = [
    Wrapper,
    lambda inner: Flaky(inner, Random(1)),
    lambda inner: Slow(inner, 0.1),
    LostRequest,
    LostReply,
    Outage,
    Recording,
]
now = ManualClock()


def group(id: str) -> Group:
    return Group(jobs=(NewJob(id=id, type="t", queue="q", payload=b""),))


class FiveVerbs:
    """A driver with nothing beside the five verbs."""

    def __init__(self) -> None:
        memory = MemoryDriver()
        self.name, self.ephemeral = "bare", True
        self.max_payload: int | None = None
        self.enqueue, self.reserve, self.extend_lease = memory.enqueue, memory.reserve, memory.extend_lease
        self.settle, self.close = memory.settle, memory.close


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_wrapper_has_exactly_the_protocols_of_the_driver_inside(wrap: Callable[[Driver], Wrapper]) -> None:
    wrapped = wrap(wrap(MemoryDriver()))
    for protocol in (Driver, *COMMON):
        assert isinstance(wrapped, protocol)
    assert not isinstance(wrapped, ServerClock)
    bare = wrap(FiveVerbs())
    assert isinstance(bare, Driver)
    assert not isinstance(bare, Inspect)
    assert wrapped.name == "memory"
    assert wrapped.ephemeral


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_close_always_works(wrap: Callable[[Driver], Wrapper]) -> None:
    async def main() -> None:
        wrapped = wrap(MemoryDriver())
        await wrapped.close()
        with pytest.raises(DriverClosed):
            await wrapped.inner.enqueue([], now())

    run(main())


def test_a_lost_request_changes_nothing_and_a_lost_reply_everything() -> None:
    async def main() -> None:
        memory = MemoryDriver()
        with pytest.raises(DriverUnavailable):
            await LostRequest(memory).enqueue([group("a")], now())
        with pytest.raises(DriverUnavailable):
            await LostReply(memory).enqueue([group("b")], now())
        first, second = await memory.get(["a", "b"])
        assert first is None
        assert second is not None

    run(main())


def test_a_script_strikes_once_per_verb_named() -> None:
    async def main() -> None:
        driver = LostRequest(MemoryDriver(), script("settle", "get", "settle"))
        await driver.enqueue([group("a")], now())
        for _ in range(2):
            with pytest.raises(DriverUnavailable):
                await driver.settle([], now())
        assert await driver.settle([], now()) == []
        with pytest.raises(DriverUnavailable):
            await driver.get(["a"])
        assert await driver.get(["b"]) == [None]

    run(main())


def outcomes(seed: int) -> list[tuple[bool, bool]]:
    """For 200 enqueues, whether the caller got the answer and whether it happened."""

    async def main() -> list[tuple[bool, bool]]:
        memory = MemoryDriver()
        driver = Flaky(memory, Random(seed), rate=0.5)
        seen: list[tuple[bool, bool]] = []
        for number in range(200):
            try:
                await driver.enqueue([group(str(number))], now())
                heard = True
            except DriverUnavailable:
                heard = False
            seen.append((heard, (await memory.get([str(number)])) != [None]))
        return seen

    return run(main())


def test_a_flaky_driver_loses_requests_and_replies_and_repeats_itself_from_the_seed() -> None:
    assert outcomes(7) == outcomes(7)
    assert outcomes(7) != outcomes(8)
    assert set(outcomes(7)) == {(True, True), (False, True), (False, False)}


def test_sometimes_can_be_limited_to_verbs() -> None:
    strikes = sometimes(Random(1), 1.0, only=["settle"])
    assert strikes("settle")
    assert not strikes("reserve")


def test_a_slow_driver_takes_both_ways_in_virtual_time() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        times: list[float] = []
        driver = Slow(MemoryDriver(), iter([1.0, 2.0, 30.0, 40.0]).__next__)
        for _ in range(2):
            await driver.enqueue([], now())
            times.append(loop.time())
        return times

    assert run(main()) == [3, 73]


def test_an_outage_refuses_and_swallows_the_replies_under_way() -> None:
    async def main() -> None:
        memory = MemoryDriver()
        driver = Outage(Slow(memory, 1))
        under_way = asyncio.create_task(driver.enqueue([group("a")], now()))
        await asyncio.sleep(0.5)
        driver.down = True
        with pytest.raises(DriverUnavailable):
            await driver.reserve(["q"], now(), timedelta(seconds=1), 1, "w")
        with pytest.raises(DriverUnavailable):
            await under_way
        driver.down = False
        claimed = await driver.reserve(["q"], now(), timedelta(seconds=1), 1, "w")
        assert [job.id for job in claimed] == ["a"]

    run(main())


def test_a_recording_has_both_ends_of_every_call_in_order() -> None:
    async def main() -> None:
        driver = Recording(LostReply(Slow(MemoryDriver(), 1), script("settle")))
        await asyncio.gather(driver.enqueue([group("a")], now()), driver.get(ids=["a"]))
        with pytest.raises(DriverUnavailable):
            await driver.settle([], now=now())
        assert [(op.number, op.phase, op.verb) for op in driver.log] == [
            (0, "called", "enqueue"),
            (1, "called", "get"),
            (0, "returned", "enqueue"),
            (1, "returned", "get"),
            (4, "called", "settle"),
            (4, "raised", "settle"),
        ]
        assert driver.calls("get") == [{"ids": ["a"]}]
        assert driver.calls()[0] == {"groups": [group("a")], "now": now()}
        assert driver.log[3].value[0].id == "a"
        assert isinstance(driver.log[5].value, DriverUnavailable)

    run(main())
