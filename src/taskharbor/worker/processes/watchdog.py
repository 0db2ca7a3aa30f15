"""The watchdog of a child: ends it when the lease of its job runs out, should the worker not do so (L4).

A worker that hangs or is paused renews no lease and kills no child. Another worker then claims the job, and this run
must not go on beside it.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

LOOK_EVERY = 0.25


class Watchdog:
    """A thread that looks a few times a second: at the messages, if no other thread reads them, and at the clock."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self.until = math.inf
        threading.Thread(target=self._watch, name="taskharbor-watchdog", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_EVERY)
            if self.until < math.inf:
                with suppress(MemoryError):  # the job may use all memory up to its limit; the clock is checked anyway
                    self._look()
                if self.until <= time.monotonic():
                    os.killpg(0, signal.SIGKILL)
