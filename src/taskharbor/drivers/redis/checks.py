"""Checks of a server when it is opened: its version, its keys, and the settings that decide what may be lost."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from taskharbor.driver import StoreSetting
from taskharbor.drivers.redis.failure import Refused
from taskharbor.drivers.redis.keyspace import keys
from taskharbor.drivers.redis.url import Address
from taskharbor.errors import ConfigError, SchemaMismatch, UnsafeStore

logger = logging.getLogger("taskharbor.redis")
OLDEST = (6, 2)
LAYOUT = 1
MARKER = "taskharbor"
# The keys that every namespace may have, and what they are.
PARTS = ("job", "card", "claim", "started", "progress", "end", "rest")
HASHES = (*PARTS, "counts", "keys", "flowcounts", "flowkeys", "schedules", "workers")
SORTED = ("all", "leases", "lined", "ended", "dead", "expiring", "stopping", "flows", "minutes")
STRINGS = (MARKER, "seq", "repairs")
TYPES = {
    **dict.fromkeys(STRINGS, "string"),
    **dict.fromkeys(HASHES, "hash"),
    **dict.fromkeys(SORTED, "zset"),
    "paused": "set",
}
# Keys whose names continue with a queue, a job, a workflow or a time.
BEGINNINGS = {
    **dict.fromkeys(("line:", "ranks:", "flow:", "flowborn:", "flowends:"), "zset"),
    **dict.fromkeys(("up:", "tally:"), "hash"),
    "down:": "set",
}
Command = Callable[..., Awaitable[Any]]
MAX_BULK = 512 * 1024 * 1024
NO_LOG = "a crash or a restart loses all jobs since the last snapshot, or all there are: set appendonly yes"
UNSYNCED = (
    "a power cut may lose what the system had not written yet, often the jobs of half a minute: set everysec or always"
)
EVICTS = "the server deletes jobs when its memory is full: set maxmemory-policy noeviction there"
WOULD_EVICT = "the server will delete jobs as soon as it has a maxmemory: set maxmemory-policy noeviction there"


class ServerSettings(Struct, frozen=True, kw_only=True):
    """The version and the settings of a server; None for a setting that it does not let us read."""

    product: str
    version: str
    compatible: tuple[int, ...]  # the version of Redis that it is compatible with
    maxmemory: int
    policy: str
    appendonly: bool
    appendfsync: str | None
    max_bulk: int  # the longest value that it takes
    cluster: bool


async def check(command: Command, address: Address) -> ServerSettings:
    """Raise unless the server suits; warn, once per process, of what it may lose."""
    found = await settings(command)
    _suits(found, address)
    await _mark(command, address)
    for setting in durability(found):
        if setting.level == "warning" and (key := (address.where, setting.message)) not in _warned:
            _warned.add(key)
            logger.warning("store.durability: %s (see docs/redis.md)", _described(address, setting))
    return found


def durability(found: ServerSettings) -> list[StoreSetting]:
    """The settings that decide what may be lost, each with what is lost and the fix."""
    log = [StoreSetting("appendonly", "no", "warning", NO_LOG)]
    if found.appendonly:
        log = [StoreSetting("appendonly", "yes"), _synced(found.appendfsync)]
    if found.policy == "noeviction":
        return [*log, StoreSetting("maxmemory-policy", found.policy)]
    if not found.maxmemory:
        return [*log, StoreSetting("maxmemory-policy", found.policy, "warning", WOULD_EVICT)]
    return [*log, StoreSetting("maxmemory-policy", found.policy, "error", EVICTS)]


def _synced(appendfsync: str | None) -> StoreSetting:
    if appendfsync == "always":
        return StoreSetting("appendfsync", appendfsync)
    lost = {
        None: "the server does not let us read it: unless it is always, a power cut may lose the last second or more",
        "everysec": "a power cut may lose the jobs of the last second; always loses none",
    }
    return StoreSetting("appendfsync", appendfsync, "warning", lost.get(appendfsync, UNSYNCED))


def _described(address: Address, setting: StoreSetting) -> str:
    return f"{address.where}: {setting.name} {setting.value or 'unknown'}: {setting.message}"


async def settings(command: Command) -> ServerSettings:
    """Read the settings."""
    info = _fields(await command("INFO"))
    version = info.get("redis_version", "")
    return ServerSettings(
        product="Valkey" if "valkey_version" in info else "Redis",
        version=info.get("valkey_version", version),
        compatible=tuple(int(part) for part in version.split(".") if part.isdigit()),
        maxmemory=int(info.get("maxmemory", 0)),
        policy=info.get("maxmemory_policy", "noeviction"),
        appendonly=info.get("aof_enabled") == "1",
        appendfsync=await _configured(command, "appendfsync"),
        max_bulk=int(await _configured(command, "proto-max-bulk-len") or MAX_BULK),
        cluster=info.get("cluster_enabled") == "1",
    )


async def _configured(command: Command, name: str) -> str | None:
    """A setting; None if the server forbids to read it, as managed ones do."""
    try:
        found = await command("CONFIG", "GET", name)
    except (ConfigError, Refused):
        return None
    return found[1].decode() if len(found) == 2 else None


def _suits(found: ServerSettings, address: Address) -> None:
    where = address.where
    if found.compatible < OLDEST:
        raise ConfigError(
            f"{where} is {found.product} {found.version or 'of an unknown version'}: TaskHarbor needs Redis 6.2 or "
            "newer, or Valkey"
        )
    for setting in durability(found):
        if setting.level == "error":
            raise UnsafeStore(_described(address, setting))


async def _mark(command: Command, address: Address) -> None:
    """Claim the prefix for this layout of keys, unless keys of another program are there."""
    key = address.prefix + MARKER
    for name, kind in TYPES.items():
        found = (await command("TYPE", address.prefix + name)).decode()
        if found not in ("none", kind):
            raise _foreign(address, address.prefix + name)
    if (marked := await command("GET", key)) is None:
        await _check_new(command, address)
        await command("SET", key, LAYOUT, "NX")
        marked = await command("GET", key)
    if marked == b"%d" % LAYOUT:
        return
    if isinstance(marked, bytes) and marked.isdigit():
        raise SchemaMismatch(
            f"{address.where}: the keys of namespace {address.namespace!r} have layout {int(marked)}, and this version "
            f"of TaskHarbor has layout {LAYOUT}: use the version that made them, or another namespace"
        )
    raise _foreign(address, key)


async def _check_new(command: Command, address: Address) -> None:
    """Raise if a namespace without our mark holds keys that are not ours: scripts cannot undo half of a write."""
    async for name in keys(command, address.prefix):
        kind = TYPES.get(name) or BEGINNINGS.get(f"{name.partition(':')[0]}:")
        found = (await command("TYPE", address.prefix + name)).decode()
        if found not in ("none", kind):
            raise _foreign(address, address.prefix + name)


def _foreign(address: Address, key: str) -> ConfigError:
    return ConfigError(
        f"{address.where}: the key {key} is not TaskHarbor's: another program uses keys that begin with "
        f"{address.prefix}; add namespace=NAME to the URL"
    )


def _fields(text: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in text.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


_warned: set[tuple[str, str]] = set()
