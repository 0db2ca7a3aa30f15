"""The options of a supervisor, checked."""

from __future__ import annotations

import os

from msgspec import Struct

from taskharbor.core.durations import length
from taskharbor.core.sizes import shown_size
from taskharbor.errors import ConfigError

MOST_PROCESSES = 1000
SHORTEST_AGE = 10.0
SHORTEST_START = 1.0
LEAST_MEMORY = 16 * 1024 * 1024  # an interpreter alone takes about as much


class Limits(Struct, frozen=True, kw_only=True):
    """When a worker process is replaced: after so many jobs, seconds, or bytes of resident memory."""

    max_jobs: int | None = None
    max_age: float | None = None
    max_memory: int | None = None

    def __post_init__(self) -> None:
        if self.max_jobs is not None and self.max_jobs < 1:
            raise ConfigError(f"max_jobs must be 1 or more, not {self.max_jobs}: leave it out for no limit")
        if self.max_age is not None and not SHORTEST_AGE <= self.max_age < float("inf"):
            raise ConfigError(
                f"max_age must be {length(SHORTEST_AGE)} or more, not {self.max_age:g} s: workers would be "
                "replaced all the time; leave it out for no limit"
            )
        if self.max_memory is not None and self.max_memory < LEAST_MEMORY:
            raise ConfigError(
                f"max_memory must be {shown_size(LEAST_MEMORY)} or more, not {shown_size(self.max_memory)}: no worker "
                "takes less; leave it out for no limit"
            )


class SupervisorOptions(Struct, frozen=True, kw_only=True):
    """How many workers to keep running, how long they may take to start and to stop, and when to replace them."""

    processes: int
    grace: float = 25.0
    start_timeout: float = 300.0
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if not 1 <= self.processes <= MOST_PROCESSES:
            raise ConfigError(
                f"processes must be from 1 to {MOST_PROCESSES}, not {self.processes}; "
                "for a single worker without a supervisor, leave it out"
            )
        if not self.start_timeout >= SHORTEST_START:
            raise ConfigError(
                f"start_timeout must be {length(SHORTEST_START)} or more, not {self.start_timeout:g} s: "
                "no worker would get ready"
            )
        if os.name != "posix":
            raise ConfigError(
                "processes needs Linux, macOS or another POSIX system: here, start several workers by hand instead"
            )
