"""Protocols that depend on the engine: hints that save polling, a clock, and namespaces that can be removed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable


@runtime_checkable
class WaitForWork(Protocol):
    """Hints that save polling. They may be late, early or missing: reserve alone is the truth.

    Called by idle workers and by callers that wait for a result. Without it both poll.
    """

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        """Return when something may have been committed for these queues, or after `timeout` seconds."""
        ...

    async def wait_for_end(self, id: str, timeout: float) -> None:
        """Return when the job may have ended, or after `timeout` seconds."""
        ...

    async def next_due(self, queues: Sequence[str]) -> datetime | None:
        """When the next job of these queues is due or its lease runs out; never takes a write lock."""
        ...


@runtime_checkable
class ServerClock(Protocol):
    """Engines with a clock of their own: the `now` that clients and workers pass follows it (L8).

    Called when a session opens and now and then after that. Without it the host's clock is used.
    """

    async def server_now(self) -> datetime:
        """The engine's time."""
        ...


@runtime_checkable
class Erases(Protocol):
    """Engines on which a driver can remove a namespace with all that is in it.

    Called by `taskharbor bench` and by simulations on Redis, for a namespace of their own. They remove a file of SQLite
    and a schema of PostgreSQL without it. On a driver of another package, `bench` does not run, and simulations erase
    nothing.
    """

    async def erase(self) -> None:
        """Remove everything of this namespace. Nothing else may use it any more."""
        ...
