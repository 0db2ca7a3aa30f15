"""Stores. `from_url` is the one place that knows their names; other packages add theirs by entry points.

An entry point is named after the scheme of its URLs and names a module with `async def connect(url, options) -> Driver`
(or that function itself). `connect` takes the options it knows out of the dict; what is left over is refused here. If
the schema of a store has to be migrated, its module has `migrate` too (`driver.Migrates`). Other modules here are
internal. Only the harbor and the testing tools import this package, and no driver imports another.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from taskharbor.core.urls import redacted as redacted
from taskharbor.driver import Connect, Driver, Migrates, Migration
from taskharbor.errors import ConfigError

BUILT_IN = {
    "memory": "taskharbor.drivers.memory",
    "nats": "taskharbor.drivers.nats",
    "postgresql": "taskharbor.drivers.postgres",
    "redis": "taskharbor.drivers.redis",
    "sqlite": "taskharbor.drivers.sqlite",
}
ALIASES = {"postgres": "postgresql", "rediss": "redis", "tls": "nats", "unix": "redis", "valkey": "redis"}


async def from_url(url: str) -> Driver:
    """Open the store that a URL names."""
    parts, options = parse(url)
    found = _find(parts.scheme)
    connect: Connect = getattr(found, "connect", found)
    driver = await connect(parts, options)
    if options:
        await driver.close()
        raise ConfigError(
            f"the {parts.scheme} driver has no option {', '.join(sorted(options))!r} (in {redacted(url)})"
        )
    return driver


async def migrate(url: str, *, dry: bool = False, tell: Callable[[str], object] = lambda _: None) -> Migration | None:
    """Bring the schema of a store up to date, or (`dry`) say what there is to do; None if opening a store does that."""
    parts, options = parse(url)
    found = _find(parts.scheme)
    return await found.migrate(parts, options, dry=dry, tell=tell) if isinstance(found, Migrates) else None


def parse(url: str) -> tuple[SplitResult, dict[str, str]]:
    """The parts of a URL and its options, or a `ConfigError` that shows how URLs look."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        # Python's message about a wrong character in the host shows the whole login.
        reason = "write odd characters as %XX" if "netloc" in str(error) else error
        raise ConfigError(f"{redacted(url)!r} is not a URL: {reason}") from None
    if "://" not in url or not parts.scheme:
        raise ConfigError(
            f"{redacted(url)!r} is not a URL: write for example sqlite:///taskharbor.db, postgresql://user@host/jobs, "
            "redis://host/0, nats://host or memory://"
        )
    if parts.fragment:
        raise ConfigError(f"{redacted(url)!r} has a fragment: write a # in a name as %23")
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    if len(dict(pairs)) < len(pairs):
        raise ConfigError(f"{redacted(url)!r} names an option twice")
    return parts, dict(pairs)


def _find(scheme: str) -> Any:
    """The module of a driver, or the `connect` function that an entry point names."""
    if (own := ALIASES.get(scheme, scheme)) in BUILT_IN:
        return import_module(BUILT_IN[own])
    from importlib.metadata import entry_points  # slow to import, and seldom needed

    for point in entry_points(group="taskharbor.drivers", name=scheme):
        return point.load()
    known = ", ".join(f"{name}://" for name in BUILT_IN)
    if (plain := scheme.partition("+")[0]) in BUILT_IN:
        raise ConfigError(f"no driver for {scheme}://: write {plain}://")
    raise ConfigError(f"no driver for {scheme}://; this version has {known}")
