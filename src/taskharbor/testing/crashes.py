"""Crashes of workers that a test requested, and those that happened."""

from __future__ import annotations

import threading

from taskharbor.errors import InvalidJob


class _Crash:
    """A crash that a test requested."""

    def __init__(self, shown: str, times: int) -> None:
        self.shown = shown
        self.left = times
        self.fired = False


class Crashes:
    """The requested crashes, by task name or job id."""

    def __init__(self) -> None:
        self._crashes: dict[str, _Crash] = {}
        self._lock = threading.Lock()

    def arm(self, key: str, shown: str, times: int) -> None:
        """Crash this many more of the next runs."""
        if not isinstance(times, int) or times < 1:
            raise InvalidJob(f"times is a number of crashes, 1 or more, not {times!r}; to have none, disarm()")
        with self._lock:
            self._crashes.setdefault(key, _Crash(shown, 0)).left += times

    def disarm(self, key: str | None) -> None:
        """Take back the crashes of one task or job, or all."""
        with self._lock:
            for each in list(self._crashes) if key is None else [key]:
                self._crashes.pop(each, None)

    def take(self, *keys: str) -> bool:
        """Whether a run of this task or job should crash now."""
        with self._lock:
            for key in keys:
                crash = self._crashes.get(key)
                if crash is not None and crash.left > 0:
                    crash.left -= 1
                    crash.fired = True
                    return True
        return False

    def check(self) -> None:
        """`AssertionError` if one never fired: its test proves nothing about crashes."""
        with self._lock:
            unused = [crash.shown for crash in self._crashes.values() if not crash.fired]
        if unused:
            raise AssertionError(
                f"crash_after({unused[0]}) never fired: no such job ran after it in this test. "
                "Enqueue the job and call drain(), or take the crash back: disarm()"
            )
