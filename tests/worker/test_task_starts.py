"""Tasks of a batch that begin by one callback: like tasks that begin one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from taskharbor.worker.task_starts import TaskStarts
from world import World, virtual

mark: ContextVar[int] = ContextVar("mark", default=-1)


class CountingLoop(asyncio.SelectorEventLoop):
    calls = 0

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        self.calls += 1
        return super().call_soon(callback, *args, context=context)


def started(loop: asyncio.AbstractEventLoop, *coroutines: Any) -> list[asyncio.Task[Any]]:
    with TaskStarts(loop):
        return [asyncio.Task(each, loop=loop) for each in coroutines]


def test_they_begin_in_order_by_one_callback_each_in_its_own_context() -> None:
    """F11: one run leaves nothing behind in the context of the next."""
    loop, seen = CountingLoop(), list[tuple[int, int]]()

    async def body(number: int) -> int:
        seen.append((number, mark.get()))
        mark.set(number)
        assert asyncio.current_task() is tasks[number]
        await asyncio.sleep(0)
        return mark.get()

    before = loop.calls
    tasks = started(loop, *(body(number) for number in range(3)))
    assert loop.calls == before + 1
    assert loop.run_until_complete(asyncio.gather(*tasks)) == [0, 1, 2]
    assert seen == [(0, -1), (1, -1), (2, -1)]
    assert "call_soon" not in vars(loop)
    loop.close()


def test_an_interrupt_in_one_lets_the_others_begin() -> None:
    """X6: Ctrl-C in the first step of a handler goes through the loop."""
    loop, seen = asyncio.new_event_loop(), list[int]()

    async def body(number: int) -> None:
        seen.append(number)
        if number == 1:
            raise KeyboardInterrupt

    tasks = started(loop, *(body(number) for number in range(3)))
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(asyncio.sleep(0))
    assert seen == [0, 1]
    loop.run_until_complete(tasks[2])
    assert seen == [0, 1, 2]
    assert isinstance(tasks[1].exception(), KeyboardInterrupt)
    loop.close()


def test_one_that_is_cancelled_before_it_begins_does_not_run() -> None:
    loop, seen = asyncio.new_event_loop(), list[int]()

    async def body() -> None:
        seen.append(1)

    [task] = started(loop, body())
    task.cancel()
    loop.run_until_complete(asyncio.wait([task]))
    assert task.cancelled()
    assert seen == []
    loop.close()


def debugged(loop: asyncio.AbstractEventLoop) -> None:
    loop.set_debug(True)


def patched(loop: asyncio.AbstractEventLoop) -> None:
    vars(loop)["call_soon"] = loop.call_soon


@pytest.mark.parametrize("changed", [debugged, patched])
def test_a_loop_that_others_have_changed_is_left_alone(changed: Callable[[asyncio.AbstractEventLoop], None]) -> None:
    loop = CountingLoop()
    changed(loop)
    attributes, before = dict(vars(loop)), loop.calls
    tasks = started(loop, asyncio.sleep(0, 7), asyncio.sleep(0, 8))
    assert loop.calls == before + 2
    assert vars(loop).get("call_soon") is attributes.get("call_soon")
    assert loop.run_until_complete(asyncio.gather(*tasks)) == [7, 8]
    loop.close()


@virtual
async def test_what_eager_handlers_ask_of_the_loop_is_not_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """F11: from Python 3.12 on a handler takes its first step while its task is made."""
    asked: list[int] = []

    def eager(body: Any, *, loop: asyncio.AbstractEventLoop, name: str) -> asyncio.Task[None]:
        loop.call_soon(asked.append, 1)  # as a first step that sleeps or starts a task of its own
        return asyncio.Task(body, loop=loop, name=name)

    monkeypatch.setattr("taskharbor.worker.starter.EAGER", True)
    monkeypatch.setattr("taskharbor.worker.starter.new_task", eager)
    world = World()

    @world.harbor.task
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    job = await work.aenqueue()
    await world.drain()
    assert (await job.aresult(timeout=1), asked) == (7, [1])
