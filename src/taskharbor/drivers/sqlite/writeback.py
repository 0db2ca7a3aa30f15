"""Writing the log back early, with `synchronous = NORMAL`.

A commit leaves its pages in the memory of the system. The checkpoint, which comes inside the commit of some caller,
must wait until all of the log is on the disk: megabytes at once. A thread that asks for the same a little at a time,
while others commit, leaves it little to wait for. Nothing relies on it: SQLite still syncs all that it has to.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from taskharbor.drivers.sqlite.connection import O_CLOEXEC

# Transactions from one call to the next: two megabytes, if each stores one job. Rare writes are left to the system.
WRITES = 150

fdatasync: Callable[[int], None] | None = getattr(os, "fdatasync", None)  # Linux; elsewhere a checkpoint waits


class WriteBack:
    """Counts writes, of one thread at a time, and has a thread of its own."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._left = WRITES
        self._asked: SimpleQueue[bool] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="taskharbor log", daemon=True)
        self._thread.start()

    def wrote(self) -> None:
        """Note a transaction."""
        self._left -= 1
        if self._left <= 0:
            self._left = WRITES
            self._asked.put(True)

    def _run(self) -> None:
        while self._asked.get():
            while not self._asked.empty():
                if not self._asked.get():
                    return
            with suppress(OSError):  # a log that is gone, or a disk that fails: SQLite will say so
                _flush(self._log)

    def close(self) -> None:
        """End the thread."""
        self._asked.put(False)
        self._thread.join()


def _flush(path: str) -> None:
    """Wait until the log is on the disk. SQLite has no locks on this file, which closing it would drop."""
    if fdatasync is not None:
        file = os.open(path, os.O_RDONLY | O_CLOEXEC)
        try:
            fdatasync(file)
        finally:
            os.close(file)
