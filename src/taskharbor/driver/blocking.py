"""Enqueue on the caller's own thread, for code without an event loop."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from taskharbor.core.group import Group, GroupResult


@runtime_checkable
class EnqueueBlocking(Protocol):
    """`Driver.enqueue` by blocking calls, without a hop to another thread (P1).

    Called by the blocking face of clients and of the TaskManager, from any thread that runs no event loop. Without it
    they run `enqueue` on the loop of a background thread.
    """

    def enqueues_blocking(self, groups: Sequence[Group]) -> bool:
        """Whether `enqueue_blocking` stores these groups in this thread; if not, the caller uses `enqueue`."""
        ...

    def enqueue_blocking(self, groups: Sequence[Group], now: datetime, timeout: float) -> list[GroupResult]:
        """Store each group all or none, exactly as `enqueue` does (D1), in about `timeout` seconds at most.

        An exception may come at any moment (Ctrl-C): it leaves nothing half-stored and nothing that others wait for.
        A signal handler or a finalizer may call this while its thread is inside another call: it is served, or refused
        with `DriverUnavailable`, but never waits for its own thread.
        """
        ...
