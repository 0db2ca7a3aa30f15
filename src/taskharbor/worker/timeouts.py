"""The timeouts of runs in threads (F5): one timer of the loop for all of them, because most runs end long before."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from taskharbor.worker.running import JobRun, Stop


class Timeouts:
    """Asks runs to end at their timeouts. These count from when a thread has taken the run, which sets `ends_by`."""

    def __init__(self, request_stop: Callable[[JobRun, Stop], None]) -> None:
        self._request_stop = request_stop
        self._loop = asyncio.get_running_loop()
        self._runs: set[JobRun] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._at = math.inf

    def add(self, run: JobRun, timeout: float) -> None:
        """Watch a run that a thread will take."""
        self._runs.add(run)
        self._look_at(self._loop.time() + timeout)

    def discard(self, run: JobRun) -> None:
        """Stop watching a run that has ended."""
        self._runs.discard(run)
        if not self._runs:
            self._look_at(math.inf)

    def _look_at(self, time: float) -> None:
        if time >= self._at and self._runs:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if math.isinf(time) else self._loop.call_at(time, self._look)
        self._at = time

    def _look(self) -> None:
        self._timer, self._at = None, math.inf
        time, earliest = self._loop.time(), math.inf
        for run in list(self._runs):
            ends_by = run.ends_by
            if ends_by <= time:
                self._runs.discard(run)
                self._request_stop(run, "timeout")
            else:
                waiting = time + (run.job.timeout or 0)  # if no thread has taken it yet
                earliest = min(earliest, waiting if math.isinf(ends_by) else ends_by)
        self._look_at(earliest)
