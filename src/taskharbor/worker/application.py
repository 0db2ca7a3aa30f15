"""The registry of what an application adds to its harbor; and the harbors of this process, for tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

from msgspec import Struct

from taskharbor.client.client import Client
from taskharbor.client.registered_task import Registered
from taskharbor.errors import ConfigError
from taskharbor.worker.around import Factory
from taskharbor.worker.context import JobContext
from taskharbor.worker.dead_hooks import Hook
from taskharbor.worker.drain_failures import FailedRun

if TYPE_CHECKING:  # most applications have no cron to read
    from taskharbor.client.declaration import Declared

CallNext = Callable[[], Awaitable[Any]]
Middleware = Callable[[JobContext, CallNext], Awaitable[Any]]
Lifespan = Callable[[], AbstractAsyncContextManager[Any]]


class AppRegistry:
    """Tasks and recurring tasks by name, and what surrounds their runs. The harbor adds, workers read.

    `module` is where the harbor was made, if known.
    """

    def __init__(self, module: str | None = None) -> None:
        self.module = module
        self.tasks: dict[str, Registered] = {}
        self.recurring: dict[str, Declared] = {}
        self.middleware: list[Middleware] = []
        self.arounds: list[Factory] = []
        self.lifespans: list[Lifespan] = []
        self.on_dead: list[Hook] = []

    def queues(self) -> list[str]:
        """The queues that the code names, and `default`."""
        options = [task.options for task in self.tasks.values()]
        options += [recurring.options for recurring in self.recurring.values()]
        return sorted({"default", *(each.get("queue", "default") for each in options)})

    async def enter_lifespans(self, stack: AsyncExitStack) -> None:
        """Enter the lifespans of the application, in their order."""
        for lifespan in self.lifespans:
            manager: object = lifespan()
            if not isinstance(manager, AbstractAsyncContextManager):
                raise ConfigError(
                    f"@harbor.lifespan takes an async generator function: set up, yield, tear down; not {lifespan!r}"
                )
            await stack.enter_async_context(manager)


class HarborParts(Struct, frozen=True, eq=False):
    """A harbor and its parts, for tests that put another store behind it."""

    harbor: object
    client: Client
    app: AppRegistry
    drain: Callable[[list[FailedRun] | None, Sequence[str]], Coroutine[Any, Any, int]]


GetParts = Callable[[], HarborParts]
Follower = Callable[[HarborParts], object]
_members: dict[int, WeakMethod[GetParts]] = {}
_followers: list[Follower] = []


def add_harbor(parts: GetParts) -> None:
    """Add a harbor, by its method that returns its parts; it is removed when it is garbage-collected."""

    def forget(gone: WeakMethod[GetParts]) -> None:
        _members.pop(id(gone), None)

    member = WeakMethod(parts, forget)
    _members[id(member)] = member
    for follower in list(_followers):
        follower(parts())


def harbors() -> list[HarborParts]:
    """The harbors of this process, in the order of their creation."""
    return [parts() for member in list(_members.values()) if (parts := member()) is not None]


@contextmanager
def every_harbor(follower: Follower) -> Generator[None]:
    """Call the function for every existing harbor, and for each made inside the block; possibly twice for one."""
    _followers.append(follower)
    try:
        for member in list(_members.values()):
            if (parts := member()) is not None:
                follower(parts())
        yield
    finally:
        _followers.remove(follower)
