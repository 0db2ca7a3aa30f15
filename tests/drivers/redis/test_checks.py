"""The checks of a server when it is opened: its version, its settings, and whose keys it has."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Generator
from contextlib import closing

import pytest

from servers.fixtures import NewValkey
from servers.valkey import ValkeyServer
from taskharbor import Harbor, chain
from taskharbor.drivers.redis import checks
from taskharbor.drivers.redis.checks import LAYOUT, MARKER, durability, settings
from taskharbor.drivers.redis.failure import BUSY
from taskharbor.errors import ConfigError, DriverUnavailable, HarborError, PayloadTooLarge, SchemaMismatch

from .talk import ECHO, bulk, echoes, opened, pretender

REDIS_6 = "# Server\r\nredis_version:6.2.14\r\nmaxmemory:0\r\naof_enabled:1\r\n"


@pytest.fixture(autouse=True)
def no_warnings_yet() -> Generator[None]:
    before = set(checks._warned)
    checks._warned.clear()
    yield
    checks._warned.update(before)


def refusal(url: str) -> HarborError:
    async def main() -> None:
        async with opened(url):
            pass

    with pytest.raises(HarborError) as caught:
        asyncio.run(main())
    return caught.value


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "taskharbor.redis"]


def test_what_a_server_says_of_itself(new_valkey: NewValkey) -> None:
    server = new_valkey(durable=True, settings={"maxmemory": "50mb"})

    async def main() -> None:
        async with opened(server.url()) as store:
            found = await settings(store.command)
        told = server.command("INFO", "server").decode()
        assert found.product == ("Valkey" if "valkey_version" in told else "Redis")
        assert f"{found.product.lower()}_version:{found.version}" in told
        assert (found.maxmemory, found.policy) == (50 * 1024 * 1024, "noeviction")
        assert (found.appendonly, found.appendfsync, found.cluster) == (True, "always", False)
        assert [(it.name, it.value, it.level) for it in checks.durability(found)] == [
            ("appendonly", "yes", "fine"),
            ("appendfsync", "always", "fine"),
            ("maxmemory-policy", "noeviction", "fine"),
        ]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"appendfsync": "everysec"}, "the jobs of the last second"),
        ({"appendfsync": "no"}, "set everysec or always"),
        ({"appendonly": "no"}, "set appendonly yes"),
        ({"appendfsync": "always"}, None),
        ({"rename-command CONFIG": "nothing"}, "appendfsync unknown: the server does not let us read it"),
    ],
)
def test_a_warning_of_what_a_power_cut_may_lose_comes_once(
    new_valkey: NewValkey, caplog: pytest.LogCaptureFixture, given: dict[str, str], says: str | None
) -> None:
    server = new_valkey(settings=given)

    async def main() -> None:
        for _ in range(2):
            async with opened(server.url()) as store:
                assert await echoes(store)

    with caplog.at_level(logging.WARNING, "taskharbor.redis"):
        asyncio.run(main())
    said = warnings(caplog)
    if says is None:
        assert said == []
    else:
        [line] = said
        assert line.startswith("store.durability: ")
        assert says in line


def test_an_evicting_server_is_refused(new_valkey: NewValkey) -> None:
    """X5: it would delete jobs."""
    server = new_valkey(settings={"maxmemory": "50mb", "maxmemory-policy": "allkeys-lru"})
    error = refusal(server.url())
    assert isinstance(error, ConfigError)
    assert "set maxmemory-policy noeviction" in str(error)
    assert server.command("DBSIZE") == 0


def test_a_policy_that_would_evict_is_a_warning(new_valkey: NewValkey) -> None:
    """X5: without a limit nothing is evicted, but the next administrator may set one."""
    server = new_valkey(settings={"maxmemory": "0", "maxmemory-policy": "allkeys-lru"})

    async def main() -> None:
        async with opened(server.url()) as store:
            assert await echoes(store)
            (policy,) = (it for it in durability(await settings(store.command)) if it.name == "maxmemory-policy")
            assert (policy.value, policy.level) == ("allkeys-lru", "warning")
            assert "set maxmemory-policy noeviction" in policy.message

    asyncio.run(main())


def test_an_old_server_is_refused_with_its_version() -> None:
    """X5."""

    async def main() -> None:
        for version, fits in (("5.0.14", False), ("6.0.16", False), ("6.2.14", True), ("10.0.0", True)):
            info = bulk(REDIS_6.replace("6.2.14", version))
            answers = {"INFO": info, "GET": bulk(str(LAYOUT)), "TYPE": b"+none\r\n", "CONFIG": b"*0\r\n"}
            async with pretender(answers) as url:
                if fits:
                    async with opened(url):
                        continue
                with pytest.raises(ConfigError, match=rf"is Redis {version}: .* 6\.2"):
                    async with opened(url):
                        pass

    asyncio.run(main())


def test_another_kind_of_server_is_refused() -> None:
    """X5."""

    async def main() -> None:
        async with pretender({}, b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
            with pytest.raises(ConfigError, match="check host and port"):
                async with opened(url):
                    pass
        async with pretender({}, b"-ERR max number of clients reached\r\n") as url:
            with pytest.raises(DriverUnavailable, match="raise maxclients"):
                async with opened(url):
                    pass

    asyncio.run(main())


def test_keys_of_others_are_left_alone(valkey: ValkeyServer) -> None:
    """X5: nothing is half-written."""
    name = valkey.new_namespace()
    key = f"{{{name}}}:{MARKER}"
    valkey.command("RPUSH", key, "theirs")
    assert "add namespace=NAME" in str(error := refusal(valkey.url(namespace=name)))
    assert isinstance(error, ConfigError)
    valkey.command("DEL", key)
    valkey.command("SET", key, "theirs")
    assert isinstance(refusal(valkey.url(namespace=name)), ConfigError)
    assert valkey.command("GET", key) == b"theirs"
    valkey.command("SET", key, LAYOUT + 1)
    assert f"have layout {LAYOUT + 1}" in str(error := refusal(valkey.url(namespace=name)))
    assert isinstance(error, SchemaMismatch)
    assert valkey.keys(name) == [key.encode()]
    valkey.drop_namespace(name)


@pytest.mark.parametrize("name", ["theirs", "line:0:default", "flow", "up:x"])
def test_a_new_namespace_with_any_key_of_others_is_refused(valkey: ValkeyServer, name: str) -> None:
    """X5: before anything is written, because a script that fails in the middle is not undone."""
    namespace = valkey.new_namespace()
    valkey.command("SET", key := f"{{{namespace}}}:{name}", "theirs")
    error = refusal(valkey.url(namespace=namespace))
    assert isinstance(error, ConfigError)
    assert f"the key {key} is not TaskHarbor's" in str(error)
    assert "add namespace=NAME" in str(error)
    assert valkey.keys(namespace) == [key.encode()]
    valkey.drop_namespace(namespace)


def test_a_namespace_that_lost_its_mark_is_marked_again(valkey: ValkeyServer) -> None:
    """X5: our own keys are not taken for those of others."""
    namespace = valkey.new_namespace()
    with closing(Harbor(valkey.url(namespace=namespace))) as harbor:
        task = harbor.task(name="nothing")(_nothing)
        chain(task.step(), task.step()).using(idempotency_key="flow").enqueue()
        harbor.drain()
        chain(task.step(), task.step()).enqueue()
    valkey.command("DEL", f"{{{namespace}}}:{MARKER}")
    with closing(Harbor(valkey.url(namespace=namespace))) as harbor:
        assert len(harbor.admin.jobs.list("*")) == 4
    assert valkey.command("GET", f"{{{namespace}}}:{MARKER}") == b"%d" % LAYOUT
    valkey.drop_namespace(namespace)


def _nothing() -> None:
    """A handler."""


def test_a_payload_over_the_limit_of_the_server(new_valkey: NewValkey) -> None:
    """R4, X5: a server may take shorter values than others; nothing is stored, and the connection goes on."""
    server = new_valkey(settings={"proto-max-bulk-len": "2mb"})
    with closing(Harbor(server.url(), payload_limit=64 * 1024 * 1024)) as harbor:
        for text, fits in (("x" * 2_000_000, False), ("x" * 1_000_000, True)):
            if fits:
                harbor.enqueue("anything", {"text": text})
            else:
                with pytest.raises(PayloadTooLarge, match="limit"):
                    harbor.enqueue("anything", {"text": text})
        assert len(harbor.admin.jobs.list("*")) == 1


def test_a_node_of_a_cluster_has_one_database(new_valkey: NewValkey) -> None:
    """X5."""
    server = new_valkey(settings={"cluster-enabled": "yes", "databases": "1"})
    assert isinstance(error := refusal(server.url(db=1)), ConfigError)
    assert "check its number in the URL" in str(error)


@pytest.mark.parametrize("word", [word for word in BUSY if word.isupper()])
def test_a_server_that_is_busy_is_unavailable_and_then_used(word: str) -> None:
    """X2: whatever it waits for, callers get an error, nothing is taken for stored, and the next call goes through."""

    async def main() -> None:
        answers = {"INFO": bulk(REDIS_6), "GET": bulk(str(LAYOUT)), "TYPE": b"+none\r\n", "CONFIG": b"*0\r\n"}
        async with pretender(answers) as url, opened(url) as server:
            for refused in (
                b"-%s in some words\r\n",
                b"-ERR Error running script (call to f): @user_script:3: -%s x\r\n",
            ):
                answers["EVALSHA"] = refused % word.encode()
                with pytest.raises(DriverUnavailable, match=re.escape(BUSY[word])):
                    await server.run(ECHO)
                with pytest.raises(DriverUnavailable, match=re.escape(BUSY[word])):
                    await asyncio.to_thread(server.run_blocking, ECHO, timeout=9.0)
            answers["EVALSHA"] = bulk("fine")
            assert await server.run(ECHO) == b"fine"
            assert await asyncio.to_thread(server.run_blocking, ECHO, timeout=9.0) == b"fine"

    asyncio.run(main())


def test_a_server_that_loads_its_data_says_so(new_valkey: NewValkey) -> None:
    """X2: a real one, which answers LOADING while it reads its file."""
    slow = {"key-load-delay": "1000", "rdbcompression": "no"}
    server = new_valkey(settings={"appendonly": "no", **slow})
    # It answers after every 2 MiB.
    server.command("EVAL", "for n = 1, 500 do redis.call('SET', 'key' .. n, string.rep('x', 60000)) end", 0)
    server.command("SAVE")
    server.stop()
    said: list[str] = []

    async def main() -> None:
        starting = asyncio.create_task(asyncio.to_thread(server.start))
        while not starting.done():
            try:
                async with opened(server.url()):
                    await asyncio.sleep(0)
            except DriverUnavailable as error:
                said.append(str(error))
        await starting
        async with opened(server.url()) as store:
            assert await echoes(store)

    asyncio.run(main())
    assert any("it is loading its data: wait" in line for line in said), said


def test_a_namespace_is_marked_with_its_layout(valkey: ValkeyServer) -> None:
    name = valkey.new_namespace()

    async def main() -> None:
        for _ in range(2):
            async with opened(valkey.url(namespace=name)):
                pass

    asyncio.run(main())
    assert valkey.command("GET", f"{{{name}}}:{MARKER}") == b"%d" % LAYOUT
    assert valkey.command("TTL", f"{{{name}}}:{MARKER}") == -1
    valkey.drop_namespace(name)
