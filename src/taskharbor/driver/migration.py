"""Opening a store, and bringing its schema up to date: what the module of a driver offers.

`taskharbor.drivers` finds that module by the scheme of a URL: a built-in one, or that of an entry point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable
from urllib.parse import SplitResult

from msgspec import Struct

from taskharbor.driver.verbs import Driver


class Migration(Struct, frozen=True, kw_only=True):
    """How a store's schema is brought up to date: the names of the steps, and all of it as a script for the engine."""

    what: str
    version: int
    steps: tuple[str, ...]
    sql: str


class Connect(Protocol):
    """Opens the store that a URL names.

    It takes the options it knows out of the dict; what is left is refused. Called on the first use of a harbor.
    """

    async def __call__(self, url: SplitResult, options: dict[str, str], /) -> Driver:
        """Open the store."""
        ...


@runtime_checkable
class Migrates(Protocol):
    """A module whose stores have a schema that an operator brings up to date.

    Called by `taskharbor migrate` and `harbor.migrate()`. Without it, a store is up to date whenever it is opened.
    """

    async def migrate(
        self, url: SplitResult, options: dict[str, str], /, *, dry: bool, tell: Callable[[str], object]
    ) -> Migration:
        """Do the steps that are missing and call `tell` with each; with `dry`, only name them."""
        ...
