"""`taskharbor health --deep`: what a store may lose, on real ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from servers.fixtures import NewValkey
from servers.nats import NatsServer
from servers.postgres import PostgresServer
from servers.valkey import ValkeyServer
from taskharbor.driver import Durability, StoreSetting
from taskharbor.drivers import from_url
from taskharbor.testing.faults import Outage

from .desk import Desk, in_terminal, unpainted


def settings(desk: Desk, url: str) -> dict[str, tuple[str | None, str]]:
    """The settings that the command reports of a store that is fine."""
    answer = desk.json("health", "--deep", "--store-only", "--url", url)
    assert (answer["healthy"], answer["problems"]) == (True, [])
    return {it["name"]: (it["value"], it["level"]) for it in answer["settings"]}


def test_a_file(desk: Desk) -> None:
    """C, G2: durable by default, and it says what normal may lose."""
    desk.enqueue("shop.welcome", "user_id=1")
    assert settings(desk, desk.url) == {"journal_mode": ("wal", "fine"), "synchronous": ("full", "fine")}
    normal = f"{desk.url}?synchronous=normal"
    assert settings(desk, normal)["synchronous"] == ("normal", "warning")
    said = desk.good("health", "--deep", "--store-only", "--url", normal)
    assert "synchronous   normal: a power cut may lose the jobs since the last checkpoint" in said
    assert "settings" not in desk.json("health", "--store-only", "--url", desk.url)


def test_postgres(desk: Desk, postgres: PostgresServer) -> None:
    """C, G2: as the session has them."""
    database = postgres.new_database()
    url = postgres.url(database)
    desk.good("migrate", url)
    found = settings(desk, url)
    assert list(found) == ["synchronous_commit", "fsync", "full_page_writes"]
    postgres.execute(f'ALTER DATABASE "{database}" SET synchronous_commit = off', database=database)
    assert settings(desk, url)["synchronous_commit"] == ("off", "warning")
    postgres.execute(f'ALTER DATABASE "{database}" SET synchronous_commit = local', database=database)
    assert settings(desk, url)["synchronous_commit"] == ("local", "fine")


def test_redis(desk: Desk, new_valkey: NewValkey) -> None:
    """C, G2: a warning of what may be lost; a server that deletes jobs is exit 1, in the words of the start."""
    server = new_valkey()
    assert settings(desk, server.url()) == {
        "appendonly": ("yes", "fine"),
        "appendfsync": ("everysec", "warning"),
        "maxmemory-policy": ("noeviction", "fine"),
    }
    server.command("CONFIG", "SET", "appendfsync", "always")
    assert settings(desk, server.url())["appendfsync"] == ("always", "fine")
    server.command("CONFIG", "SET", "appendonly", "no")
    assert settings(desk, server.url())["appendonly"] == ("no", "warning")
    server.command("CONFIG", "SET", "maxmemory", "50mb")
    server.command("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
    result = desk.run("health", "--deep", "--json", "--url", server.url())
    assert result.exit_code == 1
    assert '"store_unsafe"' in result.stdout
    assert "maxmemory-policy volatile-ttl: the server deletes jobs" in result.stderr
    assert "set maxmemory-policy noeviction" in result.stderr
    desk.bad(2, "jobs", "ls", "--url", server.url())


def test_nats(desk: Desk, nats: NatsServer) -> None:
    """C, G2: a warning of what no client can read; streams in memory are exit 1."""
    name = nats.new_namespace()
    url = nats.url(namespace=name)
    found = settings(desk, url)
    assert [found.pop(name)[1] for name in ("version", "api level")] == ["fine", "fine"]
    assert found == {
        f"replicas of {name}-JOBS": ("1", "fine"),
        f"replicas of {name}-LINE": ("1", "fine"),
        "storage": ("file", "fine"),
        "sync_interval": (None, "warning"),
    }
    said = desk.good("health", "--repair", "--store-only", "--url", url)
    assert "the engine keeps its indexes itself" in said
    nats.drop_namespace(name)
    in_memory = nats.url(namespace=name, storage="memory")
    result = desk.run("health", "--deep", "--store-only", "--json", "--url", in_memory)
    assert result.exit_code == 1
    assert "a restart of the server loses all jobs" in result.stdout
    nats.drop_namespace(name)


def test_damaged_indexes(desk: Desk, valkey: ValkeyServer) -> None:
    """C: exit 1 and the fix; 0 once they are mended. What cannot be mended stays exit 1. A file has none."""
    name = valkey.new_namespace()
    words = "health", "--store-only", "--url", valkey.url(namespace=name)
    for number in range(3):
        desk.good("enqueue", "x", "--id", f"job {number}", "--url", valkey.url(namespace=name))
    found = desk.json(*words, "--deep")
    assert found["indexes"] == {"jobs": 3, "misfits": 0, "examples": [], "counted": True}
    assert found["mended"] is None
    valkey.command("DEL", f"{{{name}}}:line:0:default")
    result = desk.run(*words, "--deep")
    assert result.exit_code == 1
    assert "3 misfits between jobs and indexes (line:0:default lacks job job" in result.stderr
    assert "run `taskharbor health --repair`" in result.stderr
    said = desk.good(*words, "--repair")
    assert "indexes           of 3 jobs, all fit" in said
    assert "mended            3 misfits" in said
    valkey.command("HSET", f"{{{name}}}:card", "job 1", b"\xc1")
    valkey.command("HINCRBY", f"{{{name}}}:counts", "ready default", 5)
    valkey.command("ZADD", f"{{{name}}}:leases", 1, "nobody")
    result = desk.run(*words, "--repair")
    assert result.exit_code == 1
    assert "mended            2 of 3 misfits\n" in result.stdout
    assert "1 misfit left that the repair could not mend (job job 1 cannot be read" in result.stderr
    assert "taskharbor jobs delete ID" in result.stderr
    desk.enqueue("shop.welcome", "user_id=1")
    assert desk.json("health", "--store-only", "--repair", "--url", desk.url)["indexes"] is None
    said = desk.good("health", "--store-only", "--repair", "--url", desk.url)
    assert "mended        nothing: the engine keeps its indexes itself" in said
    valkey.drop_namespace(name)


def test_settings_that_change_while_a_store_is_open(new_valkey: NewValkey) -> None:
    """G2: they are read again, not remembered."""
    server = new_valkey()

    async def act() -> list[StoreSetting]:
        driver: Any = await from_url(server.url())
        server.command("CONFIG", "SET", "maxmemory", "50mb")
        server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        found: list[StoreSetting] = await driver.durability()
        await driver.close()
        return found

    assert [(it.value, it.level) for it in asyncio.run(act())][-1] == ("allkeys-lru", "error")


def test_memory_says_that_it_is_ephemeral() -> None:
    """G2: also through a wrapper."""

    async def act() -> None:
        driver = await from_url("memory://")
        wrapped: Any = Outage(driver)
        assert isinstance(wrapped, Durability)
        (setting,) = await wrapped.durability()
        assert (setting.name, setting.level) == ("ephemeral", "warning")

    asyncio.run(act())


def test_a_driver_that_cannot_say(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """G2: unknown, and not taken for fine."""
    desk.enqueue("shop.welcome", "user_id=1")
    monkeypatch.setattr("taskharbor.admin.admin.offered", lambda driver, protocol: None)
    assert "durability  unknown" in desk.good("health", "--deep", "--store-only", "--url", desk.url)
    assert desk.json("health", "--deep", "--store-only", "--url", desk.url)["settings"] is None


def test_in_80_columns(desk: Desk, new_valkey: NewValkey) -> None:
    """C."""
    server = new_valkey()
    code, text = in_terminal(desk.folder, 80, "health", "--deep", "--store-only", "--url", server.url())
    lines = unpainted(text).splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 80
    assert "a power cut may lose the jobs of the last second" in " ".join(" ".join(lines).split())
