"""P1 and D1 for enqueues on the caller's thread: the awaited verb, other threads, workers and closing beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from threading import Barrier
from typing import TypeVar

import pytest

from taskharbor.core.job import NewJob
from taskharbor.driver import EnqueueBlocking, Enqueued, capability
from taskharbor.errors import DriverClosed
from taskharbor.testing.kit.jobs import at, child, group, job
from taskharbor.testing.kit.scene import BLOCKED_FOR, Cases, Harness, Scene

T = TypeVar("T")
THREADS, ROUNDS = 6, 25
WAKE = 30.0


def from_threads(s: Scene, play: Callable[[int], T]) -> Awaitable[list[T]]:
    """Call from several threads at once, none of which runs an event loop."""
    barrier = Barrier(THREADS)

    def perform(number: int) -> T:
        barrier.wait()
        return play(number)

    def all_of_them() -> list[T]:
        with ThreadPoolExecutor(THREADS) as threads:
            return list(threads.map(perform, range(THREADS)))

    return asyncio.to_thread(all_of_them)


def stored(s: Scene, *jobs: NewJob) -> tuple[Enqueued, ...]:
    """Enqueue a group by the blocking verb; it must be stored."""
    (result,) = s.blocking.enqueue_blocking([group(*jobs)], s.now, BLOCKED_FOR)
    assert isinstance(result, tuple), result
    return result


class BlockingCases(Cases):
    """Blocking enqueues beside everything else that uses the store."""

    async def test_D1_blocking_and_awaited_enqueues_know_each_others_jobs(self, s: Scene) -> None:
        """D1, R2, I1: one store, whichever verb a caller uses."""
        first, second = group(job("a", idempotency_key="k")), group(job("b", idempotency_key="k"))
        (made,) = await s.driver.enqueue([first], s.now)
        found, taken = s.blocking.enqueue_blocking([second, group(job("a"))], s.now, BLOCKED_FOR)
        assert (made, found) == ((Enqueued("a", True),), (Enqueued("a", False),))
        assert isinstance(taken, Exception)
        assert stored(s, job("c")) == (Enqueued("c", True),)
        (refused,) = await s.driver.enqueue([group(job("c"))], s.now)
        assert isinstance(refused, Exception)

    async def test_D1_a_refused_group_between_others_stores_nothing(self, s: Scene) -> None:
        """D1: each group of a call is all or none, independent of the others."""
        groups = [group(job("a")), group(job("b"), job("a")), group(job("c"), child("d", "x")), group(job("e"))]
        one, two, three, four = s.blocking.enqueue_blocking(groups, s.now, BLOCKED_FOR)
        assert [isinstance(result, tuple) for result in (one, two, three, four)] == [True, False, False, True]
        assert sorted(record.id for record in await s.all()) == ["a", "e"]

    async def test_D12_threads_and_a_loop_enqueue_and_claim_at_once(self, s: Scene) -> None:
        """D12, D1, L1: what was acknowledged is there once, and every job is claimed once."""
        claimed: list[str] = []

        async def work() -> None:
            while len(claimed) < 2 * THREADS * ROUNDS:
                found = await s.driver.reserve(["q"], at(1), timedelta(hours=1), 7, "w")
                claimed.extend(each.id for each in found)
                await asyncio.sleep(0)

        def play(thread: int) -> None:
            for number in range(ROUNDS):
                stored(s, job(f"{thread}.{number}"))

        async def produce() -> None:
            for number in range(THREADS * ROUNDS):
                await s.driver.enqueue([group(job(f"loop.{number}"))], s.now)

        working = asyncio.ensure_future(work())
        await asyncio.gather(from_threads(s, play), produce())
        async with asyncio.timeout(WAKE):
            await working
        assert len(set(claimed)) == len(claimed) == 2 * THREADS * ROUNDS

    async def test_I1_threads_with_one_key_get_one_job(self, s: Scene) -> None:
        """I1, D1: of many that enqueue the same key at once, one creates the job, and all get its id."""

        def play(thread: int) -> list[Enqueued]:
            return [stored(s, job(f"{thread}.{n}", idempotency_key=f"k{n}"))[0] for n in range(ROUNDS)]

        by_thread = await from_threads(s, play)
        for answers in zip(*by_thread, strict=True):
            assert len({each.id for each in answers}) == 1
            assert sum(each.created for each in answers) == 1

    async def test_D1_groups_of_several_threads_are_all_or_none(self, s: Scene) -> None:
        """D1: also where threads share a commit and some of their groups are refused."""

        def play(thread: int) -> list[bool]:
            groups = [group(job(f"{thread}.{n}"), job(f"{n}.taken")) for n in range(ROUNDS)]
            return [isinstance(s.blocking.enqueue_blocking([g], s.now, BLOCKED_FOR)[0], tuple) for g in groups]

        by_thread = await from_threads(s, play)
        assert [sum(stored) for stored in zip(*by_thread, strict=True)] == [1] * ROUNDS
        assert len(await s.all()) == 2 * ROUNDS

    async def test_D13_a_blocking_enqueue_wakes_a_waiting_worker(self, s: Scene) -> None:
        """D13, D12: the hint of the awaited verb is given by the blocking one too."""
        waiting = asyncio.ensure_future(s.waits.wait_for_work(["q"], WAKE))
        await asyncio.sleep(0)
        async with asyncio.timeout(WAKE / 2):
            for number in count():  # until it listens, a hint may be missed
                await asyncio.to_thread(stored, s, job(str(number)))
                await asyncio.wait([waiting], timeout=0.05)
                if waiting.done():
                    return

    async def test_D10_after_close_a_blocking_enqueue_is_DriverClosed(self, s: Scene) -> None:
        """D10: at once, also for no groups at all."""
        await s.driver.close()
        for groups in ([group(job())], []):
            with pytest.raises(DriverClosed):
                s.blocking.enqueue_blocking(groups, s.now, BLOCKED_FOR)

    def test_D10_closing_while_threads_enqueue_loses_nothing(self, harness: Harness) -> None:
        """D10, G2: each call is stored or refused, none hangs, and what was acknowledged is there."""

        async def play() -> None:
            driver = await harness.opened()
            s, kept = Scene(harness, driver), list[str]()

            def enqueue(thread: int) -> int:
                for number in range(100_000):
                    try:
                        stored(s, job(f"{thread}.{number}"))
                    except DriverClosed:
                        return number
                    kept.append(f"{thread}.{number}")
                raise AssertionError("it was never closed")

            calls = asyncio.ensure_future(from_threads(s, enqueue))
            while len(kept) < THREADS:  # noqa: ASYNC110  filled by threads
                await asyncio.sleep(0.001)
            before = None if driver.ephemeral else await harness.opened()
            await driver.close()
            await calls
            if before is not None:
                found = await Scene(harness, before).all()
                assert len(found) == len(kept)
                await before.close()

        harness.run(play())

    async def test_D13_the_driver_says_which_groups_it_takes(self, s: Scene) -> None:
        """D13, P1: a single job at least, which is the call that has to be fast."""
        takes = capability(s.driver, EnqueueBlocking).enqueues_blocking
        assert await asyncio.to_thread(takes, [group(job())])
