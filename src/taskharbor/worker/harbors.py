"""The harbors of this process, for tests that put another store behind all of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

from msgspec import Struct

from taskharbor.client.client import Client
from taskharbor.client.registered_task import Registered
from taskharbor.worker.drain_failures import Failure
from taskharbor.worker.executor import Middleware

if TYPE_CHECKING:
    from taskharbor.client.declaration import Declared


class HarborParts(Struct, frozen=True, eq=False):
    """A harbor and its parts; a change of `middleware` applies to its next worker."""

    harbor: object
    client: Client
    tasks: Mapping[str, Registered]
    middleware: list[Middleware]
    recurring: Mapping[str, Declared]
    drain: Callable[[list[Failure] | None, Sequence[str]], Coroutine[Any, Any, int]]


Look = Callable[[], HarborParts]
Follower = Callable[[HarborParts], object]
_members: dict[int, WeakMethod[Look]] = {}
_followers: list[Follower] = []


def add_harbor(look: Look) -> None:
    """Add a harbor, by its method that returns its parts; it is removed when it is collected."""

    def forget(gone: WeakMethod[Look]) -> None:
        _members.pop(id(gone), None)

    member = WeakMethod(look, forget)
    _members[id(member)] = member
    for follower in list(_followers):
        follower(look())


@contextmanager
def every_harbor(follower: Follower) -> Generator[None]:
    """Call the function for every existing harbor, and for each made inside the block; possibly twice for one."""
    _followers.append(follower)
    try:
        for member in list(_members.values()):
            if (look := member()) is not None:
                follower(look())
        yield
    finally:
        _followers.remove(follower)
