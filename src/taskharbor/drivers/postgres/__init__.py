"""The PostgreSQL driver: a store that several machines share.

Internal: `taskharbor.drivers.from_url` opens it. It imports the core, the seam (`taskharbor.driver`),
the errors, and of `drivers` only `shared` and `wakeup`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import SplitResult

from taskharbor.driver import Migration
from taskharbor.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from taskharbor.drivers.postgres.driver import PostgresDriver
    from taskharbor.drivers.postgres.login import Login

__all__ = ["connect", "migrate"]


async def connect(url: SplitResult, options: dict[str, str]) -> PostgresDriver:
    """Open the store that a URL names; with `migrate=true`, create or migrate its schema first."""
    login, migrates = _read(url, options)
    from taskharbor.drivers.postgres.driver import PostgresDriver

    return await PostgresDriver.open(login, migrates=migrates)


async def migrate(
    url: SplitResult, options: dict[str, str], *, dry: bool = False, tell: Callable[[str], object] = lambda _: None
) -> Migration:
    """Migrate the schema that a URL names, or (`dry`) only plan it. `tell` is called with each migration."""
    login, _ = _read(url, options)
    from taskharbor.drivers.postgres import schema
    from taskharbor.drivers.postgres.failure import failure

    try:
        return await (schema.plan(login) if dry else schema.migrate(login, tell))
    except Exception as error:
        if (ours := failure(error, login)) is error:
            raise  # `from` would make it the cause of itself
        raise ours from error


def _read(url: SplitResult, options: dict[str, str]) -> tuple[Login, bool]:
    """Read the whole URL before any connection is made; also return whether to migrate."""
    try:
        import_module("asyncpg")
    except ImportError:
        raise MissingExtra('postgresql:// needs asyncpg: pip install "taskharbor[postgres]"') from None
    from taskharbor.drivers.postgres.login import login, switch

    migrates = switch(options, "migrate")
    found = login(url, options)
    if options:
        raise ConfigError(f"the postgresql driver has no option {', '.join(sorted(options))!r} (see docs/postgres.md)")
    return found, migrates
