"""The application of workers with a faked clock: the usual one, with a sleep that works under libfaketime.

libfaketime 0.9.10 breaks `clock_nanosleep` when it leaves the monotonic clock alone: every `time.sleep` is an OSError.
"""

from __future__ import annotations

import select
import time
from typing import SupportsIndex


def _sleep(seconds: float | SupportsIndex) -> None:
    select.select([], [], [], float(seconds))


time.sleep = _sleep

from system.process import harbor  # noqa: E402

__all__ = ["harbor"]
