"""What the code of an application registers with its harbor, as workers need it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from taskharbor.client.registered_task import Registered
from taskharbor.worker.dead_hooks import Hook
from taskharbor.worker.executor import Middleware

if TYPE_CHECKING:  # most applications have no cron to read
    from taskharbor.client.declaration import Declared

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]


class Application:
    """Tasks and recurring tasks by name, and what surrounds their runs. The harbor adds, workers read."""

    def __init__(self) -> None:
        self.tasks: dict[str, Registered] = {}
        self.recurring: dict[str, Declared] = {}
        self.middleware: list[Middleware] = []
        self.lifespans: list[Lifespan] = []
        self.on_dead: list[Hook] = []

    def queues(self) -> list[str]:
        """The queues that the code names, and `default`."""
        options = [task.options for task in self.tasks.values()]
        options += [recurring.options for recurring in self.recurring.values()]
        return sorted({"default", *(each.get("queue", "default") for each in options)})
