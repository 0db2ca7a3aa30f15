"""Closing while calls are under way, and calls whose callers leave before they have an answer."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from taskharbor import drivers
from taskharbor.driver import Driver, forking
from taskharbor.errors import BlockingCallInLoop, StoreClosed, TaskError
from taskharbor.manager import TaskManager
from taskharbor.testing import ManualClock, Wrapper
from world import time, virtual

from .stage import LEASE, World, played


class SlowReply(Wrapper):
    """Does what it is asked at once, but answers calls of one verb only when it is released."""

    def __init__(self, inner: Driver, verb: str) -> None:
        super().__init__(inner)
        self.verb = verb
        self.done, self.answer = asyncio.Event(), asyncio.Event()
        self.closed = 0

    async def _perform(self, verb: str, arguments: dict[str, Any], call: Callable[[], Awaitable[Any]]) -> Any:
        answer = await call()
        if verb == self.verb:
            self.done.set()
            await self.answer.wait()
        return answer

    async def close(self) -> None:
        self.closed += 1


def portals() -> set[threading.Thread]:
    """The threads behind blocking calls."""
    return {thread for thread in threading.enumerate() if thread.name == "taskharbor-portal"}


def end(threads: set[threading.Thread]) -> None:
    """See that these threads end."""
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


# closing


@pytest.mark.parametrize(("verb", "call"), [("get", "aget"), ("enqueue", "asubmit"), ("reserve", "aclaim")])
@played
async def test_closing_waits_for_calls_under_way(
    w: World, verb: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M3: they get their answers, later ones are refused, and the store is closed once and not opened again."""
    line = SlowReply(await w.open(), verb)

    async def opened(url: str) -> Driver:
        return line

    monkeypatch.setattr(drivers, "from_url", opened)
    tasks = TaskManager("memory://", clock=w.clock)
    id = await w.me.asubmit(b"x")
    given = {"aget": (id,), "asubmit": (b"x",), "aclaim": (id, "w1")}
    under_way = asyncio.ensure_future(getattr(tasks, call)(*given[call]))
    await line.done.wait()
    closing = asyncio.ensure_future(tasks.aclose())
    await asyncio.sleep(0)
    with pytest.raises(StoreClosed):
        await tasks.asubmit(b"late")
    await tasks.aclose()
    assert (closing.done(), line.closed) == (False, 0)
    line.answer.set()
    assert await under_way
    await closing
    assert (tasks._lifecycle.session.is_open, line.closed) == (False, 1)


@virtual
async def test_closing_waits_only_so_long() -> None:
    """M3, X2: as long as a call may take; one that is still running gets an error."""
    tasks = TaskManager("memory://")
    store = await tasks._lifecycle.harbor.adriver()

    async def stay() -> None:
        with tasks._lifecycle.gate.entered():
            await tasks.aclose()
            await store.settle([], ManualClock()())

    with pytest.raises(StoreClosed):
        await stay()
    assert time() == 30


@virtual
async def test_a_cancelled_close_has_closed() -> None:
    """M3: at once, without waiting for calls under way."""
    tasks = TaskManager("memory://")
    await tasks.asubmit(b"x")
    with tasks._lifecycle.gate.entered():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await tasks.aclose()
        assert not tasks._lifecycle.session.is_open


def test_threads_that_call_while_another_closes_get_an_error(tmp_path: Path) -> None:
    """M3, P1: nothing but `StoreClosed`; the store stays closed, and no thread is left behind."""
    before = portals()
    for _ in range(5):
        tasks = TaskManager(f"sqlite:///{tmp_path}/tasks.db?synchronous=normal")
        id = tasks.submit(b"x")
        started = threading.Barrier(9)

        def call(tasks: TaskManager, id: str, started: threading.Barrier) -> None:
            tasks.get(id)
            started.wait(60)
            while True:
                tasks.get(id)
                tasks.submit(b"y")
                tasks.list(limit=1)

        with ThreadPoolExecutor(10) as pool:
            calls = [pool.submit(call, tasks, id, started) for _ in range(8)]
            started.wait(60)
            closers = [pool.submit(tasks.close) for _ in range(2)]
            assert {type(call.exception(60)) for call in calls} == {StoreClosed}
            assert {closer.exception(60) for closer in closers} == {None}
        assert not tasks._lifecycle.session.is_open
    end(portals() - before)


@pytest.mark.parametrize("given", [False, True])
def test_aclose_ends_the_thread_behind_blocking_calls(given: bool) -> None:
    """P1: also of a manager on a driver that was given."""
    before = portals()
    tasks = TaskManager(drivers.memory.MemoryDriver() if given else "memory://")
    tasks.submit(b"x")
    mine = portals() - before
    assert len(mine) == 1
    asyncio.run(tasks.aclose())
    end(mine)


def test_close_on_a_running_loop_names_its_twin() -> None:
    """P1: and closes nothing."""

    async def play() -> None:
        async with TaskManager(drivers.memory.MemoryDriver()) as tasks:
            with pytest.raises(BlockingCallInLoop, match="aclose"):
                tasks.close()
            assert await tasks.asubmit(b"x")

    asyncio.run(play())


def test_a_manager_that_is_gone_is_forgotten() -> None:
    """M1, X8: what a fork would have to renew goes with it."""
    gc.collect()
    before = len(forking._renewals)

    def use() -> None:
        with TaskManager("memory://") as tasks:
            tasks.submit(b"x")

    for _ in range(10):
        use()
    gc.collect()
    assert len(forking._renewals) <= before


# leaving


async def left(w: World, verb: str, call: str, *given: Any) -> tuple[TaskManager, str]:
    """A manager with a claimed task, whose call was cancelled after the store had done what it says."""
    line = SlowReply(await w.open(), verb)
    me = TaskManager(line, clock=w.clock, lease=LEASE)
    id = await me.asubmit(b"x", max_attempts=1 if call == "aclaim" else 2)
    if call != "aclaim":
        await me.aclaim(id, "w1")
    calling = asyncio.ensure_future(getattr(me, call)(id, *given))
    await line.done.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    line.answer.set()
    return me, id


@played
async def test_a_claim_that_its_caller_did_not_wait_for_is_not_lost(w: World) -> None:
    """M4: the manager keeps the token, so the same worker has the task when it asks again, for the same attempt."""
    me, id = await left(w, "reserve", "aclaim", "w1")
    again = await me.aclaim(id, "w1")
    assert (again.attempts, again.claimed_by) == (1, "w1")
    assert (await me.acomplete(id, "w1", b"done")).status == "completed"


@played
async def test_ends_that_their_callers_did_not_wait_for_can_be_repeated(w: World) -> None:
    """D8, X3: complete, fail and retry alike."""
    me, id = await left(w, "settle", "acomplete", "w1", b"first")
    assert (await me.acomplete(id, "w1", b"second")).result == b"first"
    me, id = await left(w, "settle", "afail", "w1", "no")
    assert (await me.afail(id, "w1", "no")).status == "pending"
    assert len((await w.job(id)).failures) == 1
    me, id = await left(w, "settle", "aretry")
    assert (await me.aretry(id)).status == "pending"
    assert (await me.aclaim(id, "w1")).attempts == 2


# overlapping


@played
async def test_claims_of_one_worker_at_the_same_moment_are_one(w: World) -> None:
    """M1, M2, M4: sixteen calls, one attempt, and each of them has it."""
    for _ in range(5):
        id = await w.me.asubmit(b"work", max_attempts=1)
        tasks = await asyncio.gather(*(w.me.aclaim(id, "w1") for _ in range(16)))
        assert {(task.status, task.attempts, task.payload) for task in tasks} == {("claimed", 1, b"work")}
        assert (await w.me.acomplete(id, "w1")).status == "completed"


@played
async def test_a_claim_waits_for_another_of_the_same_worker(w: World) -> None:
    """M4: the store knows of it before the manager has the token; a worker of another name need not wait."""
    line = SlowReply(await w.open(), "reserve")
    me = TaskManager(line, clock=w.clock, lease=LEASE)
    id = await me.asubmit(b"x")
    first = asyncio.ensure_future(me.aclaim(id, "w1"))
    await line.done.wait()
    second = asyncio.ensure_future(me.aclaim(id, "w1"))
    with pytest.raises(TaskError, match="claimed by 'w1'"):
        await me.aclaim(id, "w2")
    assert not second.done()
    line.answer.set()
    assert [(await claim).attempts for claim in (first, second)] == [1, 1]


def test_threads_of_one_worker_share_a_claim(tmp_path: Path) -> None:
    """M4, P1: eight of them, on a file."""
    with TaskManager(f"sqlite:///{tmp_path}/tasks.db?synchronous=normal") as tasks, ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            id = tasks.submit(b"work", max_attempts=1)
            claims = [pool.submit(tasks.claim, id, "w1") for _ in range(8)]
            assert {claim.result(60).attempts for claim in claims} == {1}
            assert tasks.complete(id, "w1").status == "completed"
