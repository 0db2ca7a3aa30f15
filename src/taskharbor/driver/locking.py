"""A lock that an interrupt cannot leave held.

In CPython 3.14 a signal handler, and with it Ctrl-C, may run when `with lock` has acquired the lock but not yet entered
its block, and then nothing releases it. No other version does that. So code that signals may interrupt, and whose lock
other threads need, runs under `locked`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def locked(lock: threading.RLock, function: Callable[[], T]) -> T:
    """Call the function with the lock held. Reentrant, because a signal handler may need the lock its thread holds.

    It is released without a look at whether it was acquired: an interrupt may come after every call, so also after the
    look. A lock of another thread or of none refuses the release by a RuntimeError.
    """
    held = False
    try:
        try:
            held = lock.acquire()
            return function()
        finally:
            lock.release()
    except RuntimeError as error:
        if held or error.__context__ is None:
            raise
        raise error.__context__ from None  # the wait for the lock was interrupted
