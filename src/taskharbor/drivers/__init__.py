"""Stores. `from_url` is the one place that knows their names; strangers' come by the entry points `taskharbor.drivers`.

A driver's module has `async def connect(url, options) -> Driver`. It takes the options it knows out of the dict; what
is left over is refused here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from urllib.parse import SplitResult, parse_qsl, urlsplit

from taskharbor.driver import Driver
from taskharbor.errors import ConfigError

Connect = Callable[[SplitResult, dict[str, str]], Awaitable[Driver]]

BUILT_IN = {"memory": "taskharbor.drivers.memory", "sqlite": "taskharbor.drivers.sqlite"}
TO_COME = ("postgresql", "postgres", "redis", "rediss", "valkey", "nats")


async def from_url(url: str) -> Driver:
    """Open the store that a URL names."""
    parts, options = parse(url)
    connect = _connector(parts.scheme)
    driver = await connect(parts, options)
    if options:
        await driver.close()
        raise ConfigError(
            f"the {parts.scheme} driver has no option {', '.join(sorted(options))!r} (in {redacted(url)})"
        )
    return driver


def parse(url: str) -> tuple[SplitResult, dict[str, str]]:
    """The parts of a URL and its options, or a `ConfigError` that shows how URLs look."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"{redacted(url)!r} is not a URL: {error}") from None
    if "://" not in url or not parts.scheme:
        raise ConfigError(f"{redacted(url)!r} is not a URL: write for example sqlite:///taskharbor.db or memory://")
    if parts.fragment:
        raise ConfigError(f"{redacted(url)!r} has a fragment: write a # in a name as %23")
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    if len(dict(pairs)) < len(pairs):
        raise ConfigError(f"{redacted(url)!r} names an option twice")
    return parts, dict(pairs)


def redacted(url: str) -> str:
    """The URL without its password, for messages and logs."""
    before, at, after = url.rpartition("@")
    if not at or "://" not in before:
        return url
    scheme, _, login = before.partition("://")
    user, colon, _ = login.partition(":")
    return f"{scheme}://{user}{':***' if colon else ''}@{after}"


def _connector(scheme: str) -> Connect:
    if scheme in BUILT_IN:
        connect: Connect = import_module(BUILT_IN[scheme]).connect
        return connect
    from importlib.metadata import entry_points  # slow to import, and seldom needed

    for found in entry_points(group="taskharbor.drivers", name=scheme):
        stranger: Connect = found.load()
        return stranger
    known = ", ".join(f"{name}://" for name in BUILT_IN)
    if scheme in TO_COME:
        raise ConfigError(f"this version of TaskHarbor has no {scheme} driver yet; it has {known}")
    raise ConfigError(f"no driver for {scheme}://; this version has {known}")
