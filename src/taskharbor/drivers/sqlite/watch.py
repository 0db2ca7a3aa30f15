"""Noticing the commits of other processes: when to read the version of the file, and how long to sleep in between.

Where the kernel reports writes to the write-ahead log (inotify, on Linux), the thread sleeps until one and then reads
often for a moment, because a commit is visible a little after the write. Elsewhere it reads every 12 ms.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

POLL_EVERY = 0.012
LOOK_EVERY, LOOK_FOR = 0.002, 0.05
LOOK_FOR_AFTER_OWN = 0.006
SAFETY_NET = 0.25

IN_MODIFY, IN_ONESHOT = 0x2, 0x80000000
EVENT = struct.Struct("iIII")


class CommitWatcher:
    """Decides how long to sleep and whether to look now. For one thread; only the kernel's events come from another."""

    def __init__(self, log: Path, notify: Callable[[], None]) -> None:
        self._kernel = KernelWatch.on(log, notify)
        self._armed = False
        self._wrote = False
        self._look_until = 0.0
        self._looked = 0.0

    def poll_interval(self) -> float:
        """The longest sleep in seconds while a caller waits for news."""
        if self._kernel is None:
            return POLL_EVERY
        return SAFETY_NET if self._armed else LOOK_EVERY

    def notified(self) -> None:
        """Note an event: the log is being written, by another process or by this one."""
        self._armed = False
        self._look_until = time.monotonic() + (LOOK_FOR_AFTER_OWN if self._wrote else LOOK_FOR)
        self._wrote = False

    def wrote(self) -> None:
        """Note a write of this process."""
        self._wrote = True

    def found(self) -> None:
        """Note that a commit was seen: stop looking."""
        self._look_until = 0.0

    def should_look(self) -> bool:
        """Whether to read the version now. Watching begins before the read, so that no commit is missed."""
        now = time.monotonic()
        if self._kernel is None:
            due = now - self._looked >= POLL_EVERY / 2
        else:
            if not self._armed and now >= self._look_until:
                self._armed = self._kernel.arm()
                if not self._armed:  # the kernel refuses, such as at its limit of watches
                    self.close()
            due = True
        if due:
            self._looked = now
        return due

    def close(self) -> None:
        """Stop watching."""
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None


class KernelWatch:
    """One-shot events for writes to a file, from a thread that sleeps in the kernel."""

    def __init__(self, libc: ctypes.CDLL, descriptor: int, file: Path, notify: Callable[[], None]) -> None:
        self._libc = libc
        self._descriptor = descriptor
        self._file = os.fsencode(file)
        self._notify = notify
        self._end, self._end_request = os.pipe()
        self._thread = threading.Thread(target=self._listen, name="taskharbor watch", daemon=True)
        self._thread.start()

    @classmethod
    def on(cls, file: Path, notify: Callable[[], None]) -> KernelWatch | None:
        """Return a watch, or None where the kernel has none."""
        if not sys.platform.startswith("linux"):
            return None
        with suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None, use_errno=True)
            descriptor = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
            if descriptor >= 0:
                return cls(libc, descriptor, file, notify)
        return None

    def arm(self) -> bool:
        """Request an event for the next write; False if the kernel refuses."""
        return bool(self._libc.inotify_add_watch(self._descriptor, self._file, IN_MODIFY | IN_ONESHOT) >= 0)

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.register(self._end, select.POLLIN)
        while not any(ready == self._end for ready, _ in poll.poll()):
            with suppress(OSError):
                if _has_write(os.read(self._descriptor, 4096)):
                    self._notify()
        for descriptor in (self._descriptor, self._end):
            os.close(descriptor)

    def close(self) -> None:
        """End the thread and give the descriptors back."""
        os.close(self._end_request)
        self._thread.join()


def _has_write(events: bytes) -> bool:
    place = 0
    while place + EVENT.size <= len(events):
        _, mask, _, length = EVENT.unpack_from(events, place)
        if mask & IN_MODIFY:
            return True
        place += EVENT.size + length
    return False
