"""The two streams of a namespace: made when they are missing, and checked; the server, too."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from taskharbor.driver import StoreSetting
from taskharbor.drivers.nats.failure import ApiError, Unready
from taskharbor.drivers.nats.url import NatsAddress
from taskharbor.errors import ConfigError, DriverUnavailable, UnsafeStore

logger = logging.getLogger("taskharbor.nats")
Api = Callable[..., Awaitable[dict[str, Any]]]

OLDEST = (2, 15)
API_LEVEL = 2
JOBS = "jkeoxdr"  # the second tokens of the subjects of JOBS
LINE = "l"
WITHIN = 10.0
PAUSE = 0.2
UNKNOWN, OVERLAP = 10059, 10065
# Another process makes the stream: it has other settings, or its files are in the way.
RACED = (10058, 10049)
NOT_ENABLED = (10039, 10076)
FIXES = {
    10002: "raise the limits of the account there",
    10005: "a cluster needs as many nodes with JetStream as replicas= in the URL says",
    10023: "raise the limits of JetStream there, or make room",
    10027: "raise max_streams of the account there",
    10028: "raise max_mem of JetStream there",
    10047: "raise max_file of JetStream there, or make room",
    10074: "write replicas=1 in the URL, or name a cluster",
    10113: "make both streams by hand, with max_bytes and the settings in docs/nats.md",
}
# What a stream has to be. Others may be set by hand: limits of size, placement, compression.
SETTINGS: dict[str, Any] = {
    "retention": "limits",
    "max_age": 0,
    "max_msg_size": -1,
    "max_msgs_per_subject": 1,
    "discard": "new",
    "allow_direct": True,
    "allow_atomic": True,
    "allow_msg_ttl": True,
}
# What it must not be; servers leave these out of their answers if they are not set.
UNSET: dict[str, Any] = {
    "discard_new_per_subject": False,
    "allow_rollup_hdrs": False,
    "allow_msg_counter": False,
    "allow_msg_schedules": False,
    "deny_delete": False,
    "deny_purge": False,
    "sealed": False,
    "no_ack": False,
    "mirror": None,
    "sources": None,
    "subject_transform": None,
    "mirror_direct": False,
    "persist_mode": None,
    "subject_delete_marker_ttl": 0,
    "consumer_limits": None,
}
DELETING = {"retention", "max_age", "max_msgs_per_subject", "discard", "storage"}  # jobs, if they are wrong
NO_JETSTREAM = "JetStream is not enabled{}: start the server with -js, or with jetstream {{}} in its configuration"
SYNCED = (
    "no client can read sync_interval: unless it is always on every node, a power cut of all nodes loses what was "
    "acknowledged in the last two minutes or more; look for sync_interval: always in the configuration of each node"
)
IN_MEMORY = "a restart of the server loses all jobs: make the streams with storage=file"


async def prepare(api: Api, info: dict[str, Any], address: NatsAddress) -> int:
    """Make the streams that are missing, and raise unless server and streams suit; the number of replicas.

    Warns, once per process, of what may be lost.
    """
    account = await _check_server(api, info, address)
    streams: dict[str, dict[str, Any]] = {}
    for name, wanted in configurations(address).items():
        streams[name] = await _ensure(api, name, wanted, address)
        _compare(name, wanted, streams[name]["config"], address)
    for setting in _settings(info, account, streams):
        if setting.level != "fine" and (key := (address.where, setting.name)) not in _warned:
            _warned.add(key)
            value = setting.value or "unknown"
            logger.warning(
                "store.durability: %s: %s %s: %s (see docs/nats.md)",
                address.where, setting.name, value, setting.message,
            )  # fmt: skip
    return min(int(found["config"]["num_replicas"]) for found in streams.values())


def configurations(address: NatsAddress) -> dict[str, dict[str, Any]]:
    """The streams by name, as they are made."""
    return {
        f"{address.prefix}-{name}": {
            "name": f"{address.prefix}-{name}",
            "description": "TaskHarbor",
            "subjects": [f"{address.prefix}.{kind}.>" for kind in kinds],
            "storage": address.storage or "file",
            "num_replicas": address.replicas or 1,
            **SETTINGS,
        }
        for name, kinds in (("JOBS", JOBS), ("LINE", LINE))
    }


async def durability(api: Api, info: dict[str, Any], address: NatsAddress) -> list[StoreSetting]:
    """The settings that decide what may be lost, as they are now."""
    account = await api("INFO")
    return _settings(info, account, {name: await api(f"STREAM.INFO.{name}") for name in configurations(address)})


def _settings(info: dict[str, Any], account: dict[str, Any], streams: dict[str, dict[str, Any]]) -> list[StoreSetting]:
    """The settings, each with what is lost and the fix."""
    in_memory = any(found["config"]["storage"] == "memory" for found in streams.values())
    checked = {name: found for name, found in streams.items() if not found.get("did_create")}  # they lag at first
    return [
        StoreSetting("version", str(info.get("version"))),
        StoreSetting("api level", str(_level(account))),
        *(_replicated(name, found) for name, found in checked.items()),
        StoreSetting("storage", "memory", "error", IN_MEMORY) if in_memory else StoreSetting("storage", "file"),
        StoreSetting("sync_interval", None, "warning", SYNCED),
    ]


def _replicated(name: str, found: dict[str, Any]) -> StoreSetting:
    """How many copies of a stream there are, and which of them lag."""
    count = found["config"]["num_replicas"]
    cluster: dict[str, Any] = found.get("cluster") or {}
    others: list[dict[str, Any]] = cluster.get("replicas") or []
    behind = sorted(str(peer.get("name")) for peer in others if peer.get("offline") or not peer.get("current"))
    if not behind:
        return StoreSetting(f"replicas of {name}", str(count))
    return StoreSetting(
        f"replicas of {name}",
        f"{count}, {len(behind)} of them behind",
        "warning",
        f"until these have caught up, the loss of another node may stop all work: look at {', '.join(behind)}",
    )


def _level(account: dict[str, Any]) -> int:
    return int(account.get("api", {}).get("level", 0))


async def _check_server(api: Api, info: dict[str, Any], address: NatsAddress) -> dict[str, Any]:
    """Raise unless the server suits; its answer about the account."""
    where, text = address.where, str(info.get("version", ""))
    version = tuple(int(part) for part in text.split("-")[0].split(".") if part.isdigit())
    if version < OLDEST:
        raise _too_old(where, f"version {text or 'unknown'}")
    try:
        account = await _patiently(api, "INFO")
    except ApiError as error:
        if error.err_code in NOT_ENABLED:
            raise ConfigError(f"{where}: {NO_JETSTREAM.format(' for this account')} ({error.description})") from error
        if isinstance(error, Unready) and not error.err_code and not info.get("jetstream"):
            raise ConfigError(f"{where}: {NO_JETSTREAM.format('')}") from error
        raise
    if (level := _level(account)) < API_LEVEL:
        raise _too_old(where, f"JetStream API level {level}")
    return account


def _too_old(where: str, what: str) -> ConfigError:
    return ConfigError(
        f"{where} has {what}: TaskHarbor needs NATS 2.15 or newer on all nodes, because older ones can store half of "
        "an atomic batch"
    )


async def _patiently(api: Api, subject: str, body: object | None = None) -> dict[str, Any]:
    """Ask again while a cluster elects a leader."""
    until = asyncio.get_running_loop().time() + WITHIN
    while True:
        try:
            return await api(subject, body)
        except Unready as error:
            if asyncio.get_running_loop().time() > until or (error.code == 503 and not error.err_code):
                raise
            await asyncio.sleep(PAUSE)


async def _ensure(api: Api, name: str, wanted: dict[str, Any], address: NatsAddress) -> dict[str, Any]:
    for attempt in (1, 2, 3):
        try:
            return await _patiently(api, f"STREAM.INFO.{name}")
        except ApiError as error:
            if error.err_code != UNKNOWN:
                raise
        try:
            return await _patiently(api, f"STREAM.CREATE.{name}", wanted)
        except ApiError as error:
            if error.err_code not in RACED or attempt == 3:
                raise _not_made(name, error, address) from error
            await asyncio.sleep(PAUSE)
    raise AssertionError("unreachable")


def _not_made(name: str, error: ApiError, address: NatsAddress) -> Exception:
    where = address.where
    if isinstance(error, DriverUnavailable):
        return error
    if error.err_code == OVERLAP:
        return ConfigError(
            f"{where}: another program has a stream with subjects that begin with {address.prefix}: add "
            f"namespace=NAME to the URL ({error.description})"
        )
    fix = FIXES.get(error.err_code, "look at the limits of the account")
    return ConfigError(f"{where}: the stream {name} cannot be made: {error.description} ({error.err_code}): {fix}")


def _compare(name: str, wanted: dict[str, Any], found: dict[str, Any], address: NatsAddress) -> None:
    where = address.where
    ours = {**UNSET, **SETTINGS, "subjects": wanted["subjects"], "storage": wanted["storage"]}
    if address.replicas is not None:
        ours["num_replicas"] = address.replicas
    wrong = {
        field: (_shown(found.get(field), value), _shown(value, value))
        for field, value in ours.items()
        if (found.get(field) or None) != (value or None)
    }
    if not wrong:
        return
    differences = ", ".join(f"{field} {was} instead of {value}" for field, (was, value) in wrong.items())
    kind = UnsafeStore if wrong.keys() & DELETING else ConfigError
    raise kind(
        f"{where}: the stream {name} has {differences}: change it with `nats stream edit {name}`, or add "
        "namespace=NAME to the URL"
    )


def _shown(value: object, wanted: object) -> object:
    """Servers leave out what is not set."""
    return bool(value) if isinstance(wanted, bool) else value or (0 if wanted == 0 else "none")


_warned: set[tuple[str, str]] = set()
