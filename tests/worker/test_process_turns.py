"""The end of runs in processes by force: what a kill waits for, and what it never hits. The test plays the process."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from core.make import NOW, TOKEN, claimed
from taskharbor import Harbor
from taskharbor.core.outcome import Interrupted, Succeeded
from taskharbor.core.transition import Ack
from taskharbor.worker.processes import turn as turns
from taskharbor.worker.processes.enforcer import Enforcer
from taskharbor.worker.processes.link import ChildLink
from taskharbor.worker.processes.messages import (
    Frames,
    Granted,
    NotCommitted,
    Renewed,
    RunEnded,
    Settled,
    StopRun,
    Up,
    decode_down,
    frame,
)
from taskharbor.worker.processes.turn import Turn
from taskharbor.worker.running import NO_EFFECTS, HeldLease, JobRun, Stop

ACK = Ack(id="job-1", token=TOKEN, keep_until=NOW)
harbor = Harbor("memory://")


@harbor.task
def work() -> None:
    """Never called."""


class Still(Enforcer):
    """Looks at nothing: the tests do."""

    def _serve(self) -> None:
        return


class Scene:
    """A run in a child. The loop takes no message: the test keeps it busy."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        mine, self._end = socket.socketpair()
        mine.setblocking(False)
        self._end.setblocking(False)
        self._taken: list[Up] = []
        self.link = ChildLink(mine, self._taken.append, lambda trouble: None, self.lock)
        self.exited = False
        self.kills = 0
        self.now = asyncio.get_running_loop().time()
        lease, host = HeldLease(TOKEN, self.now + 600), harbor.client
        self.run = JobRun(claimed(), lease, host, NO_EFFECTS, ends_by=self.now + 300)  # type: ignore[arg-type]
        self.turn = Turn(self.run, work.registered, self, Still(1.0))
        self.turn.begin()

    def has_exited(self) -> bool:
        return self.exited

    def kill(self) -> None:
        self.kills += 1

    def says(self, message: Up) -> None:
        """The child sends this."""
        self._end.sendall(frame(message))

    def heard(self) -> list[Any]:
        """The messages that the child gets."""
        frames = Frames()
        with suppress(BlockingIOError):
            while data := self._end.recv(1 << 16):
                frames.feed(data)
        return [decode_down(body) for body in frames]

    def time_out(self) -> None:
        """Its timeout passes."""
        self.run.ends_by = self.now

    def close(self) -> None:
        self.link.close()
        self._end.close()


@asynccontextmanager
async def playing(monkeypatch: pytest.MonkeyPatch, kill_after: float = 0.0) -> AsyncGenerator[Scene]:
    """A run that has begun; a kill follows its request after so many seconds."""
    monkeypatch.setattr(turns, "KILL_AFTER", kill_after)
    scene = Scene()
    try:
        yield scene
    finally:
        scene.close()


def test_a_run_is_asked_and_killed_at_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """F5: the reason is there before the kill, and no overrun is logged after it."""

    async def main() -> None:
        async with playing(monkeypatch, 60.0) as scene:
            assert scene.turn.look() == scene.run.ends_by + scene.turn._offset
            scene.time_out()
            scene.turn.look()
            assert (scene.heard(), scene.kills, scene.run.stop) == ([StopRun("timeout")], 0, "timeout")
            scene.turn._kill_at = 0.0
            scene.turn.look()
            assert (scene.kills, scene.turn.is_stopping) == (1, True)
            assert scene.run.returned_at < math.inf
            assert (scene.turn.look(), scene.kills) == (math.inf, 1)

    asyncio.run(main())


@pytest.mark.parametrize("reason", ["cancel", "dead_letter", "shutdown", "lost", None])
def test_a_run_that_has_ended_is_not_stopped(reason: Stop | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """F5: its child may have the next job; late requests of other threads and its old timeout hit nothing."""

    async def main() -> None:
        async with playing(monkeypatch) as scene:
            process = scene.run.process
            assert process is not None
            scene.turn.end()
            scene.time_out()
            process.stop(reason)
            assert (scene.turn.look(), scene.kills, scene.heard()) == (math.inf, 0, [])
            assert (scene.run.stop, scene.run.process) == (None, None)

    asyncio.run(main())


@pytest.mark.parametrize("how", ["a result", "an exit"])
def test_a_run_that_ended_while_the_loop_was_blocked_is_left_to_it(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """F5, F6: neither its result nor its crash is a timeout."""

    async def main() -> None:
        async with playing(monkeypatch) as scene:
            scene.time_out()
            if how == "a result":
                scene.says(RunEnded(0.25, succeeded=Succeeded(None)))
            else:
                scene.exited = True
            for _ in range(3):
                assert scene.turn.look() == math.inf
            assert (scene.kills, scene.heard(), scene.run.stop, scene.turn.is_stopping) == (0, [], None, False)
            if how == "a result":
                assert scene.run.returned_at == scene.turn.sent_at + 0.25
            scene.turn.stop("cancel")
            assert (scene.kills, scene.heard(), scene.turn.is_stopping) == (0, [], False)

    asyncio.run(main())


@pytest.mark.parametrize("end", [Settled(), NotCommitted()])
def test_a_commit_is_waited_for(end: Settled | NotCommitted, monkeypatch: pytest.MonkeyPatch) -> None:
    """D9, F5: a kill follows its end, also if the loop has not learned of that."""

    async def main() -> None:
        async with playing(monkeypatch, 60.0) as scene:
            scene.time_out()
            scene.turn.grant(ACK)
            scene.turn.look()
            scene.turn._kill_at = 0.0
            scene.turn.look()
            assert (scene.kills, scene.heard()) == (0, [Granted(), StopRun("timeout")])
            scene.says(end)
            scene.turn._kill_at = 0.0
            scene.turn.look()
            assert scene.kills == 1

    asyncio.run(main())


def test_a_commit_is_waited_for_as_long_as_its_lease_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """L4, D9: then another worker may claim the job."""

    async def main() -> None:
        async with playing(monkeypatch, 60.0) as scene:
            scene.turn.grant(ACK)
            scene.turn.stop("cancel")
            scene.run.lease.deadline = scene.now
            scene.turn.look()
            assert scene.kills == 1

    asyncio.run(main())


def test_a_lost_lease_kills_at_once_and_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    """L4: also if it was asked to end before, and also if nothing but the mark of the lease says so."""

    async def main() -> None:
        async with playing(monkeypatch, 60.0) as scene:
            scene.turn.stop("cancel")
            scene.run.lease.lose()
            scene.turn.stop("lost")
            assert (scene.kills, scene.run.stop) == (1, "lost")
        async with playing(monkeypatch, 60.0) as scene:
            scene.run.lease.lose()
            scene.turn.look()
            assert (scene.kills, scene.run.stop) == (1, "lost")

    asyncio.run(main())


def test_a_lease_is_renewed_for_the_child_unless_a_transaction_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    """L3, D9: by the enforcer's looks, once for each renewal."""

    async def main() -> None:
        async with playing(monkeypatch) as scene:
            scene.run.lease.deadline += 10
            scene.turn.look()
            scene.turn.look()
            (renewed,) = scene.heard()
            assert renewed == Renewed(scene.run.lease.deadline + scene.turn._offset)
            scene.turn.grant(ACK)
            scene.run.lease.deadline += 10
            scene.turn.look()
            assert scene.heard() == [Granted()]

    asyncio.run(main())


def test_an_enforcer_looks_at_the_others_when_one_cannot_be_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    """F5: an error of one run costs the others nothing; the thread ends when it is closed."""
    looked = threading.Event()

    class Broken:
        def look(self) -> float:
            raise ValueError("no")

    class Good:
        def look(self) -> float:
            looked.set()
            return math.inf

    before = {*threading.enumerate()}
    enforcer = Enforcer(600.0)
    (thread,) = {*threading.enumerate()} - before
    enforcer.add(Broken(), 0.0)
    enforcer.add(Good(), 0.0)
    assert looked.wait(60)
    enforcer.close()
    thread.join(60)
    assert not thread.is_alive()
    assert "a process cannot be watched" in caplog.text


def test_the_reasons_of_both_threads_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """T3: the first one records the reason; an outcome follows from it."""

    async def main() -> None:
        async with playing(monkeypatch, 60.0) as scene:
            scene.time_out()
            scene.turn.look()
            scene.turn.stop("cancel")
            assert scene.run.stop == "timeout"
            assert scene.heard() == [StopRun("timeout")]
            scene.turn.conclude(Interrupted())
            assert await scene.turn.outcome() == Interrupted()

    asyncio.run(main())
