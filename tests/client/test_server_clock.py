"""Engines with a clock of their own: the hosts' clocks do not matter."""

from __future__ import annotations

import asyncio
import threading
import time as passed
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from taskharbor import Harbor, current
from taskharbor.client import clock as clocks
from taskharbor.core.job import JobRecord, NewJob
from taskharbor.driver import Group, ServerClock, at_once
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.testing import LoopClock, Recording, SkewedClock, Wrapper
from world import time, until, virtual

HOUR = timedelta(hours=1)


class WithClock(Wrapper):
    """A driver whose engine has a clock, and which counts how often it is asked."""

    def __init__(self, inner: Any, clock: Any) -> None:
        super().__init__(inner)
        self._clock = clock
        self.asked = 0

    async def server_now(self) -> datetime:
        self.asked += 1
        await asyncio.sleep(0.2)
        now: datetime = self._clock()
        await asyncio.sleep(0.2)
        return now


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
@virtual
async def test_every_now_is_the_engines(skew: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
    """L8, X4: delays and leases by the engine's clock, whatever the host says; no early run, no stolen lease."""
    true = LoopClock()
    monkeypatch.setattr(clocks, "host_clock", SkewedClock(true, skew))
    log = Recording(MemoryDriver(Random(1)))
    engine = WithClock(log, true)
    assert isinstance(engine, ServerClock)
    harbor = Harbor(driver=engine, rng=Random(1))

    @harbor.task
    async def work() -> float:
        current().enqueue(work.using(queue="never").step())
        return time()

    cancelled = await work.using(delay=10).aenqueue()
    await cancelled.acancel()
    job = await work.using(delay=60).aenqueue()
    due = time() + 60
    async with harbor.worker(["default"], threads=False):
        assert due - 1e-6 <= await job.aresult() <= due + 0.5  # the clock may be asked first
    for call in log.calls():
        if "now" in call:
            assert abs(call["now"] - true()) < timedelta(seconds=70)
    record: JobRecord | None = (await log.inner.get([cancelled.id]))[0]  # type: ignore[attr-defined]
    assert record is not None
    assert record.completed_at is not None
    assert record.completed_at < true()


@virtual
async def test_the_first_use_of_all_knows_the_engines_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """L8: a harbor that opens with a cancel or a replay passes the engine's time too."""
    true = LoopClock()
    monkeypatch.setattr(clocks, "host_clock", SkewedClock(true, HOUR))
    store = MemoryDriver(Random(1))
    await store.enqueue([Group(jobs=(NewJob(id="x", type="work", queue="default", payload=b"{}"),))], true())
    for verb in ("cancel", "replay"):
        log = Recording(store)
        harbor = Harbor(driver=WithClock(log, true))
        if verb == "cancel":
            await harbor.job("x").acancel()
        else:
            await harbor.admin.dlq.areplay("x")
        (call,) = log.calls(verb)
        assert abs(call["now"] - true()) < timedelta(seconds=2)


@virtual
async def test_the_clock_is_measured_again_and_follows_a_change() -> None:
    """L8: once a minute, carried on the monotonic clock in between; half the round trip is taken off."""
    engine_clock = SkewedClock(LoopClock(), 5)
    engine = WithClock(MemoryDriver(), engine_clock)
    harbor = Harbor(driver=engine)

    @harbor.task
    async def work() -> None: ...

    async with harbor.worker(threads=False):
        for _ in range(20):
            await asyncio.sleep(10)
            await work.aenqueue()
            assert abs(harbor.admin.now() - engine_clock()) < timedelta(seconds=0.001)
        assert 3 <= engine.asked <= 12
        engine_clock.offset = timedelta(seconds=-500)
        await until(lambda: abs(harbor.admin.now() - engine_clock()) < timedelta(seconds=0.001), 1, 70)


@virtual
async def test_a_slow_answer_is_asked_for_again() -> None:
    """L8: an answer that was held up for a minute may be off by half of it; the next one is believed."""

    class HeldUp(WithClock):
        async def server_now(self) -> datetime:
            now = await super().server_now()
            await asyncio.sleep(20 if self.asked % 2 else 0)
            return now

    true = LoopClock()
    engine = HeldUp(MemoryDriver(), true)
    harbor = Harbor(driver=engine)
    for expected in (2, 4):
        await harbor.job("x").acancel()
        assert engine.asked == expected
        assert abs(harbor.admin.now() - true()) < timedelta(seconds=0.001)
        await asyncio.sleep(100)


@virtual
async def test_a_question_without_an_answer_does_not_keep_others_from_asking() -> None:
    """L8: such as one that a fork cut off, or whose loop a handler blocks; the others ask a minute later."""

    class Silent(WithClock):
        async def server_now(self) -> datetime:
            if self.asked == 2:
                self.asked += 1
                await asyncio.Event().wait()
            return await super().server_now()

    engine_clock = SkewedClock(LoopClock(), 5)
    harbor = Harbor(driver=Silent(MemoryDriver(), engine_clock), store_timeout=1000)
    await harbor.job("x").acancel()
    engine_clock.offset = timedelta(seconds=-500)
    await asyncio.sleep(61)
    silent = asyncio.ensure_future(harbor.job("x").acancel())
    await asyncio.sleep(1)
    assert not silent.done()
    await harbor.job("x").acancel()  # by the time of before
    await asyncio.sleep(60)
    await harbor.job("x").acancel()
    assert abs(harbor.admin.now() - engine_clock()) < timedelta(seconds=0.001)
    silent.cancel()


@virtual
async def test_the_quicker_of_two_answers_counts() -> None:
    """L8: the first may have had to connect, so half of its trip says little about when it was given."""

    class Connecting(WithClock):
        async def server_now(self) -> datetime:
            await asyncio.sleep(0.9 if self.asked % 2 == 0 else 0)
            return await super().server_now()

    true = LoopClock()
    harbor = Harbor(driver=Connecting(MemoryDriver(), true))
    await harbor.job("x").acancel()
    assert abs(harbor.admin.now() - true()) < timedelta(seconds=0.001)


def test_the_engines_time_can_be_read_without_a_loop() -> None:
    """L8: by `def` handlers, which enqueue with their job, and by plain programs."""

    class Ahead(WithClock):
        async def server_now(self) -> datetime:
            return datetime.now(UTC) + HOUR

    harbor = Harbor(driver=Ahead(MemoryDriver(), None))

    @harbor.task
    def child() -> None: ...

    @harbor.task
    def parent() -> float:
        assert threading.current_thread() is not threading.main_thread()
        current().enqueue(child.using(delay=3600).step())
        return (harbor.admin.now() - datetime.now(UTC)).total_seconds()

    job = parent.enqueue()
    assert asyncio.run(harbor.adrain()) == 1
    assert job.result(timeout=5) == pytest.approx(3600, abs=5)
    assert (harbor.admin.now() - datetime.now(UTC)).total_seconds() == pytest.approx(3600, abs=5)
    harbor.close()


def test_the_time_is_right_while_another_thread_measures_it() -> None:
    """L8: what was measured, and when, change in one step; half of each would be a minute off."""
    passed, begun = 0.0, datetime(2030, 1, 1, tzinfo=UTC)

    class Loop(asyncio.SelectorEventLoop):
        interrupt: Callable[[], None] | None = None

        def time(self) -> float:
            act, self.interrupt = self.interrupt, None
            if act is not None:
                act()
            return passed

    class Engine:
        async def server_now(self) -> datetime:
            return begun + timedelta(seconds=passed)

    clock = clocks.EngineClock(Engine())

    async def story() -> None:
        nonlocal passed
        await clock.measure()
        passed = 60.0
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        loop.interrupt = lambda: at_once(clock.measure())
        assert clock() == begun + timedelta(seconds=60)

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(story())


def test_a_loop_that_counts_milliseconds_is_not_asked() -> None:
    """L8: uvloop's time stands still in between, so a worker would be behind its clients."""

    foreign = cast(asyncio.AbstractEventLoop, SimpleNamespace(time=lambda: round(passed.monotonic(), 3)))
    with asyncio.Runner() as runner:
        own = runner.get_loop()
        assert clocks._monotonic(own) == own.time
    assert clocks._monotonic(foreign) is passed.monotonic
