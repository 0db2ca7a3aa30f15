"""Scripts and commands on a real server, through everything that can happen to a connection."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from complaints import no_complaint_of_asyncio
from servers.fixtures import NewValkey
from servers.tls import Authority, TlsDoor
from servers.valkey import ValkeyServer
from taskharbor.drivers import parse
from taskharbor.drivers.redis import blocking, wire
from taskharbor.drivers.redis.connection import PER_LOOP, Server
from taskharbor.drivers.redis.failure import Refused, ReplyError, failure
from taskharbor.drivers.redis.scripts import script
from taskharbor.drivers.redis.url import address
from taskharbor.errors import ConfigError, DriverClosed, DriverError, DriverUnavailable

from .talk import ECHO, bulk, echoes, opened, pretender

__all__ = ["no_complaint_of_asyncio"]

# Returns when a key is there: a call that takes as long as a test wants.
WAITING = ("BLPOP", "gate", 0)
PATIENCE, MANY = 30.0, 20_000
SECRET = "open-sesame"


@pytest.fixture(scope="module")
def valkey() -> Generator[ValkeyServer]:
    """A server whose clients can be counted, because no other test process uses it."""
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def name(valkey: ValkeyServer) -> Generator[str]:
    name = valkey.new_namespace()
    yield name
    valkey.drop_namespace(name)


@pytest.fixture
def url(valkey: ValkeyServer, name: str) -> str:
    return valkey.url(namespace=name)


async def until(true: Callable[[], object]) -> None:
    """Until something on the server is so."""
    for _ in range(MANY):
        if true():
            return
        await asyncio.sleep(0)
    raise TimeoutError(f"not so after {MANY} looks")


def clients(server: ValkeyServer, flag: str = "name=taskharbor") -> list[str]:
    return [line for line in server.command("CLIENT", "LIST").decode().splitlines() if flag in line]


async def started(server: ValkeyServer, call: Awaitable[Any]) -> asyncio.Future[Any]:
    """A call that the server has begun."""
    task = asyncio.ensure_future(call)
    before = len(clients(server, "cmd=blpop"))
    await until(lambda: task.done() or len(clients(server, "cmd=blpop")) > before)
    return task


async def fails(server: Server) -> DriverError:
    with pytest.raises(DriverUnavailable) as caught:
        await server.run(ECHO, "x")
    return caught.value


async def works_again(server: Server) -> None:
    """X2: after at most a few attempts."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(DriverUnavailable):
                assert await echoes(server)
                return


def test_by_tcp_and_by_socket(valkey: ValkeyServer, name: str) -> None:
    async def main() -> None:
        for url in (valkey.url(namespace=name), valkey.socket_url(namespace=name), valkey.url(5, namespace=name)):
            async with opened(url) as server:
                assert server.prefix == f"{{{name}}}:"
                assert await echoes(server)
                assert server.run_blocking(ECHO, b"\xff", 1, 0.5, timeout=PATIENCE)[1:] == [b"\xff", b"1", b"0.5"]
                assert await server.command("SET", server.prefix + "x", 1) == b"OK"
        valkey.command("DEL", f"{{{name}}}:x", f"{{{name}}}:{'taskharbor'}", db=5)

    asyncio.run(main())
    asyncio.run(until(lambda: not clients(valkey)))


def test_the_clock_is_the_servers(url: str) -> None:
    """L8."""

    async def main() -> None:
        async with opened(url) as server:
            first, second = await server.now(), await server.now()
        assert first.tzinfo is UTC
        assert first < second
        assert abs(second - datetime.now(UTC)) < timedelta(minutes=1)

    asyncio.run(main())


def test_a_script_is_sent_once_and_again_after_the_server_forgot_it(new_valkey: NewValkey) -> None:
    valkey = new_valkey()

    def evals() -> tuple[int, int]:
        said = valkey.command("INFO", "commandstats").decode()
        lines = dict(line.split(":", 1) for line in said.splitlines() if ":" in line)
        calls = [lines.get(f"cmdstat_{name}", "calls=0").split(",")[0] for name in ("evalsha", "eval")]
        first, second = (int(found.removeprefix("calls=")) for found in calls)
        return first, second

    async def main() -> None:
        async with opened(valkey.url()) as server:
            for _ in range(5):
                assert await echoes(server)
            assert evals() == (5, 1)
            server.run_blocking(ECHO, timeout=PATIENCE)
            assert evals() == (6, 1)
            valkey.command("SCRIPT", "FLUSH")
            assert await echoes(server)
            valkey.command("SCRIPT", "FLUSH")
            server.run_blocking(ECHO, timeout=PATIENCE)
            assert evals() == (8, 3)

    asyncio.run(main())


def test_errors_of_a_script_carry_its_word(url: str) -> None:
    async def main() -> None:
        refuses = script("refuses", "return redis.error_reply('GONE job 7')")
        broken = script("broken", "return nothing.at_all")
        async with opened(url) as server:
            with pytest.raises(Refused, match="GONE job 7") as caught:
                await server.run(refuses)
            assert (caught.value.word, caught.value.rest) == ("GONE", "job 7")
            with pytest.raises(Refused, match="GONE job 7"):
                server.run_blocking(refuses, timeout=PATIENCE)
            with pytest.raises(DriverError, match="nothing"):
                await server.run(broken)
            with pytest.raises(Refused, match="unknown command"):
                await server.command("NOSUCH")
            assert await echoes(server)

    asyncio.run(main())


def test_keys_of_another_type_are_named_with_the_fix(url: str) -> None:
    """X5."""
    pushes = script("pushes", "return redis.call('RPUSH', KEYS[1] .. 'text', 'x')")

    async def main() -> None:
        async with opened(url) as server:
            await server.command("SET", server.prefix + "text", "theirs")
            with pytest.raises(ConfigError, match="add namespace=NAME"):
                await server.run(pushes)

    asyncio.run(main())


def test_calls_at_once_share_a_few_connections(valkey: ValkeyServer, name: str) -> None:
    async def main() -> None:
        async with opened(valkey.url(namespace=name)) as server:
            replies = await asyncio.gather(*(server.run(ECHO, number) for number in range(500)))
            assert [int(number) for _, number in replies] == list(range(500))
            await until(lambda: len(clients(valkey)) <= PER_LOOP)
            waiting = await started(valkey, server.command("BLPOP", server.prefix + "gate", 0))
            assert await echoes(server)  # on the other connection
            await server.command("RPUSH", server.prefix + "gate", 1)
            await waiting

    asyncio.run(main())


def test_without_a_second_connection_calls_share_the_first(new_valkey: NewValkey) -> None:
    """X2: a server that takes no more clients goes on to serve those it has."""
    valkey = new_valkey()

    async def main() -> None:
        async with opened(valkey.url()) as server:
            assert len(clients(valkey)) == 1
            await server.command("CONFIG", "SET", "maxclients", 1)
            assert all(await asyncio.gather(*(echoes(server) for _ in range(20))))
            await server.command("CONFIG", "SET", "maxclients", 100)
            assert len(clients(valkey)) == 1

    asyncio.run(main())


def test_the_reply_to_a_cancelled_call_reaches_no_other_call(valkey: ValkeyServer, name: str) -> None:
    """CVE-2023-28858: the next caller must not get the reply of the one before."""

    async def main() -> None:
        async with opened(valkey.url(namespace=name)) as server:
            gate = server.prefix + "gate"
            for _ in range(PER_LOOP + 1):
                waiting = await started(valkey, server.command("BLPOP", gate, 0))
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await server.command("RPUSH", gate, "late")
                for number in range(5):
                    assert (await server.run(ECHO, number))[1] == b"%d" % number
            await until(lambda: len(clients(valkey, "cmd=blpop")) == 0)

    asyncio.run(main())


def test_cancelled_at_any_moment_no_reply_is_mistaken(url: str) -> None:
    """CVE-2023-28859."""

    async def main() -> None:
        async with opened(url) as server:
            for turns in range(40):
                calls = [asyncio.ensure_future(server.run(ECHO, f"{turns}-{number}")) for number in range(6)]
                for _ in range(turns % 10):
                    await asyncio.sleep(0)
                calls[turns % 6].cancel()
                for number, got in enumerate(await asyncio.gather(*calls, return_exceptions=True)):
                    if not isinstance(got, BaseException):
                        assert got[1].decode() == f"{turns}-{number}"
                    else:
                        assert isinstance(got, asyncio.CancelledError)

    asyncio.run(main())


def test_a_cancelled_call_takes_no_other_with_it(valkey: ValkeyServer, name: str) -> None:
    async def main() -> None:
        async with opened(valkey.url(namespace=name)) as server:
            gates = [f"{server.prefix}{number}" for number in range(2 * PER_LOOP)]
            calls = [asyncio.ensure_future(server.command("BLPOP", gate, 0)) for gate in gates]
            await until(lambda: len(clients(valkey, "cmd=blpop")) == PER_LOOP)
            calls[0].cancel()
            for gate in gates:
                valkey.command("RPUSH", gate, "x")
            got = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(got[0], asyncio.CancelledError)
            assert [reply[0].decode() for reply in got[1:] if isinstance(reply, list)] == gates[1:]

    asyncio.run(main())


@pytest.mark.parametrize("end", [ValkeyServer.kill, ValkeyServer.stop])
def test_a_server_that_ends_is_unavailable_until_it_is_back(
    new_valkey: NewValkey, end: Callable[[ValkeyServer], None]
) -> None:
    """X2."""
    valkey = new_valkey()

    async def main() -> None:
        async with opened(valkey.url()) as server:
            assert server.run_blocking(ECHO, timeout=PATIENCE)
            waiting = await started(valkey, server.command(*WAITING))
            end(valkey)
            with pytest.raises(DriverUnavailable, match="may still take effect"):
                await waiting
            error = await fails(server)
            assert f"127.0.0.1:{valkey.port}" in str(error)
            assert "is it running" in str(error)
            with pytest.raises(DriverUnavailable, match="is it running"):
                server.run_blocking(ECHO, timeout=PATIENCE)
            valkey.start()
            await works_again(server)
            assert server.run_blocking(ECHO, "x", timeout=PATIENCE)[1] == b"x"

    asyncio.run(main())


def test_what_was_written_outlives_a_kill(new_valkey: NewValkey) -> None:
    valkey = new_valkey(durable=True)

    async def main() -> None:
        async with opened(valkey.url()) as server:
            for number in range(20):
                await server.command("RPUSH", server.prefix + "kept", number)
            valkey.kill()
            valkey.start()
            await works_again(server)
            assert await server.command("LLEN", server.prefix + "kept") == 20

    asyncio.run(main())


def test_a_silent_server_is_given_up(new_valkey: NewValkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """X2: within a bounded time, by loops and by threads."""
    valkey = new_valkey()
    monkeypatch.setattr(wire, "ANSWER_WITHIN", 2.0)  # the timer of the first request looks after the next ones too

    async def main() -> None:
        async with opened(valkey.url()) as server:
            server.run_blocking(ECHO, timeout=PATIENCE)
            valkey.freeze()
            for limited, limit in ((wire, "ANSWER_WITHIN"), (wire, "CONNECT_WITHIN"), (blocking, "CONNECT_WITHIN")):
                monkeypatch.setattr(limited, limit, 0.05)
            assert "may still take effect" in str(await fails(server))
            assert "may still take effect" not in str(await fails(server))  # no connection any more
            with pytest.raises(DriverUnavailable, match="may still take effect"):
                server.run_blocking(ECHO, timeout=0.01)
            with pytest.raises(DriverUnavailable, match="does not answer"):
                server.run_blocking(ECHO, timeout=PATIENCE)
            with pytest.raises(DriverUnavailable, match="in time"):
                server.run_blocking(ECHO, timeout=0)
            monkeypatch.undo()  # a busy machine may take longer to answer
            valkey.thaw()
            await works_again(server)

    asyncio.run(main())


def test_a_reply_that_comes_in_drops_does_not_put_the_deadline_off() -> None:
    """X2: the limit is for the whole call."""

    async def main() -> None:
        answers = {
            "EVALSHA": b"*1000000\r\n",
            "INFO": bulk("redis_version:7.0.0"),
            "TYPE": b"+none\r\n",
            "GET": bulk("1"),
        }
        async with pretender({**answers, "CONFIG": b"*0\r\n"}) as url, opened(url) as server:
            with pytest.raises(DriverUnavailable, match="may still take effect"):
                await asyncio.to_thread(server.run_blocking, ECHO, timeout=0.05)

    asyncio.run(main())


def test_loops_and_threads_at_once(valkey: ValkeyServer, name: str) -> None:
    """P1."""

    async def main() -> None:
        async with opened(valkey.url(namespace=name)) as server:
            together = threading.Barrier(8)

            async def many(who: int) -> list[bytes]:
                return [(await server.run(ECHO, f"{who}-{number}"))[1] for number in range(50)]

            def in_loop(who: int) -> list[bytes]:
                together.wait(PATIENCE)
                return asyncio.run(many(who))

            def in_thread(who: int) -> list[bytes]:
                together.wait(PATIENCE)
                return [server.run_blocking(ECHO, f"{who}-{number}", timeout=PATIENCE)[1] for number in range(50)]

            with ThreadPoolExecutor(8) as pool:
                loop = asyncio.get_running_loop()
                kinds = [in_loop, in_thread] * 4
                work = [loop.run_in_executor(pool, kind, who) for who, kind in enumerate(kinds)]
                found = await asyncio.gather(many(8), *work)
            for who, replies in zip((8, *range(8)), found, strict=True):
                assert replies == [f"{who}-{number}".encode() for number in range(50)]

    asyncio.run(main())
    asyncio.run(until(lambda: not clients(valkey)))


def test_blocking_connections_are_limited(url: str, valkey: ValkeyServer) -> None:
    """ADR 23: no thread waits for a connection."""
    waits = script("waits", "return redis.call('GET', KEYS[1])")

    async def main() -> None:
        async with opened(url) as server:
            assert server.has_blocking()
            taken = [server._blocking._take(time.monotonic() + PATIENCE) for _ in range(blocking.MOST_OPEN)]
            assert not server.has_blocking()
            server._blocking._connections.keep(taken.pop())
            assert server.has_blocking()
            assert server.run_blocking(waits, timeout=PATIENCE) is None
            for link in taken:
                server._blocking._connections.drop(link)
        assert not server.has_blocking()

    asyncio.run(main())


def test_closing_ends_all_connections(valkey: ValkeyServer, name: str) -> None:
    async def main() -> None:
        server: Server
        async with opened(valkey.url(namespace=name)) as server:
            assert await echoes(server)
            server.run_blocking(ECHO, timeout=PATIENCE)
            await server.wait("work", 0.0)
            waiting = await started(valkey, server.command("BLPOP", server.prefix + "gate", 0))
            attempt = asyncio.ensure_future(server.run(ECHO))
            await asyncio.sleep(0)
        assert server.closed
        with pytest.raises(DriverUnavailable):
            await waiting
        with pytest.raises((DriverClosed, DriverUnavailable)):
            await attempt
        for call in (
            lambda: server.run(ECHO),
            lambda: server.command("PING"),
            lambda: server.wait("work", 1),
            server.now,
        ):
            with pytest.raises(DriverClosed):
                await call()
        with pytest.raises(DriverClosed):
            server.run_blocking(ECHO, timeout=1)
        await server.close()
        await until(lambda: not clients(valkey))

    asyncio.run(main())


def test_closing_does_not_wait_for_answers(valkey: ValkeyServer, name: str) -> None:
    """Not even on connections that take no new calls because one was cancelled."""

    async def main() -> None:
        async with opened(valkey.url(namespace=name)) as server:
            gates = [f"{server.prefix}{number}" for number in range(2 * PER_LOOP)]
            calls = [asyncio.ensure_future(server.command("BLPOP", gate, 0)) for gate in gates]
            await until(lambda: len(clients(valkey, "cmd=blpop")) == PER_LOOP)
            calls[0].cancel()
            await asyncio.wait(calls[:1])
            assert await echoes(server)  # on a new connection
        first, *others = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(first, asyncio.CancelledError)
        assert [type(error) for error in others] == [DriverUnavailable] * len(others)
        await until(lambda: len(clients(valkey, "cmd=blpop")) == 0)

    asyncio.run(main())


def test_a_loop_that_ends_takes_its_connections_along(valkey: ValkeyServer, name: str) -> None:
    async def open_and_leave() -> Server:
        server = await Server.open(*parse(valkey.url(namespace=name)))
        await server.run(ECHO)
        return server

    async def again(server: Server) -> None:
        assert await echoes(server)
        await until(lambda: len(clients(valkey)) == 1)
        await server.close()

    server = asyncio.run(open_and_leave())
    assert not server._links  # nor is the loop itself kept
    asyncio.run(again(server))


FORKS = """
import asyncio, os, sys
from taskharbor.drivers import parse
from taskharbor.drivers.redis.connection import Server
from taskharbor.drivers.redis.scripts import script
from taskharbor.errors import DriverForked

ECHO = script("echo", "return ARGV[1]")

async def main(url):
    server = await Server.open(*parse(url))
    server.run_blocking(ECHO, "x", timeout=30)
    child = os.fork()
    if child == 0:
        try:
            server.check()
        except DriverForked as error:
            assert "harbor.close() before it" in str(error)
            try:
                server.run_blocking(ECHO, "x", timeout=30)
            except DriverForked:
                assert not server.has_blocking()
                del server
                import gc
                gc.collect()
                os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    for number in range(20):
        assert await server.run(ECHO, number) == b"%d" % number
        assert server.run_blocking(ECHO, number, timeout=30) == b"%d" % number
    await server.close()

asyncio.run(main(sys.argv[1]))
"""


def test_a_forked_child_refuses_and_the_parent_goes_on(url: str) -> None:
    """P1."""
    program = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", FORKS, url]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith("store.durability")] == []


def test_wrong_logins_are_refused_with_the_fix(new_valkey: NewValkey) -> None:
    """X5: and no password is shown."""
    valkey = new_valkey(settings={"requirepass": SECRET})
    valkey.command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@read", "+info", password=SECRET)
    place = f"127.0.0.1:{valkey.port}"

    async def main() -> None:
        for login, says in (
            ("", "check user and password"),
            (":wr0ng@", "check user and"),
            ("me:wr0ng@", "check user and"),
        ):
            with pytest.raises(ConfigError, match=says) as caught:
                async with opened(f"redis://{login}{place}"):
                    pass
            assert "wr0ng" not in str(caught.value)
        with pytest.raises(ConfigError, match="the user reader may not do this: change its ACL"):
            async with opened(f"redis://reader:pw@{place}"):
                pass
        for login in (f":{SECRET}@", f"default:{SECRET}@"):
            async with opened(f"redis://{login}{place}/3") as server:
                assert await echoes(server)
                assert server.run_blocking(ECHO, timeout=PATIENCE)
                assert SECRET not in repr(server.address)

    asyncio.run(main())


def test_a_password_where_none_is_wanted_and_a_database_that_is_not_there(valkey: ValkeyServer) -> None:
    """X5."""

    async def main() -> None:
        with pytest.raises(ConfigError, match="check user and password"):
            async with opened(f"redis://:{SECRET}@127.0.0.1:{valkey.port}"):
                pass
        with pytest.raises(ConfigError, match="check its number"):
            async with opened(valkey.url(99)):
                pass

    asyncio.run(main())


def test_a_host_that_is_not_there_is_named() -> None:
    """X5, X2."""

    async def main() -> None:
        for url, kind, says in (
            ("redis://127.0.0.1:1", DriverUnavailable, "127.0.0.1:1"),
            ("unix:///no/such.sock", DriverUnavailable, "/no/such.sock"),
            ("redis://a..b", ConfigError, "cannot be a name"),
        ):
            with pytest.raises(kind, match=says):
                async with opened(url):
                    pass

    asyncio.run(main())


def test_a_full_server_stores_nothing_and_says_so(new_valkey: NewValkey) -> None:
    """X5."""
    valkey = new_valkey()
    writes = script("writes", "redis.call('SET', KEYS[1] .. 'a', 1) redis.call('SET', KEYS[1] .. 'b', 1)")

    async def main() -> None:
        async with opened(valkey.url()) as server:
            await server.run(ECHO)
            valkey.command("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(DriverUnavailable, match="out of memory, and nothing was stored"):
                await server.run(writes)
            assert valkey.keys("taskharbor") == [b"{taskharbor}:taskharbor"]
            valkey.command("CONFIG", "SET", "maxmemory", "0")
            await server.run(writes)

    asyncio.run(main())


def test_a_replica_is_left_for_the_primary(new_valkey: NewValkey) -> None:
    """X2: a failover behind the same address."""
    valkey = new_valkey(settings={"replica-serve-stale-data": "yes"})
    writes = script("writes", "return redis.call('SET', KEYS[1] .. 'a', 1)")

    async def main() -> None:
        async with opened(valkey.url()) as server:
            await server.run(writes)
            server.run_blocking(writes, timeout=PATIENCE)
            before = {line.split()[0] for line in clients(valkey)}
            valkey.command("REPLICAOF", "127.0.0.1", "1")
            with pytest.raises(DriverUnavailable, match="name the primary"):
                await server.run(writes)
            with pytest.raises(DriverUnavailable, match="name the primary"):
                server.run_blocking(writes, timeout=PATIENCE)
            await until(lambda: not clients(valkey))
            valkey.command("REPLICAOF", "NO", "ONE")
            assert await server.run(writes) == b"OK"
            assert server.run_blocking(writes, timeout=PATIENCE) == b"OK"
            assert not before & {line.split()[0] for line in clients(valkey)}

    asyncio.run(main())


def test_a_call_with_too_many_words_names_the_fix() -> None:
    """X5: Redis 6.2 takes a million."""
    reply = ReplyError("ERR Protocol error: invalid multibulk length")
    with pytest.raises(DriverError, match="enqueue fewer at once"):
        raise failure(reply, address(*parse("redis://h/0")))


def test_a_cluster_that_is_down_says_so(new_valkey: NewValkey) -> None:
    """X5."""
    valkey = new_valkey(settings={"cluster-enabled": "yes", "databases": "1"})

    async def main() -> None:
        with pytest.raises(DriverUnavailable, match="cluster is down"):
            async with opened(valkey.url()):
                pass

    asyncio.run(main())


@pytest.mark.thorough
def test_on_a_cluster_all_keys_are_in_one_slot(new_valkey: NewValkey) -> None:
    """Thorough, because a new node takes no writes for two seconds."""
    valkey = new_valkey(settings={"cluster-enabled": "yes", "databases": "1"})
    valkey.command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    give_up = time.monotonic() + PATIENCE
    while b"cluster_state:ok" not in valkey.command("CLUSTER", "INFO"):
        assert time.monotonic() < give_up

    async def main() -> None:
        writes = script(
            "writes", "redis.call('SET', KEYS[1] .. 'a', 1) return redis.call('GET', KEYS[1] .. 'taskharbor')"
        )
        async with opened(valkey.url()) as server:
            assert await server.run(writes) == b"1"

    asyncio.run(main())


def test_the_node_that_has_the_slot_is_named() -> None:
    """X5."""

    async def main() -> None:
        answers = {"INFO": bulk("redis_version:7.0.0"), "CONFIG": b"*0\r\n", "TYPE": b"-MOVED 866 10.0.0.7:6379\r\n"}
        async with pretender(answers) as url:
            with pytest.raises(ConfigError, match=r"name that one in the URL .*10\.0\.0\.7:6379"):
                async with opened(url):
                    pass

    asyncio.run(main())


def test_an_interrupt_leaves_no_reply_to_the_next_caller(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ADR 23: Ctrl-C while a thread waits for a reply that is on its way."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        async with opened(url) as server:
            server.run_blocking(ECHO, timeout=PATIENCE)
            for _ in range(blocking.MOST_OPEN + 1):
                with monkeypatch.context() as patch:
                    patch.setattr(wire.BlockingLink, "reply", interrupted)
                    with pytest.raises(KeyboardInterrupt):
                        server.run_blocking(ECHO, "first", timeout=PATIENCE)
                assert server.has_blocking()
                assert server.run_blocking(ECHO, "second", timeout=PATIENCE)[1] == b"second"

    asyncio.run(main())


def test_tls(valkey: ValkeyServer, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path, "ours")

    async def main(door: TlsDoor, odd: TlsDoor) -> None:
        place = f"127.0.0.1:{door.port}/0?namespace={name}"
        async with opened(f"rediss://{place}&sslrootcert={authority.certificate}") as server:
            assert await echoes(server)
            assert server.run_blocking(ECHO, "x", timeout=PATIENCE)[1] == b"x"
            assert door.encrypted >= 2
        async with opened(f"rediss://{place}&sslmode=require") as server:
            assert await echoes(server)
        with pytest.raises(ConfigError, match="no trusted authority"):
            async with opened(f"rediss://{place}"):
                pass
        ours = f"127.0.0.1:{odd.port}/0?namespace={name}&sslrootcert={authority.certificate}"
        with pytest.raises(ConfigError, match="another name"):
            async with opened(f"rediss://{ours}"):
                pass
        async with opened(f"rediss://{ours}&sslmode=verify-ca") as server:
            assert server.run_blocking(ECHO, "x", timeout=PATIENCE)[1] == b"x"
        monkeypatch.setattr(wire, "CONNECT_WITHIN", 0.1)  # a server without TLS waits for more
        with pytest.raises(DriverUnavailable, match="If it has no TLS, write redis://"):
            async with opened(f"rediss://127.0.0.1:{valkey.port}"):
                pass

    with (
        TlsDoor(valkey.port, authority.signed("server", "127.0.0.1"), direct=True) as door,
        TlsDoor(valkey.port, authority.signed("odd", "db.example"), direct=True) as odd,
    ):
        asyncio.run(main(door, odd))
