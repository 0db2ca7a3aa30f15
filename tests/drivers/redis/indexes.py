"""Whether the indexes hold exactly what the records say: the scripts keep them by hand, `entries` says it once."""

from __future__ import annotations

from collections import Counter
from typing import Any

from servers.valkey import ValkeyServer
from taskharbor.drivers.redis.entries import entries, numbers
from taskharbor.drivers.redis.parts import PARTS, Parts, compose, head_of


def check(server: ValkeyServer, namespace: str) -> None:
    """Fail if an index lacks an entry or has one too many."""
    prefix = f"{{{namespace}}}:"
    stored = {part: _hash(server, f"{prefix}{part}") for part in PARTS}
    wanted: dict[tuple[str, str], float] = {}
    totals: Counter[tuple[str, str]] = Counter()
    for id, head_text in stored["job"].items():
        head = head_of(head_text)
        record = compose(id, Parts(*(stored[part].get(id) for part in PARTS)), head)  # type: ignore[arg-type]
        found = entries(record, head.seq, head.lined)
        wanted |= {place: float(score) for place, score in found.items()}
        totals.update(numbers(record))
    assert {id for part in PARTS for id in stored[part]} <= stored["job"].keys(), "parts without a job"
    assert _members(server, namespace, prefix) == wanted
    kept = {(key, name): int(value) for key in ("counts", "flowcounts") for name, value in _named(server, prefix, key)}
    assert {place: number for place, number in kept.items() if number} == dict(totals)


def _members(server: ValkeyServer, namespace: str, prefix: str) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for key in server.keys(namespace):
        name = key.decode().removeprefix(prefix)
        if name == "minutes" or server.command("TYPE", key) not in (b"zset", "zset"):
            continue
        flat = server.command("ZRANGE", key, 0, -1, "WITHSCORES")
        found |= {(name, flat[n].decode()): float(flat[n + 1]) for n in range(0, len(flat), 2)}
    return found


def _hash(server: ValkeyServer, key: str) -> dict[str, Any]:
    flat = server.command("HGETALL", key)
    return {flat[n].decode(): flat[n + 1] for n in range(0, len(flat), 2)}


def _named(server: ValkeyServer, prefix: str, key: str) -> list[tuple[str, Any]]:
    return list(_hash(server, f"{prefix}{key}").items())
