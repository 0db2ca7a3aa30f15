"""The exit of a child: noticed at once on Linux, even if another process has its socket; within 50 ms elsewhere."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
from collections.abc import Callable
from threading import RLock

from taskharbor.core.exit_codes import shown_exit
from taskharbor.core.sizes import shown_size

LOOK_EVERY = 0.05  # seconds, without pidfd


class ExitWatch:
    """Calls `exited` once, when the process has ended and is to be reaped.

    `has_exited` may be called from any thread, under the lock: without pidfd the look itself reaps the process, which
    must not happen beside a kill.
    """

    def __init__(self, process: subprocess.Popen[bytes], exited: Callable[[], None], lock: RLock) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._exited = exited
        self._lock = lock
        self._timer: asyncio.TimerHandle | None = None
        self._fd: int | None = None
        try:
            self._fd = os.pidfd_open(process.pid)
        except (AttributeError, OSError):  # not on Linux
            self._look()
        else:
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLIN)
            self._loop.add_reader(self._fd, exited)

    def has_exited(self) -> bool:
        """Whether the process has ended, although the loop may not have noticed yet."""
        with self._lock:
            return self._process.poll() is not None if self._fd is None else bool(self._poll.poll(0))

    def _look(self) -> None:
        if self.has_exited():
            self._exited()
        else:
            self._timer = self._loop.call_later(LOOK_EVERY, self._look)

    def close(self) -> None:
        """Stop watching."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
        elif self._timer is not None:
            self._timer.cancel()


def cause_of(code: int, memory: int | None = None) -> str:
    """How a process ended, for the job's error and the log; `memory` is its limit, which may be the reason."""
    limit = "" if memory is None else f"; its memory limit is {shown_size(memory)}"
    verb = "ended with" if code >= 0 else "was killed by"
    hint = " (out of memory, or by hand)" if -code == signal.SIGKILL else ""
    return f"its process {verb} {shown_exit(code)}{hint}{limit}"
