"""A slot: one child process as its worker sees it. It runs one job at a time and can be killed. All on the loop."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from taskharbor.client.registered_task import Registered
from taskharbor.core.outcome import Crashed, Outcome
from taskharbor.core.transition import Ack
from taskharbor.worker import outcomes
from taskharbor.worker.processes import logs
from taskharbor.worker.processes.exits import ExitWatch, cause_of
from taskharbor.worker.processes.link import ChildLink
from taskharbor.worker.processes.messages import (
    Broken,
    ChildReady,
    Committing,
    Granted,
    Logged,
    NotCommitted,
    Perform,
    Progressed,
    Renewed,
    RunEnded,
    Settled,
    StartChild,
    StopRun,
    Up,
)
from taskharbor.worker.processes.starting import spawn
from taskharbor.worker.running import JobRun, Stop

KILL_AFTER = 0.15  # seconds between the request to end and the kill
TO_START = 60.0
TO_LEAVE = 5.0


class Owner(Protocol):
    """The pool, as its slots see it."""

    def ready(self, slot: ProcessSlot, ready: ChildReady) -> None: ...
    def free(self, slot: ProcessSlot, ended: RunEnded) -> None: ...
    def gone(self, slot: ProcessSlot, why: str) -> None: ...


class Turn:
    """One job in a slot: until its outcome is there, `wake` is awaited."""

    def __init__(self, run: JobRun, task: Registered, sent_at: float) -> None:
        self.run = run
        self.task = task
        self.sent_at = sent_at
        self.until = run.lease.deadline
        self.outcome: Outcome | None = None
        self.wake: asyncio.Future[None] | None = None


class ProcessSlot:
    """Starts its process when created; `ended` is set once that is reaped, `trouble` says why it could not start.

    `in_doubt` is the Ack of a transaction that may have been committed.
    """

    def __init__(self, start: StartChild, owner: Owner) -> None:
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._process, end = spawn()
        self.born = self._loop.time()
        self.idle_since = self.born
        self.jobs = 0
        self.age_factor = 1.0
        self.alive = True
        self.ended = asyncio.Event()
        self.trouble: str | None = None
        self.in_doubt: Ack | None = None
        self._turn: Turn | None = None
        self._stopping: Stop | None = None
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(TO_START, self._too_slow)
        self._link = ChildLink(end, self._take, self._cut)
        self._watch = ExitWatch(self._process, self._exited)
        self._link.send(start)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether it can take a job: its process lives, although the loop may not have noticed an exit yet."""
        return self.alive and not self._watch.has_exited()

    @property
    def busy(self) -> bool:
        return self._turn is not None

    # a job

    async def perform(self, run: JobRun, task: Registered, message: Perform) -> Outcome:
        """Run a job and return its outcome. A cancellation stops the process, if necessary by a kill."""
        turn = self._turn = Turn(run, task, self._loop.time())
        self._stopping = None
        self._link.send(message)
        while turn.outcome is None:
            turn.wake = self._loop.create_future()
            try:
                await turn.wake
            except asyncio.CancelledError:
                if turn.outcome is None:
                    self.stop(run.stop)
                    if run.abandoned or run.stop is None:  # cancelled by other code: nothing waits for its end
                        self.kill()
                        raise
        return turn.outcome

    def renew(self) -> None:
        """Pass the renewals of the job's lease on: without them the child ends itself."""
        turn = self._turn
        if turn is not None and self.in_doubt is None and turn.run.lease.deadline > turn.until:
            turn.until = turn.run.lease.deadline
            self._link.send(Renewed(self.on_host(turn.until)))

    def on_host(self, moment: float) -> float:
        """A time of the loop's clock on the monotonic clock of the host."""
        return time.monotonic() + moment - self._loop.time()

    def stop(self, reason: Stop | None) -> None:
        """Ask the run to end and kill it in a moment; at once if its lease is lost."""
        if not self.alive or self._turn is None:
            return
        if reason is None or reason == "lost":
            self._stopping = reason or "shutdown"
            self.kill()
        elif self._stopping is None:
            self._stopping = reason
            self._link.send(StopRun(reason))
            self._set_timer(KILL_AFTER, self._enforce)

    def _enforce(self) -> None:
        """Kill it, unless its transaction is being committed: that is waited for as long as its lease lasts."""
        left = 0.0 if self._turn is None else self._turn.run.lease.deadline - self._loop.time()
        if self.in_doubt is not None and left > 0:
            self._set_timer(left, self.kill)
        else:
            self.kill()

    def _conclude(self, turn: Turn, outcome: Outcome) -> None:
        turn.outcome, self._turn = outcome, None
        self._set_timer(math.inf, self.kill)
        if turn.wake is not None and not turn.wake.done():
            turn.wake.set_result(None)

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
                    self._take_effect(self._turn.run, message)

    def _take_effect(self, run: JobRun, message: Progressed | Committing | NotCommitted | Settled) -> None:
        match message:
            case Progressed(progress):
                run.own_effects().progress = progress
            case Committing(ack):
                run.host.let_go(run)
                self.in_doubt = ack
                self._link.send(Granted())
            case NotCommitted():
                self.in_doubt = None
                run.host.hold(run)
            case Settled():
                run.own_effects().settled, self.in_doubt = self.in_doubt, None
        if self.in_doubt is None and self._stopping is not None and not isinstance(message, Progressed):
            self._set_timer(KILL_AFTER, self.kill)  # the transaction has ended, which a stop request waited for

    def _ended(self, message: RunEnded) -> None:
        turn = self._turn
        if turn is None:
            return
        self.jobs += 1
        self.idle_since = self._loop.time()
        self.in_doubt = None
        turn.run.returned_at = turn.sent_at + message.seconds  # the loop may have been blocked since
        if message.lost:
            turn.run.lease.lose()
        self._conclude(turn, outcomes.reported(turn.run, turn.task, message.outcome))
        self._owner.free(self, message)

    # its end

    def retire(self) -> None:
        """Let it leave the lifespans and exit; kill it if that takes too long."""
        self._link.finish()
        self._set_timer(TO_LEAVE, self.kill)

    def kill(self) -> None:
        """Kill all processes of its group; the pid is not reused before it is reaped."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

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
        self._link.close()
        self._watch.close()
        self.kill()
        self.alive = False
        code = self._process.wait()
        self._set_timer(math.inf, self.kill)
        if (turn := self._turn) is not None:
            self._conclude(turn, self._cause_of_end(turn, code))
        self._owner.gone(self, self.trouble or cause_of(code))
        self.ended.set()

    def _cause_of_end(self, turn: Turn, code: int) -> Outcome:
        """The outcome of a run whose process is gone: stopped on request, or crashed by its job."""
        if self._stopping is not None:
            return outcomes.stopped(turn.run, turn.task)
        return Crashed(cause_of(code, turn.task.memory))
