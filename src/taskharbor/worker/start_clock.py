"""The clock that says when runs start, read once a millisecond: short jobs of a batch share the time.

A store that writes the outcomes of a batch does so by one statement for as many as have all their values in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime

EXACT_TO = 0.001  # seconds
_UNREAD = (-math.inf, datetime.min.replace(tzinfo=UTC))


class StartClock:
    """Returns `now()`, or what it returned less than a millisecond of `time()` ago. May be called from any thread."""

    def __init__(self, now: Callable[[], datetime], time: Callable[[], float]) -> None:
        self._now = now
        self._time = time
        self._read = _UNREAD  # until when the time is used, and the time

    def __call__(self) -> datetime:
        until, at = self._read
        time = self._time()
        if time >= until:
            at = self._now()
            self._read = time + EXACT_TO, at
        return at

    def forget(self) -> None:
        """Read the time again: jobs were claimed since, and none starts before its claim."""
        self._read = _UNREAD
