"""A slot: one child process as its worker sees it. It runs one job at a time and can be killed. All on the loop."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import msgspec

from taskharbor.client.registered_task import Registered
from taskharbor.core.outcome import Crashed, Outcome
from taskharbor.core.sizes import shown_size
from taskharbor.core.transition import Ack
from taskharbor.worker import outcomes
from taskharbor.worker.processes import logs
from taskharbor.worker.processes.messages import (
    Broken,
    Committing,
    Down,
    Ended,
    Frames,
    Granted,
    Kept,
    Logged,
    Perform,
    Progressed,
    Ready,
    Renewed,
    Settled,
    Start,
    Stop,
    Up,
    decode_up,
    frame,
)
from taskharbor.worker.processes.starting import spawn
from taskharbor.worker.running import JobRun
from taskharbor.worker.running import Stop as Reason

logger = logging.getLogger("taskharbor.worker")
TO_OBEY = 0.15  # seconds between the request to end and the kill
TO_START = 60.0
TO_LEAVE = 5.0
LOOK_EVERY = 0.05  # without pidfd
CHUNK = 1 << 18


class Owner(Protocol):
    """The pool, as its slots see it."""

    def ready(self, slot: Slot, ready: Ready) -> None: ...
    def free(self, slot: Slot, ended: Ended) -> None: ...
    def gone(self, slot: Slot, why: str) -> None: ...


class Turn:
    """One job in a slot: until its outcome is there, `wake` is awaited."""

    def __init__(self, run: JobRun, task: Registered, sent_at: float) -> None:
        self.run = run
        self.task = task
        self.sent_at = sent_at
        self.until = run.lease.deadline
        self.outcome: Outcome | None = None
        self.wake: asyncio.Future[None] | None = None


class Slot:
    """Starts its process when made; `ended` is set when that is gone, and `trouble` says why it could not start.

    `in_doubt` is the Ack of a transaction that may be committed or not.
    """

    def __init__(self, start: Start, owner: Owner) -> None:
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self.process, self._socket = spawn()
        self.born = self._loop.time()
        self.idle_since = self.born
        self.jobs = 0
        self.age_factor = 1.0
        self.alive = True
        self.ended = asyncio.Event()
        self.trouble: str | None = None
        self.in_doubt: Ack | None = None
        self._turn: Turn | None = None
        self._stopping: Reason | None = None
        self._frames = Frames()
        self._unsent = bytearray()
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(TO_START, self._too_slow)
        self._loop.add_reader(self._socket.fileno(), self._read)
        self._watch = self._watched()
        self._send(start)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def busy(self) -> bool:
        return self._turn is not None

    # a job

    async def perform(self, run: JobRun, task: Registered, message: Perform) -> Outcome:
        """Run a job and return its outcome. A cancellation makes the process stop: within a moment, by force."""
        turn = self._turn = Turn(run, task, self._loop.time())
        self._stopping = None
        self._send(message)
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
            self._send(Renewed(self.on_host(turn.until)))

    def on_host(self, moment: float) -> float:
        """A time of the loop's clock on the monotonic clock of the host."""
        return time.monotonic() + moment - self._loop.time()

    def stop(self, reason: Reason | None) -> None:
        """Ask the run to end and kill it in a moment; at once if its lease is lost."""
        if not self.alive or self._turn is None:
            return
        if reason is None or reason == "lost":
            self._stopping = reason or "shutdown"
            self.kill()
        elif self._stopping is None:
            self._stopping = reason
            self._send(Stop(reason))
            self._set_timer(TO_OBEY, self._enforce)

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

    def _read(self) -> None:
        try:
            data = self._socket.recv(CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:  # it is exiting, or has closed what it must not
            self._loop.remove_reader(self._socket.fileno())
            self.kill()
            return
        self._frames.feed(data)
        try:
            for body in self._frames:
                self._take(decode_up(body))
        except msgspec.MsgspecError as error:  # a handler has written to the socket, or the package was replaced
            self.trouble = f"it has sent something unreadable: {error}"
            self.kill()

    def _take(self, message: Up) -> None:
        match message:
            case Ended():
                self._ended(message)
            case Logged():
                with suppress(Exception):  # such as a log filter of the application
                    logs.log(message)
            case Ready():
                self._set_timer(math.inf, self.kill)
                self._owner.ready(self, message)
            case Broken(reason):
                self.trouble = reason
            case _:
                if self._turn is not None:
                    self._take_effect(self._turn.run, message)

    def _take_effect(self, run: JobRun, message: Progressed | Committing | Kept | Settled) -> None:
        match message:
            case Progressed(progress):
                run.own_effects().progress = progress
            case Committing(ack):
                run.host.let_go(run)
                self.in_doubt = ack
                self._send(Granted())
            case Kept():
                self.in_doubt = None
                run.host.hold(run)
            case Settled():
                run.own_effects().settled, self.in_doubt = self.in_doubt, None
        if self.in_doubt is None and self._stopping is not None and not isinstance(message, Progressed):
            self._set_timer(TO_OBEY, self.kill)  # the transaction has ended, which a stop request waited for

    def _ended(self, message: Ended) -> None:
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

    def _send(self, message: Down) -> None:
        data = frame(message)
        if self._unsent:
            self._unsent += data
            return
        sent = 0
        with suppress(BlockingIOError, InterruptedError):
            try:
                sent = self._socket.send(data)
            except OSError as error:
                if isinstance(error, BlockingIOError | InterruptedError):
                    raise
                return  # it is dying, which is noticed
        if sent < len(data):
            self._unsent += data[sent:]
            self._loop.add_writer(self._socket.fileno(), self._write)

    def _write(self) -> None:
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._unsent.clear()
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())

    # its end

    def retire(self) -> None:
        """Let it leave the lifespans and exit; kill it if that takes too long."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self._set_timer(TO_LEAVE, self.kill)

    def kill(self) -> None:
        """Kill it with all processes of its group."""
        if self.alive:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def _too_slow(self) -> None:
        self.trouble = f"it was not ready within {TO_START:g} s: a lifespan or an import hangs"
        self.kill()

    def _set_timer(self, seconds: float, then: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds == math.inf else self._loop.call_later(seconds, then)

    def _watched(self) -> int | asyncio.TimerHandle:
        """Notice the exit of the process, whatever has inherited its socket."""
        try:
            watch = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not on Linux
            return self._loop.call_later(LOOK_EVERY, self._look)
        self._loop.add_reader(watch, self._exited)
        return watch

    def _look(self) -> None:
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            self._watch = self._loop.call_later(LOOK_EVERY, self._look)
        else:
            self._exited()

    def _exited(self) -> None:
        """Take its last messages, end its group and reap it. Its pid is its own until then."""
        if not self.alive:
            return
        self._read_rest()
        self.kill()
        self.alive = False
        code = self.process.wait()
        self._close()
        if (turn := self._turn) is not None:
            self._conclude(turn, self._cause_of_end(turn, code))
        self._owner.gone(self, self.trouble or _cause(code, None))
        self.ended.set()

    def _cause_of_end(self, turn: Turn, code: int) -> Outcome:
        """The outcome of a run whose process is gone: by a stop request, or by the job's own doing."""
        if self._stopping is not None:
            return outcomes.stopped(turn.run, turn.task)
        return Crashed(_cause(code, turn.task.memory))

    def _read_rest(self) -> None:
        with suppress(OSError):
            while data := self._socket.recv(CHUNK):
                self._frames.feed(data)
        for body in self._frames:
            with suppress(Exception):  # half of a message, of a process that was killed
                self._take(decode_up(body))

    def _close(self) -> None:
        self._set_timer(math.inf, self.kill)
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        if isinstance(self._watch, int):
            self._loop.remove_reader(self._watch)
            os.close(self._watch)
        else:
            self._watch.cancel()


def _cause(code: int, memory: int | None) -> str:
    """How a process ended, for the job's error and the log."""
    limit = "" if memory is None else f"; its memory limit is {shown_size(memory)}"
    if code >= 0:
        return f"its process ended with exit code {code}{limit}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (out of memory, or by hand)" if -code == signal.SIGKILL else ""
    return f"its process was killed by {name}{hint}{limit}"
