"""A run inside a child, and its worker at the other end of the channel: what `current()` works on."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from taskharbor.client.client import Client
from taskharbor.core.transition import Ack
from taskharbor.worker.decider import Decider
from taskharbor.worker.processes.channel import Channel
from taskharbor.worker.processes.messages import Committing, NotCommitted, Progressed, Settled
from taskharbor.worker.running import JobRun, Stop

REPORT_EVERY = 0.05  # seconds between two reports of progress


class ChildRun(JobRun, eq=False, gc=False):
    """A run in a child. Whether it should end is in a message that may not have been read yet."""

    look: Callable[[], None] = lambda: None

    @property
    def stop(self) -> Stop | None:
        self.look()
        return "lost" if self.lease.lost else self.stop_request


class ChildHost:
    """The worker as the run sees it, at the other end of the channel."""

    def __init__(self, client: Client, channel: Channel) -> None:
        self.client = client
        self._channel = channel
        self._decider = Decider(client.session, client.tasks)
        self.granted = threading.Event()
        self._lock = threading.Lock()
        self._reported = -math.inf
        self._reporting = False

    def request_stop(self, run: JobRun, stop: Stop) -> None:
        run.stop_request = stop

    def hold(self, run: JobRun) -> None:
        """Ask the worker to renew the lease again: the transaction was not committed."""
        self._channel.send(NotCommitted())

    def let_go(self, run: JobRun) -> None:
        """No-op: `acknowledge` asks the worker."""

    def acknowledge(self, run: JobRun) -> Ack:
        """The Ack of the run's transaction, once the worker has stopped renewing the lease."""
        if not self._channel.own:
            raise RuntimeError(
                "a process that a handler has forked cannot settle its job: call transaction() in the handler"
            )
        ack = self._decider.acknowledge(run)
        self.granted.clear()
        self._channel.send(Committing(ack))
        self._channel.until(self.granted)
        return ack

    def noted(self, run: JobRun) -> None:
        """Report a settled transaction at once, and progress a few times a second, the latest always."""
        if run.effects.settled is not None or not self._channel.own:
            self._channel.send(Settled())
            return
        with self._lock:
            wait = self._reported + REPORT_EVERY - time.monotonic()
            if wait > 0 and (self._reporting or self._reports_in(wait, run)):
                return
            self._reported = time.monotonic()
        self._send_progress(run)

    def _reports_in(self, seconds: float, run: JobRun) -> bool:
        """Report after so many seconds; False if the job's memory limit leaves no room for a thread."""
        try:
            timer = threading.Timer(seconds, self._report, (run,))
            timer.daemon = True
            timer.start()
        except (RuntimeError, MemoryError):
            return False
        self._reporting = True
        return True

    def _report(self, run: JobRun) -> None:
        with self._lock:
            self._reporting, self._reported = False, time.monotonic()
        self._send_progress(run)

    def _send_progress(self, run: JobRun) -> None:
        if run.effects.progress is not None and not run.ended:
            self._channel.send(Progressed(run.effects.progress))
