"""D13 and D10: workers, wake-up hints, and closing a driver."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from taskharbor.core.evolve import Replay
from taskharbor.core.filter import Filter
from taskharbor.driver import COMMON, Driver, Group, Report, Reschedule, Swap, WorkerRecord
from taskharbor.errors import DriverClosed
from taskharbor.testing.kit.jobs import KEEP, ack, at, job
from taskharbor.testing.kit.scene import Cases, Scene

PROTOCOLS = {kind.__name__: kind for kind in (Driver, *COMMON)}
WORKER = WorkerRecord(id="w1", host="h", pid=7, queues=("a", "ü"), slots=16, busy=3, started_at=at(0), seen_at=at(10))
WAKE = 30.0
CLOSED: dict[str, Callable[[Scene], Awaitable[object]]] = {
    "enqueue": lambda s: s.enqueue(Group(jobs=(job(),))),
    "enqueue nothing": lambda s: s.enqueue(),
    "reserve": lambda s: s.reserve(),
    "extend_lease": lambda s: s.extend(Report("a", "t")),
    "settle": lambda s: s.settle(),
    "get": lambda s: s.look.get(["a"]),
    "find_key": lambda s: s.look.find_key("k", s.now),
    "query": lambda s: s.look.query(Filter(), s.now, 9),
    "counts": lambda s: s.look.counts(s.now),
    "parents": lambda s: s.parents("a"),
    "workflows": lambda s: s.flows.workflows(9),
    "dead_groups": lambda s: s.look.dead_groups(Filter(), s.now, 9),
    "cancel": lambda s: s.manage.cancel(["a"], s.now, KEEP),
    "delete": lambda s: s.manage.delete(["a"]),
    "free_workflow_key": lambda s: s.flows.free_workflow_key("w"),
    "replay": lambda s: s.manage.replay([Replay(id="a")], s.now),
    "reschedule": lambda s: s.manage.reschedule([Reschedule(id="a")], s.now),
    "pause": lambda s: s.manage.pause("q", True),
    "sweep": lambda s: s.sweep(),
    "prune": lambda s: s.prune(),
    "wait_for_work": lambda s: s.waits.wait_for_work(["q"], WAKE),
    "wait_for_end": lambda s: s.waits.wait_for_end("a", WAKE),
    "next_due": lambda s: s.waits.next_due(["q"]),
    "schedules": lambda s: s.schedules.schedules(),
    "swap_schedules": lambda s: s.schedules.swap_schedules([Swap(name="s", seen=None, then=None)], s.now),
    "swap no schedules": lambda s: s.schedules.swap_schedules([], s.now),
    "beat": lambda s: s.registry.beat(WORKER),
    "workers": lambda s: s.registry.workers(at(0)),
    "forget_worker": lambda s: s.registry.forget_worker("w1"),
    "tallies": lambda s: s.counters.tallies(at(0)),
    "forget_tallies": lambda s: s.counters.forget_tallies(at(0)),
}


class ClosingCases(Cases):
    """D10 and the declaration of D13."""

    @pytest.mark.parametrize("verb", list(CLOSED))
    async def test_D10_after_close_every_verb_is_DriverClosed(self, s: Scene, verb: str) -> None:
        """D10: at once, whichever verb is called."""
        await s.driver.close()
        with pytest.raises(DriverClosed):
            await CLOSED[verb](s)

    async def test_D10_closing_twice_is_fine(self, s: Scene) -> None:
        """D10: close is the one verb that may be repeated."""
        await s.driver.close()
        await s.driver.close()

    @pytest.mark.parametrize("name", list(PROTOCOLS))
    async def test_D13_the_driver_has_every_protocol_it_does_not_declare_to_lack(self, s: Scene, name: str) -> None:
        """D13: a missing protocol raises."""
        assert isinstance(s.driver, PROTOCOLS[name]) != (PROTOCOLS[name] in s.harness.lacks)

    async def test_D13_the_driver_describes_itself(self, s: Scene) -> None:
        """D13: a name, whether it is ephemeral, and its own limit if it has one."""
        assert s.driver.name
        assert isinstance(s.driver.ephemeral, bool)
        assert s.driver.max_payload is None or s.driver.max_payload >= 512 * 1024


class WorkerCases(Cases):
    """D13: Registry."""

    async def test_D13_workers_are_listed_as_they_last_reported(self, s: Scene) -> None:
        """D13: by id; a report replaces the last one."""
        other, later = replace(WORKER, id="a0", queues=()), replace(WORKER, busy=9, seen_at=at(20))
        for report in (WORKER, other, later):
            await s.registry.beat(report)
        assert await s.registry.workers(at(0)) == [other, later]

    async def test_D13_workers_not_seen_since_are_left_out(self, s: Scene) -> None:
        """D13: the boundary is inclusive."""
        await s.registry.beat(WORKER)
        assert await s.registry.workers(at(10)) == [WORKER]
        assert await s.registry.workers(at(10.000001)) == []

    async def test_D13_a_worker_that_stopped_is_forgotten(self, s: Scene) -> None:
        """D13: also when repeated."""
        await s.registry.beat(WORKER)
        for _ in range(2):
            await s.registry.forget_worker("w1")
            assert await s.registry.workers(at(0)) == []


class HintCases(Cases):
    """D13: WaitForWork. Hints may be late or missing; these are the ones that workers rely on."""

    async def test_D13_a_waiter_is_woken_by_an_enqueue(self, s: Scene) -> None:
        """D13: also from another handle."""
        other = await s.another()
        await woken(lambda: s.waits.wait_for_work(["q"], 600), lambda n: other.add(job(f"j{n}")))

    async def test_D13_a_waiter_is_woken_by_the_job_of_a_schedule(self, s: Scene) -> None:
        """D13, N3: as an enqueue does."""
        other = await s.another()

        async def swap(n: int) -> None:
            swaps = [Swap(name="s", seen=None, then=None, job=job(f"j{n}"))]
            assert await other.schedules.swap_schedules(swaps, s.now) == [True]

        await woken(lambda: s.waits.wait_for_work(["q"], 600), swap)

    async def test_D13_a_waiter_is_woken_by_the_end_of_a_job(self, s: Scene) -> None:
        """D13: so that results need no busy polling."""
        other = await s.another()
        await s.add(*(job(f"j{n}") for n in range(100)))
        held = await s.reserve(100)
        await woken(lambda: s.waits.wait_for_end("j0", 600), lambda n: other.end(ack(held[n])))

    async def test_D13_a_waiter_comes_back_after_its_timeout(self, s: Scene) -> None:
        """D13: without work, and without an error."""
        async with asyncio.timeout(WAKE):
            await s.waits.wait_for_work(["q"], 0.01)
            await s.waits.wait_for_end("nobody", 0.01)

    async def test_D13_a_cancelled_waiter_does_no_harm(self, s: Scene) -> None:
        """D13: the driver keeps working."""
        waiter = asyncio.create_task(s.waits.wait_for_work(["q"], 600))
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        await s.add(job("a"))
        assert await s.order() == ["a"]

    async def test_D13_next_due_names_the_next_job_of_the_queues(self, s: Scene) -> None:
        """D13: None in an empty queue; the earliest of several; other queues do not count."""
        assert await s.waits.next_due(["q"]) is None
        await s.add(job("a", run_at=at(60)), job("b", run_at=at(50.000001)), job("c", run_at=at(1), queue="x"))
        assert await s.waits.next_due(["q"]) == at(50.000001)
        assert await s.waits.next_due(["q", "x"]) == at(1)
        assert await s.waits.next_due(["empty"]) is None
        assert await s.waits.next_due([]) is None

    async def test_D13_next_due_sees_leases_run_out(self, s: Scene) -> None:
        """D13, D5: a lapsed job is work."""
        await s.held(lease=30)
        await s.add(job("b", run_at=at(90)))
        assert await s.waits.next_due(["q"]) == at(30)

    async def test_D13_next_due_leaves_paused_queues_out(self, s: Scene) -> None:
        """D13, D3: there is nothing to wake up for."""
        await s.add(job("a", run_at=at(60)))
        await s.manage.pause("q", True)
        assert await s.waits.next_due(["q"]) is None


async def woken(wait: Callable[[], Awaitable[None]], act: Callable[[int], Awaitable[object]]) -> None:
    """A waiter must be woken by what happens while it waits; a hint that comes too early may be missed.

    Twice, because the first hint may only mean that the driver has begun to listen.
    """
    numbers = iter(range(100))
    for _ in range(2):
        waiter = asyncio.ensure_future(wait())
        for number in numbers:
            await asyncio.sleep(0)
            await act(number)
            done, _ = await asyncio.wait([waiter], timeout=WAKE / 100)
            if done:
                break
        assert waiter.done(), "the waiter was not woken"
        await waiter
