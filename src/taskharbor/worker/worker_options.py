"""The options of a worker, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from taskharbor.errors import ConfigError

SHORTEST_LEASE, LONGEST_LEASE = 0.01, 30 * 24 * 3600.0


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """The options of a worker. `threads=False` keeps everything on one loop, for virtual time.

    Without `processes`, tasks with `process=True` run like any other.
    """

    queues: Sequence[str] | Mapping[str, int]
    concurrency: int = 16
    lease: float = 30.0
    grace: float = 25.0
    threads: bool = True
    processes: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.concurrency, bool) or not isinstance(self.concurrency, int) or self.concurrency < 1:
            raise ConfigError(f"concurrency must be a whole number from 1 up, not {self.concurrency!r}")
        if not _is_number(self.lease) or not SHORTEST_LEASE <= self.lease <= LONGEST_LEASE:
            raise ConfigError(f"lease must be from {SHORTEST_LEASE:g} seconds to 30 days, not {self.lease!r}")
        if not _is_number(self.grace) or not 0 <= self.grace < float("inf"):
            raise ConfigError(f"grace must be zero or more seconds, not {self.grace!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
