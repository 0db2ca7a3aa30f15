"""Blocking calls that work on jobs end, whatever their handlers do (X6, P1): real threads, real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskharbor import Harbor
from taskharbor.client import blocks
from taskharbor.worker import shutdown

PATIENCE = 30.0
LONG = 10.0  # what a handler takes that ignores its cancellation, if nothing ends it


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "CANCEL_PATIENCE", 0.05)
    monkeypatch.setattr(blocks, "CLOSE_PATIENCE", 0.05)


class Deaf:
    """An async handler that ignores its cancellation until it is released, or `LONG` is over."""

    def __init__(self, harbor: Harbor) -> None:
        self.began, self.told, self.over = threading.Event(), threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.task = harbor.task(name="deaf")(self.run)

    async def run(self) -> None:
        self.thread, self.loop = threading.current_thread(), asyncio.get_running_loop()
        self.began.set()
        end = time.monotonic() + LONG
        while not self.told.is_set() and time.monotonic() < end:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        self.over.set()


@pytest.fixture(name="harbor")
def a_harbor() -> Iterator[Harbor]:
    harbor = Harbor("memory://")
    yield harbor
    harbor.close()


def test_a_worker_block_does_not_wait_for_a_run_that_it_has_abandoned(harbor: Harbor) -> None:
    """X6, P1: the run goes on in the block's thread, and its lease runs out by itself."""
    deaf = Deaf(harbor)
    job = deaf.task.enqueue()
    with harbor.worker(grace=0):
        assert deaf.began.wait(PATIENCE)
    assert not deaf.over.is_set()
    assert job.record().lease is not None
    deaf.told.set()
    assert deaf.over.wait(PATIENCE)
    assert deaf.thread is not None
    deaf.thread.join(PATIENCE)
    assert not deaf.thread.is_alive()
    assert job.record().lease is not None


def test_a_worker_block_that_fails_does_not_wait_either(harbor: Harbor) -> None:
    """X6, P1: what it raises is raised at once."""
    deaf = Deaf(harbor)
    deaf.task.enqueue()

    def work() -> None:
        with harbor.worker(grace=0):
            assert deaf.began.wait(PATIENCE)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        work()
    assert not deaf.over.is_set()
    deaf.told.set()
    assert deaf.thread is not None
    deaf.thread.join(PATIENCE)


@pytest.mark.parametrize("release", [True, False])
def test_run_worker_returns_and_what_it_has_abandoned_does_not_go_on(harbor: Harbor, release: bool) -> None:
    """X6, F5: a job that is released can run elsewhere, so its coroutine has no further turn here."""
    deaf = Deaf(harbor)
    job = deaf.task.enqueue()

    def stop_twice() -> None:
        assert deaf.began.wait(PATIENCE)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_twice).start()
    harbor.run_worker(grace=0, release_abandoned=release)
    assert not deaf.over.is_set()
    assert (job.record().lease is None) == release
    assert deaf.loop is not None
    assert not deaf.loop.is_running()
    assert "taskharbor-left" in [thread.name for thread in threading.enumerate()]  # which does nothing with it


def test_a_process_with_an_abandoned_run_ends_quietly(tmp_path: Path) -> None:
    """X6: after run_worker, the process ends as any other does; the job is due a second later."""
    script = tmp_path / "deaf.py"
    script.write_text(
        textwrap.dedent("""
            import asyncio, os, signal
            from taskharbor import Harbor

            harbor = Harbor("memory://")

            @harbor.task(name="deaf")
            async def deaf():
                for _ in range(2):
                    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
                while True:
                    try:
                        await asyncio.sleep(600)
                    except asyncio.CancelledError:
                        pass

            job = deaf.enqueue()
            harbor.run_worker(grace=0, release_abandoned=True)
            print(job.state())
        """)
    )
    command = [sys.executable, "-X", "dev", str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout) == (0, "scheduled\n"), ended.stderr
    for word in ("Traceback", "never retrieved", "destroyed", "ResourceWarning", "Exception ignored"):
        assert word not in ended.stderr


def test_ctrl_c_in_a_drain_does_not_wait_for_a_thread(harbor: Harbor) -> None:
    """P1, F5: the thread goes on, so its job is not given back before its lease has run out."""
    began, gate, over = threading.Event(), threading.Event(), threading.Event()

    @harbor.task(name="slow")
    def slow() -> None:
        began.set()
        gate.wait(LONG)
        over.set()

    def interrupt() -> None:
        assert began.wait(PATIENCE)
        os.kill(os.getpid(), signal.SIGINT)

    job = slow.enqueue()
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        harbor.drain()
    assert not over.is_set()
    gate.set()
    assert over.wait(PATIENCE)
    assert job.record().lease is not None


def test_a_drain_gives_tasks_that_its_handlers_started_time_to_end(harbor: Harbor) -> None:
    """P1: they are cancelled with their loop, and may await something then."""
    ended: list[str] = []

    async def beside() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0)
            ended.append("beside")

    tasks: list[asyncio.Task[None]] = []

    @harbor.task(name="starts")
    async def starts() -> None:
        tasks.append(asyncio.create_task(beside()))
        await asyncio.sleep(0)

    starts.enqueue()
    assert harbor.drain() == 1
    assert ended == ["beside"]
    assert tasks[0].cancelled()
