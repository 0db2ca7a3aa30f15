"""Simulated processes: killed and stopped between any two of their steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from taskharbor.testing.simulation.processes import Process, ProcessLoop, current_process


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run on a loop that knows processes."""
    with asyncio.Runner(loop_factory=ProcessLoop) as runner:
        loop: Any = runner.get_loop()
        runner.run(scenario())  # type: ignore[arg-type]
        loop.end()


async def count(seen: list[str], name: str, steps: int = 1000) -> None:
    """One step a second."""
    try:
        for number in range(steps):
            seen.append(f"{name}{number}")
            await asyncio.sleep(1)
    finally:
        if not getattr(asyncio.get_running_loop(), "ending", False):
            seen.append(f"{name} cleaned up")


def test_a_killed_process_does_nothing_any_more_not_even_clean_up() -> None:
    """X1: kill -9, on virtual time."""
    seen: list[str] = []

    async def scenario() -> None:
        victim, other = Process("victim"), Process("other")
        victim.start(count(seen, "v"))
        other.start(count(seen, "o"))
        await asyncio.sleep(2.5)
        victim.kill()
        await asyncio.sleep(2)
        assert not victim.alive
        assert other.alive
        assert victim.ended.is_set()

    play(scenario)
    assert seen == ["v0", "o0", "v1", "o1", "v2", "o2", "o3", "o4"]


def test_a_stopped_process_goes_on_where_it_was() -> None:
    """Like SIGSTOP and SIGCONT: timers that came due meanwhile fire at the resumption."""
    seen: list[tuple[float, str]] = []

    async def steps() -> None:
        for number in range(4):
            seen.append((asyncio.get_running_loop().time(), str(number)))
            await asyncio.sleep(1)

    async def scenario() -> None:
        process = Process("stopped")
        process.start(steps())
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(10)
        process.resume()
        await process.ended.wait()

    play(scenario)
    assert seen == [(0, "0"), (1, "1"), (11.5, "2"), (12.5, "3")]


def test_tasks_made_in_a_process_belong_to_it() -> None:
    """Tasks, timers and callbacks die with the process that made them."""
    seen: list[str] = []

    async def main() -> None:
        children = [asyncio.create_task(count(seen, name)) for name in "ab"]
        asyncio.get_running_loop().call_later(5, seen.append, "timer")
        asyncio.get_running_loop().call_soon_threadsafe(seen.append, "soon")
        await asyncio.gather(*children)

    async def scenario() -> None:
        process = Process("parent")
        process.start(main())
        await asyncio.sleep(1.5)
        process.kill()
        await asyncio.sleep(20)
        assert seen == ["a0", "b0", "soon", "a1", "b1"]

    play(scenario)


def test_a_cancelled_timer_of_a_stopped_process_stays_cancelled() -> None:
    """A callback that is cancelled while it is held back does not run."""
    seen: list[str] = []

    async def scenario() -> None:
        handles: list[asyncio.Handle] = []

        async def main() -> None:
            handles.append(asyncio.get_running_loop().call_later(1, seen.append, "rang"))
            await asyncio.sleep(100)

        process = Process("stopped")
        process.start(main())
        await asyncio.sleep(0.5)
        process.pause()
        await asyncio.sleep(5)
        handles[0].cancel()
        process.resume()
        await asyncio.sleep(5)

    play(scenario)
    assert seen == []


def test_the_current_process_is_known() -> None:
    """`current_process` names the process, and None outside."""
    seen: list[str | None] = []

    async def main() -> None:
        process = current_process()
        seen.append(None if process is None else process.name)

    async def scenario() -> None:
        process = Process("me")
        process.start(main())
        await process.ended.wait()
        assert current_process() is None

    play(scenario)
    assert seen == ["me"]


def test_a_process_whose_main_fails_has_ended() -> None:
    """An error in it is its own."""

    async def main() -> None:
        raise ValueError("boom")

    async def scenario() -> None:
        process = Process("broken")
        process.start(main())
        await process.ended.wait()
        assert process.main is not None
        with suppress(ValueError):
            process.main.result()
        assert not process.alive

    play(scenario)
