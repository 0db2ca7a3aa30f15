"""A turn: one job in a child, from its start to its outcome, and its end by force (F5, T3, L4).

The enforcer's thread calls `look`, and the keeper's calls `stop` when the job is cancelled or its lease lost. So a
blocked loop delays no kill; it learns of the death when it goes on. A run is stopped, killed and ended under the lock
of its slot, and never stopped or killed after its end: the child may have its next job then.
"""

from __future__ import annotations

import asyncio
import math
import time
from threading import RLock
from typing import Protocol

from taskharbor.client.registered_task import Registered
from taskharbor.core.outcome import Outcome
from taskharbor.core.transition import Ack
from taskharbor.worker.processes.enforcer import Enforcer
from taskharbor.worker.processes.link import ChildLink
from taskharbor.worker.processes.messages import Granted, NotCommitted, Renewed, RunEnded, Settled, StopRun
from taskharbor.worker.running import JobRun, Stop

KILL_AFTER = 0.15  # seconds between the request to end and the kill
SOON = 0.01  # between two looks at a run that should end


class Child(Protocol):
    """The slot, as its turn sees it."""

    lock: RLock
    link: ChildLink

    def has_exited(self) -> bool: ...
    def kill(self) -> None: ...


class Turn:
    """One job in a slot. `in_doubt` is the Ack of a transaction that may have been committed.

    `offset` is the difference between the monotonic clock of the host and that of the loop. A loop may only know the
    time at which it began what it does now, so other threads do not ask it.
    """

    def __init__(self, run: JobRun, task: Registered, child: Child, enforcer: Enforcer) -> None:
        self._loop = asyncio.get_running_loop()
        self.run = run
        self.task = task
        self.sent_at = self._loop.time()
        self.in_doubt: Ack | None = None
        self.is_stopping = False
        self._offset = time.monotonic() - self.sent_at
        self._until = run.lease.deadline
        self._child = child
        self._enforcer = enforcer
        self._lock = child.lock
        self._over = False
        self._killed = False
        self._kill_at = math.inf
        self._outcome: Outcome | None = None
        self._wake: asyncio.Future[None] | None = None

    # on the loop

    def begin(self) -> None:
        """From now on the run can be stopped: its child has been sent the job."""
        self.run.process = self
        self._enforcer.add(self, time.monotonic() if self._child.link.unsent else self.run.ends_by + self._offset)

    async def outcome(self) -> Outcome:
        """The outcome of the job. A cancellation stops the process, if necessary by a kill."""
        while self._outcome is None:
            self._wake = self._loop.create_future()
            try:
                await self._wake
            except asyncio.CancelledError:
                if self._outcome is None:
                    self.stop(self.run.stop)
                    if self.run.abandoned or self.run.stop is None:  # cancelled by other code: nothing waits for it
                        self.stop(None)
                        raise
        return self._outcome

    def grant(self, ack: Ack) -> None:
        """Let the transaction settle. From now on the lease is not renewed, and a kill waits for it."""
        with self._lock:
            self.in_doubt = ack
            self._child.link.send(Granted())

    def end(self) -> None:
        """The run has ended: nothing stops or kills it any more."""
        with self._lock:
            self._over = True
        self.run.process = None  # they are not to keep each other alive
        self._enforcer.discard(self)

    def conclude(self, outcome: Outcome) -> None:
        """Return the outcome to the task that waits for it."""
        self._outcome = outcome
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    # in any thread

    def stop(self, reason: Stop | None) -> None:
        """Ask the run to end and kill it in a moment; at once if its lease is lost, or if there is no reason."""
        with self._lock:
            if self._over or self._killed:
                return
            if reason is None or reason == "lost":
                self._kill()
            elif not self.is_stopping and not self._has_ended():
                self._ask(reason)
        self._enforcer.look_by(self._kill_at)

    def look(self) -> float:
        """Pass on what the child needs to go on; stop the run at its timeout, and kill it if it goes on then."""
        with self._lock:
            if self._over or self._killed:
                return math.inf
            self.renew()
            link, ends_by = self._child.link, self.run.ends_by + self._offset
            if not self._should_end(ends_by):
                link.push()
                return min(ends_by, time.monotonic() + SOON) if link.unsent else ends_by
            link.pump()
            if self._has_ended():
                return math.inf
            if not self.is_stopping:
                self._ask(self.run.stop or "timeout")
            elif self._is_committing():  # it is waited for, as long as its lease lasts, and given a moment after that
                self._kill_at = min(time.monotonic() + KILL_AFTER, self.run.lease.deadline + self._offset)
            if self._kill_at <= time.monotonic():
                self._kill()
            return min(self._kill_at, time.monotonic() + SOON)

    def renew(self) -> None:
        """Pass the renewals of the job's lease on: without them the child ends itself."""
        if self.in_doubt is None and self.run.lease.deadline > self._until:
            self._until = self.run.lease.deadline
            self._child.link.send(Renewed(self._until + self._offset))

    # with the lock

    def _should_end(self, ends_by: float) -> bool:
        return self.is_stopping or self.run.stop is not None or ends_by <= time.monotonic()

    def _has_ended(self) -> bool:
        """Whether it has ended by itself, although the loop does not know yet. Then it was not ended by force."""
        run = self.run
        for message in self._child.link.received():
            if isinstance(message, RunEnded):
                run.returned_at = self.sent_at + message.seconds
                return True
        if self._child.has_exited():
            run.returned_at = min(run.returned_at, time.monotonic() - self._offset)
            return True
        return False

    def _is_committing(self) -> bool:
        ended = (NotCommitted, Settled)
        return self.in_doubt is not None and not any(isinstance(it, ended) for it in self._child.link.received())

    def _ask(self, reason: Stop) -> None:
        """Record the reason, then send the request."""
        self.is_stopping = True
        if self.run.stop is None:
            self.run.stop_request = reason
        self._kill_at = time.monotonic() + (0.0 if reason == "lost" else KILL_AFTER)
        self._child.link.send(StopRun(reason))

    def _kill(self) -> None:
        self.is_stopping = self._killed = True
        self.run.returned_at = time.monotonic() - self._offset
        self._child.kill()
