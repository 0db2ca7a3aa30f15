"""A slot: one child process as its worker sees it. It runs one job at a time and can be killed.

All on the loop, except what its `turn` does from other threads, under the `lock`.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from threading import RLock
from typing import Protocol

from taskharbor.client.registered_task import Registered
from taskharbor.core.outcome import Crashed, Outcome
from taskharbor.worker import outcomes
from taskharbor.worker.processes import logs
from taskharbor.worker.processes.enforcer import Enforcer
from taskharbor.worker.processes.exits import ExitWatch, cause_of
from taskharbor.worker.processes.link import ChildLink
from taskharbor.worker.processes.messages import (
    Broken,
    ChildReady,
    Committing,
    Logged,
    NotCommitted,
    Perform,
    Progressed,
    RunEnded,
    Settled,
    StartChild,
    Up,
)
from taskharbor.worker.processes.starting import spawn
from taskharbor.worker.processes.turn import Turn
from taskharbor.worker.running import JobRun

TO_START = 60.0
TO_LEAVE = 5.0


class Owner(Protocol):
    """The pool, as its slots see it."""

    def ready(self, slot: ProcessSlot, ready: ChildReady) -> None: ...
    def free(self, slot: ProcessSlot, ended: RunEnded) -> None: ...
    def gone(self, slot: ProcessSlot, why: str) -> None: ...


class ProcessSlot:
    """Starts its process when created; `ended` is set once that is reaped, `trouble` says why it could not start."""

    def __init__(self, start: StartChild, owner: Owner, enforcer: Enforcer) -> None:
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._enforcer = enforcer
        self.lock = RLock()
        self._process, end = spawn()
        self.born = self._loop.time()
        self.idle_since = self.born
        self.jobs = 0
        self.age_factor = 1.0
        self.alive = True
        self.ended = asyncio.Event()
        self.trouble: str | None = None
        self._killed = False
        self._turn: Turn | None = None
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(TO_START, self._too_slow)
        self.link = ChildLink(end, self._take, self._cut, self.lock)
        self._watch = ExitWatch(self._process, self._exited, self.lock)
        self.link.send(start)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether it can take a job. A kill takes effect in a moment, and the loop notices an exit later."""
        return not self._killed and not self.has_exited()

    @property
    def busy(self) -> bool:
        return self._turn is not None

    # a job

    def start(self, run: JobRun, task: Registered, message: Perform) -> Turn:
        """Send the child a job."""
        turn = self._turn = Turn(run, task, self, self._enforcer)
        self.link.send(message)
        turn.begin()
        return turn

    def on_host(self, moment: float) -> float:
        """A time of the loop's clock on the monotonic clock of the host."""
        return time.monotonic() + moment - self._loop.time()

    def _conclude(self, turn: Turn, outcome: Outcome) -> None:
        self._turn = None
        turn.conclude(outcome)

    # messages

    def _take(self, message: Up) -> None:
        match message:
            case RunEnded():
                self._ended(message)
            case Logged():
                with suppress(Exception):  # such as a log filter of the application
                    logs.log(message)
            case ChildReady():
                self._set_timer(math.inf, self.kill)
                self._owner.ready(self, message)
            case Broken(reason):
                self.trouble = reason
            case _:
                if self._turn is not None:
                    self._take_effect(self._turn, message)

    def _take_effect(self, turn: Turn, message: Progressed | Committing | NotCommitted | Settled) -> None:
        run = turn.run
        match message:
            case Progressed(progress):
                run.own_effects().progress = progress
            case Committing(ack):
                run.host.let_go(run)
                turn.grant(ack)
            case NotCommitted():
                turn.in_doubt = None
                run.host.hold(run)
            case Settled():
                run.own_effects().settled, turn.in_doubt = turn.in_doubt, None

    def _ended(self, message: RunEnded) -> None:
        turn = self._turn
        if turn is None:
            return
        turn.end()
        turn.in_doubt = None
        self.jobs += 1
        self.idle_since = self._loop.time()
        run = turn.run
        run.returned_at = turn.sent_at + message.seconds  # the loop may have been blocked since
        if message.lost:
            run.lease.lose()
        if run.stop_request == "timeout" and run.returned_at < run.ends_by and not message.asked:
            run.stop_request = None  # the request came when it had returned in time, and its result was on the way
        self._conclude(turn, outcomes.reported(run, turn.task, message.outcome))
        self._owner.free(self, message)

    # its end

    def retire(self) -> None:
        """Let it leave the lifespans and exit; kill it if that takes too long."""
        self.link.finish()
        self._set_timer(TO_LEAVE, self.kill)

    def kill(self) -> None:
        """Kill all processes of its group; the pid is not reused before it is reaped, which takes the lock too."""
        with self.lock:
            self._killed = True
            if self._process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)

    def has_exited(self) -> bool:
        """Whether its process has ended, although the loop may not have noticed yet."""
        with self.lock:
            return not self.alive or self._watch.has_exited()

    def _cut(self, trouble: str | None) -> None:
        """The child is exiting, or its handler has closed or corrupted the socket."""
        self.trouble = trouble or self.trouble
        self.kill()

    def _too_slow(self) -> None:
        self.trouble = f"it was not ready within {TO_START:g} s: a lifespan or an import hangs"
        self.kill()

    def _set_timer(self, seconds: float, then: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds == math.inf else self._loop.call_later(seconds, then)

    def _exited(self) -> None:
        """Take its last messages, end its group and reap it."""
        if not self.alive:
            return
        self.link.close()
        with self.lock:
            self._watch.close()
            self.kill()
            self.alive = False
            code = self._process.wait()
        self._set_timer(math.inf, self.kill)
        if (turn := self._turn) is not None:
            turn.end()
            self._conclude(turn, self._cause_of_end(turn, code))
        self._owner.gone(self, self.trouble or cause_of(code))
        self.ended.set()

    def _cause_of_end(self, turn: Turn, code: int) -> Outcome:
        """The outcome of a run whose process is gone: stopped on request, or crashed by its job."""
        if turn.is_stopping:
            return outcomes.stopped(turn.run, turn.task)
        return Crashed(cause_of(code, turn.task.memory))
