"""Virtual time: hours in milliseconds, in order, and a deadlock is an error instead of a hang."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from taskharbor.testing import Deadlock, LoopClock, VirtualLoop, run
from taskharbor.testing.clock import EPOCH


def test_sleeping_for_days_takes_no_time_and_lands_exactly() -> None:
    async def main() -> float:
        await asyncio.sleep(0.25)
        await asyncio.sleep(3 * 86_400)
        return asyncio.get_running_loop().time()

    assert run(main()) == 3 * 86_400 + 0.25


def test_timers_run_in_the_order_of_their_times() -> None:
    seen: list[int] = []

    async def after(seconds: int) -> None:
        await asyncio.sleep(seconds)
        seen.append(seconds)

    async def main() -> None:
        await asyncio.gather(*(after(seconds) for seconds in (3600, 5, 60, 1)))

    run(main())
    assert seen == [1, 5, 60, 3600]


def test_a_timeout_strikes_in_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(40):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run(main()) == 40


def test_everything_blocked_is_a_deadlock_that_names_the_place() -> None:
    async def stuck() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"stuck.*test_virtual_loop\.py"):
        run(stuck())


def test_time_stands_still_while_a_thread_works() -> None:
    async def main() -> tuple[float, str]:
        timer = asyncio.create_task(asyncio.sleep(1))
        name = await asyncio.to_thread(lambda: threading.current_thread().name)
        now = asyncio.get_running_loop().time()
        await timer
        return now, name

    now, name = run(main())
    assert now == 0
    assert name != threading.main_thread().name


def test_timers_run_beside_threads_on_request() -> None:
    gate = threading.Event()

    async def main() -> float:
        thread = asyncio.create_task(asyncio.to_thread(gate.wait))
        await asyncio.sleep(100)
        gate.set()
        await thread
        return asyncio.get_running_loop().time()

    assert run(main(), threads_hold_time=False) == 100


def test_call_soon_threadsafe_works_from_the_loops_own_thread_and_from_others() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        seen: list[str] = []
        loop.call_soon_threadsafe(seen.append, "own")
        await asyncio.to_thread(loop.call_soon_threadsafe, seen.append, "other")
        await asyncio.sleep(0)
        return seen

    assert run(main()) == ["own", "other"]


def test_a_loop_can_be_driven_by_hand() -> None:
    loop = VirtualLoop()
    clock = LoopClock(loop)
    try:
        loop.run_until_complete(asyncio.sleep(90))
        assert clock() == EPOCH + timedelta(seconds=90)
    finally:
        loop.close()
