"""When a process that runs jobs is replaced by a fresh one: after so many jobs, at an age, at a size."""

from __future__ import annotations

import math
from datetime import timedelta

from msgspec import Struct
from msgspec.structs import force_setattr

from taskharbor.core.sizes import Size, size
from taskharbor.errors import ConfigError


class Recycle(Struct, frozen=True, kw_only=True):
    """The limits of a child process of `process=True` tasks; None means no limit. Checked between jobs.

    `jobs` that it has run, `age` in seconds (or a timedelta), resident `memory` such as "1 GiB".
    """

    jobs: int | None = None
    age: float | timedelta | None = 3600.0
    memory: Size | None = None

    def __post_init__(self) -> None:
        if self.jobs is not None and (isinstance(self.jobs, bool) or not isinstance(self.jobs, int) or self.jobs < 1):
            raise ConfigError(f"Recycle: jobs must be a whole number from 1 up, or None, not {self.jobs!r}")
        force_setattr(self, "age", _seconds(self.age))
        if self.memory is not None:
            force_setattr(self, "memory", size("Recycle: memory", self.memory))

    def is_due(self, jobs: int, age: float, memory: int) -> bool:
        """Whether a process that has run so many jobs, is so old and so large should be replaced."""
        return any(
            most is not None and value >= most  # type: ignore[operator]
            for value, most in ((jobs, self.jobs), (age, self.age), (memory, self.memory))
        )


def _seconds(age: object) -> float | None:
    if age is None:
        return None
    seconds = age.total_seconds() if isinstance(age, timedelta) else age
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 1 <= seconds < math.inf:
        raise ConfigError(f"Recycle: age must be at least one second, a timedelta or None, not {age!r}")
    return float(seconds)
