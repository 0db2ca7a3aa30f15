"""Requests to a real server, through everything that can happen to a connection."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from complaints import no_complaint_of_asyncio
from servers.fixtures import NewNats
from servers.nats import NatsCluster, NatsServer
from servers.postgres import free_port
from servers.tls import Authority
from taskharbor.driver import StoreSetting
from taskharbor.drivers import parse
from taskharbor.drivers.nats import connection, wire
from taskharbor.drivers.nats.connection import JetStream
from taskharbor.drivers.nats.failure import ApiError, Denied
from taskharbor.drivers.nats.url import address
from taskharbor.drivers.nats.wire import NatsWire, status
from taskharbor.errors import ConfigError, DriverClosed, DriverUnavailable
from taskharbor.testing.proxy import Proxy

from .talk import opened, polite, pretender, said

__all__ = ["no_complaint_of_asyncio"]

PATIENCE = 60.0
MANY = 1_000_000
SECRET = "open-sesame"


@pytest.fixture
def name(nats: NatsServer) -> Generator[str]:
    name = nats.new_namespace()
    yield name
    nats.drop_namespace(name)


def run(main: Callable[[], Awaitable[Any]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PATIENCE):
            await main()

    asyncio.run(limited())


async def answers(server: JetStream) -> bool:
    """Whether a request gets through, and its answer back."""
    return status((await (await server.wire()).request("nobody.there")).headers) == 503


async def works_again(server: JetStream) -> None:
    """X2: after at most a few attempts."""
    while True:
        with suppress(DriverUnavailable):
            await server.api("INFO")
            await server.now()
            return


async def another(server: JetStream, before: wire.NatsWire) -> wire.NatsWire:
    """The connection after this one."""
    for _ in range(MANY):
        if (found := await server.wire()) is not before:
            return found
        await asyncio.sleep(0)
    raise TimeoutError(f"still the same connection after {MANY} looks")


def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts are tried in the order of the URL."""

    class Rng(random.Random):
        def sample(self, population: Any, k: int, *, counts: Any = None) -> list[Any]:
            return list(population)

    monkeypatch.setattr(connection, "random", Rng())


def test_it_is_opened_and_answers(nats: NatsServer, name: str) -> None:
    async def main() -> None:
        async with opened(nats.url(namespace=name)) as server:
            assert (server.prefix, server.jobs, server.line) == (name, f"{name}-JOBS", f"{name}-LINE")
            assert (server.replicas, server.max_payload) == (1, 1_048_576)
            assert await server.wire() is await server.wire()
            assert await answers(server)
            assert (await server.api(f"STREAM.INFO.{server.jobs}"))["config"]["name"] == server.jobs

    run(main)


def test_the_clock_is_the_servers(nats: NatsServer, name: str) -> None:
    """L8."""

    async def main() -> None:
        async with opened(nats.url(namespace=name)) as server:
            first, second = await server.now(), await server.now()
        assert first.utcoffset() == timedelta(0)
        assert first < second
        assert abs(second - datetime.now(UTC)) < timedelta(minutes=1)

    run(main)


def test_errors_of_jetstream_carry_their_numbers(nats: NatsServer, name: str) -> None:
    async def main() -> None:
        async with opened(nats.url(namespace=name)) as server:
            with pytest.raises(ApiError, match="stream not found") as caught:
                await server.api("STREAM.INFO.no_such")
            assert (caught.value.code, caught.value.err_code) == (404, 10059)
            assert f"127.0.0.1:{nats.port}" in str(caught.value)

    run(main)


def test_a_request_that_a_cluster_drops_is_sent_again(
    nats: NatsServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: without a leader nobody answers, and with one the first request is not waited for."""
    monkeypatch.setattr(connection, "AGAIN_AFTER", 0.02)
    lost: list[str] = []

    def dropped(wire: NatsWire, subject: str, *args: Any) -> asyncio.Future[Any]:
        if len(lost) < 2:
            lost.append(subject)
            return asyncio.get_running_loop().create_future()
        return request(wire, subject, *args)

    async def main() -> None:
        async with opened(nats.url(namespace=name)) as server:
            monkeypatch.setattr(NatsWire, "request", dropped)
            assert (await server.api("INFO"))["api"]
            assert lost == ["$JS.API.INFO"] * 2

    request = NatsWire.request
    run(main)


def test_callers_share_a_connection_and_the_attempt(nats: NatsServer, name: str) -> None:
    async def main() -> None:
        async with Proxy("127.0.0.1", nats.port) as proxy:
            async with opened(proxy.url(nats.url(namespace=name))) as server:
                assert proxy.accepted == 1
                proxy.reset()
                await (await server.wire()).closed
                wires = await asyncio.gather(*(server.wire() for _ in range(50)))
                assert len(set(wires)) == 1
                assert proxy.accepted == 2
            await proxy.until(lambda: not proxy.links)

    run(main)


def test_a_caller_that_leaves_takes_no_other_with_it(nats: NatsServer, name: str) -> None:
    """X3."""

    async def main() -> None:
        async with Proxy("127.0.0.1", nats.port) as proxy, opened(proxy.url(nats.url(namespace=name))) as server:
            proxy.reset()
            await (await server.wire()).closed
            first, second = (asyncio.ensure_future(server.wire()) for _ in range(2))
            await asyncio.sleep(0)
            first.cancel()
            assert (await second).is_open
            assert first.cancelled()

    run(main)


@pytest.mark.parametrize("end", [NatsServer.kill, NatsServer.stop])
def test_a_server_that_ends_is_unavailable_until_it_is_back(
    new_nats: NewNats, end: Callable[[NatsServer], None]
) -> None:
    """X2."""
    nats = new_nats()

    async def main() -> None:
        async with opened(nats.url()) as server:
            end(nats)
            for _ in range(2):
                with pytest.raises(DriverUnavailable, match="is it running"):
                    await server.api("INFO")
                await asyncio.sleep(0)
            nats.start()
            await works_again(server)

    run(main)


def test_a_silent_server_is_given_up(new_nats: NewNats, monkeypatch: pytest.MonkeyPatch) -> None:
    """X2: within a bounded time."""
    nats = new_nats()

    async def main() -> None:
        async with opened(nats.url()) as server:
            nats.freeze()
            with pytest.raises(DriverUnavailable, match="may still take effect"):
                await server.api("INFO", timeout=0.01)
            silent = await server.wire()
            waiting = silent.request("x")
            for _ in range(3):
                silent._look()
            with pytest.raises(DriverUnavailable, match=r"may still take effect.*silent"):
                await waiting
            monkeypatch.setattr(connection, "CONNECT_WITHIN", 0.05)
            with pytest.raises(DriverUnavailable) as caught:
                await server.api("INFO")
            assert "may still take effect" not in str(caught.value)  # there is no connection
            monkeypatch.undo()
            nats.thaw()
            await works_again(server)

    run(main)


def test_a_host_that_is_down_is_passed_over(nats: NatsServer, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_order(monkeypatch)
    url = nats.url(namespace=name).replace("127.0.0.1", f"127.0.0.1:{free_port()},127.0.0.1")

    async def main() -> None:
        async with opened(url) as server:
            assert await answers(server)
            (await server.wire()).abort()
            await works_again(server)

    run(main)


def test_another_program_on_the_port_is_told_apart() -> None:
    """X5."""

    async def main() -> None:
        for greeting in (b"HTTP/1.1 400 Bad Request\r\n", b"+OK 5 ready\r\nINFO x\r\n"):
            async with pretender(greeting) as port:
                with pytest.raises(ConfigError, match="does not answer as NATS does: check host and port"):
                    async with opened(f"nats://127.0.0.1:{port}"):
                        pass

    run(main)


def test_all_hosts_are_named_if_none_answers() -> None:
    """X5."""
    one, two = free_port(), free_port()

    async def main() -> None:
        with pytest.raises(DriverUnavailable, match=f"127.0.0.1:{one}, 127.0.0.1:{two} does not answer"):
            async with opened(f"nats://127.0.0.1:{one},127.0.0.1:{two}"):
                pass
        with pytest.raises(ConfigError, match="cannot be a name"):
            async with opened("nats://a..b"):
                pass

    run(main)


def test_a_node_that_does_not_answer_requests_is_left(
    nats: NatsServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: it may have lost the rest of its cluster, although it answers pings."""
    in_order(monkeypatch)
    monkeypatch.setattr(wire, "ANSWER_WITHIN", 0.02)
    monkeypatch.setattr(wire, "LOOK_EVERY", 0.01)

    async def main() -> None:
        async with pretender() as port:
            server = JetStream(address(*parse(f"nats://127.0.0.1:{port},127.0.0.1:{nats.port}/?namespace={name}")))
            with pytest.raises(DriverUnavailable, match="no answer"):
                await (await server.wire()).request("x")
            monkeypatch.undo()
            before = await server.wire()
            found = await another(server, before)
            assert found.info["server_id"] != "x"
            await before.closed
            assert await answers(server)
            await server.close()

    run(main)


def test_hosts_that_a_server_names_are_learned(nats: NatsServer) -> None:
    """And forgotten, when it names others."""

    async def main() -> None:
        greeting = said(connect_urls=[f"127.0.0.1:{nats.port}", "nonsense:x"])
        server: JetStream
        async with pretender(greeting) as port:
            server = JetStream(address(*parse(f"nats://127.0.0.1:{port}")))
            (await server.wire()).abort()
        await works_again_by_wire(server)
        assert server._wires[asyncio.get_running_loop()]._hosts == [("127.0.0.1", port)]
        await server.close()

    run(main)


def test_hosts_that_a_server_names_show_the_certificate_of_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers name addresses, and certificates names."""
    asked: list[tuple[str, str | None]] = []

    async def connect(host: str, port: int, *, tls_name: str | None, **_: Any) -> wire.NatsWire:
        asked.append((host, tls_name))
        found = wire.NatsWire("", lambda _: {}, None, "")
        found.info = {"connect_urls": ["10.0.0.1:4222", "[::1]:4222", "other:4222"]}
        return found

    monkeypatch.setattr(wire.NatsWire, "connect", connect)

    async def main() -> None:
        server = JetStream(address(*parse("nats://nats.example")))
        for _ in range(4):
            await server.wire()
        await server.close()

    run(main)
    named = {"10.0.0.1": "nats.example", "::1": "nats.example", "other": "other", "nats.example": "nats.example"}
    assert dict(asked[:2]) == {"nats.example": "nats.example", "10.0.0.1": "nats.example"}
    assert all(named[host] == name or name == "other" for host, name in asked)


async def works_again_by_wire(server: JetStream) -> None:
    while True:
        with suppress(DriverUnavailable):
            assert await answers(server)
            return


def test_a_server_that_shuts_down_is_used_until_another_is_found(
    nats: NatsServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lame duck says so, and closes its connections a minute later."""
    in_order(monkeypatch)

    async def main() -> None:
        leaving = b"PONG\r\n" + said(ldm=True)

        def answer(line: bytes) -> bytes:
            return leaving if line == b"PING\r\n" else b""

        async with pretender(answer=answer) as port, Proxy("127.0.0.1", nats.port) as proxy:
            proxy.refuse()
            server = JetStream(address(*parse(f"nats://127.0.0.1:{port},127.0.0.1:{proxy.port}/?namespace={name}")))
            before = await server.wire()
            assert before.leaving
            sid = before.subscribe("x", lambda _: None)
            for _ in range(20):
                assert await server.wire() is before
                await asyncio.sleep(0)
            proxy.accept()
            found = await another(server, before)
            assert found.info["server_id"] != "x"
            assert not before.closed.done()  # it is subscribed
            before.unsubscribe(sid)
            before._look()
            await before.closed
            await server.close()

    run(main)


def test_a_real_lame_duck(new_nats: NewNats) -> None:
    nats = new_nats(config='lame_duck_duration: "30s"\nlame_duck_grace_period: "0s"')

    async def main() -> None:
        async with opened(nats.url()) as server:
            moved, found = asyncio.Event(), await server.wire()
            found.moved = moved.set
            nats.signal(signal.SIGUSR2)
            await moved.wait()
            assert found.leaving

    run(main)


def test_closing_ends_all_connections(nats: NatsServer, name: str) -> None:
    async def main() -> None:
        async with Proxy("127.0.0.1", nats.port) as proxy:
            async with opened(proxy.url(nats.url(namespace=name))) as server:
                proxy.stall("to_client")
                waiting = asyncio.ensure_future(server.api("INFO"))
                await asyncio.sleep(0)
            assert server.closed
            with pytest.raises((DriverClosed, DriverUnavailable)):
                await waiting
            for call in (server.wire, server.now, server.durability, lambda: server.api("INFO")):
                with pytest.raises(DriverClosed):
                    await call()
            await server.close()
            proxy.heal()
            await proxy.until(lambda: not proxy.links)

    run(main)


def test_closing_while_it_connects(nats: NatsServer, name: str) -> None:
    async def main() -> None:
        async with Proxy("127.0.0.1", nats.port) as proxy:
            async with opened(proxy.url(nats.url(namespace=name))) as server:
                proxy.reset()
                await (await server.wire()).closed
                proxy.stall("to_client")
                waiting = asyncio.ensure_future(server.api("INFO"))
                await proxy.until(lambda: proxy.accepted == 2)
                (wires,) = server._wires.values()
                attempt = wires._attempt
                assert attempt is not None
            with pytest.raises(DriverClosed):
                await waiting
            assert attempt.cancelled()
            proxy.heal()
            await proxy.until(lambda: not proxy.links)

    run(main)


def test_loops_have_connections_of_their_own(nats: NatsServer, name: str) -> None:
    """P1: a loop that ends takes its connection along, and closing ends those of other loops."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with opened(nats.url(namespace=name)) as server:

            async def many() -> list[bool]:
                return await asyncio.gather(*(answers(server) for _ in range(50)))

            there: list[wire.NatsWire] = []

            async def stay(connected: asyncio.Event) -> None:
                there.append(await server.wire())
                loop.call_soon_threadsafe(connected.set)
                await there[0].closed

            with ThreadPoolExecutor(4) as pool:
                work = [loop.run_in_executor(pool, lambda: asyncio.run(many())) for _ in range(4)]
                assert await asyncio.gather(many(), *work) == [[True] * 50] * 5
                assert len(server._wires) == 1
                connected = asyncio.Event()
                staying = loop.run_in_executor(pool, lambda: asyncio.run(stay(connected)))
                await connected.wait()
                assert there[0] is not await server.wire()
                await server.close()
                await staying

    run(main)


FORKS = """
import asyncio, gc, os, sys
from taskharbor.driver import StoreSetting
from taskharbor.drivers import parse
from taskharbor.drivers.nats.connection import JetStream
from taskharbor.errors import DriverForked

async def main(url):
    server = await JetStream.open(*parse(url))
    child = os.fork()
    if child == 0:
        try:
            server.check()
        except DriverForked as error:
            assert "harbor.close() before it" in str(error)
            del server
            gc.collect()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    for number in range(20):
        assert await server.api("INFO")
    await server.close()

asyncio.run(main(sys.argv[1]))
"""


def test_a_forked_child_refuses_and_the_parent_goes_on(nats: NatsServer, name: str) -> None:
    """P1."""
    program = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", FORKS, nats.url(namespace=name)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith("store.durability")] == []


def test_logins_by_password(new_nats: NewNats) -> None:
    """X5: and no password is shown."""
    nats = new_nats(config=f"authorization {{ user: me, password: {SECRET} }}", login=f"me:{SECRET}")

    async def main() -> None:
        async with opened(nats.url()) as server:
            assert await answers(server)
            assert SECRET not in repr(server.address)
        for login in ("", "me:wr0ng", "wr0ng"):
            with pytest.raises(Denied, match="check user, password, token") as caught:
                async with opened(nats.url(login)):
                    pass
            assert "wr0ng" not in str(caught.value)

    run(main)


def test_a_host_that_refuses_the_login_is_not_hidden_by_others(
    new_nats: NewNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X5: one that is down says less."""
    in_order(monkeypatch)
    nats = new_nats(config=f"authorization {{ user: me, password: {SECRET} }}", login=f"me:{SECRET}")

    async def main() -> None:
        with pytest.raises(Denied, match="refuses the login"):
            async with opened(f"nats://me:wr0ng@127.0.0.1:{nats.port},127.0.0.1:{free_port()}"):
                pass

    run(main)


def test_a_learned_host_that_refuses_the_login_is_passed_over() -> None:
    """It may belong to another network."""

    def refuses(line: bytes) -> bytes:
        return b"-ERR 'Authorization Violation'\r\n" if line == b"PING\r\n" else b""

    async def main() -> None:
        async with (
            pretender(said(server_id="b"), refuses) as other,
            pretender(said(connect_urls=[f"127.0.0.1:{other}"])) as port,
        ):
            server = JetStream(address(*parse(f"nats://127.0.0.1:{port}")))
            (await server.wire()).abort()
            again = await server.wire()
            assert again.info["server_id"] == "x"
            await server.close()

    run(main)


def test_logins_by_token(new_nats: NewNats) -> None:
    nats = new_nats(config=f'authorization {{ token: "{SECRET}:x" }}')

    async def main() -> None:
        async with opened(nats.url(f"{SECRET}%3Ax")) as server:
            assert await answers(server)

    run(main)


def encrypted(folder: Path, certificate: tuple[Path, Path], clients: Path | None = None) -> str:
    """The configuration of a server with TLS. It runs as another user, so its key is copied."""
    for place in (folder, *folder.parents[:3]):
        place.chmod(place.stat().st_mode | 0o055)
    cert, key = certificate
    key.chmod(0o644)
    verify = f'ca_file: "{clients}", verify: true' if clients else ""
    return f'tls {{ cert_file: "{cert}", key_file: "{key}", {verify} }}'


def test_tls_is_verified(new_nats: NewNats, tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    nats = new_nats(config=encrypted(tmp_path, ours.signed("server", "localhost")))
    place = f"localhost:{nats.port}"

    async def main() -> None:
        async with opened(f"tls://{place}?sslrootcert={ours.certificate}") as server:
            assert await answers(server)
        async with opened(f"tls://127.0.0.1:{nats.port}?sslmode=verify-ca&sslrootcert={ours.certificate}") as server:
            assert await answers(server)
        async with opened(f"tls://{place}?sslmode=require") as server:
            assert await answers(server)
        for url, says in (
            (f"tls://{place}", "no trusted authority"),
            (f"tls://{place}?sslrootcert={theirs.certificate}", "no trusted authority"),
            (f"tls://127.0.0.1:{nats.port}?sslrootcert={ours.certificate}", "another name"),
            (f"nats://{place}", "write tls://"),
        ):
            with pytest.raises(ConfigError, match=says):
                async with opened(url):
                    pass

    run(main)


def test_tls_with_a_certificate_of_the_client(new_nats: NewNats, tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    mine, key = ours.signed("client", "me")
    nats = new_nats(config=encrypted(tmp_path, ours.signed("server", "localhost"), ours.certificate))
    url = f"tls://localhost:{nats.port}?sslrootcert={ours.certificate}"

    async def main() -> None:
        async with opened(f"{url}&sslcert={mine}&sslkey={key}") as server:
            assert await answers(server)
        with pytest.raises(ConfigError, match="add sslcert= and sslkey="):
            async with opened(url):
                pass

    run(main)


def test_no_tls_where_tls_is_wanted(nats: NatsServer, tmp_path: Path) -> None:
    """No password goes over a connection that is not encrypted."""
    sent: list[bytes] = []

    def answer(line: bytes) -> bytes:
        sent.append(line)
        return polite(line)

    async def main() -> None:
        for port in (nats.port, None):
            async with pretender(answer=answer) as other:
                with pytest.raises(ConfigError, match="offers no TLS: write nats://"):
                    async with opened(f"tls://me:{SECRET}@127.0.0.1:{port or other}"):
                        pass
        assert sent == []

    run(main)


def test_a_node_is_kept_while_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although it did not answer a request: it is not left again before the next one."""
    in_order(monkeypatch)

    async def main() -> None:
        async with pretender() as port:
            server = JetStream(address(*parse(f"nats://127.0.0.1:{port},127.0.0.1:{free_port()}")))
            before = await server.wire()
            before.suspect = True
            assert await server.wire() is before
            for _ in range(MANY):
                if not before.suspect:
                    break
                await asyncio.sleep(0)
            assert not before.suspect
            assert await server.wire() is before
            await server.close()

    run(main)


async def replicas(server: JetStream) -> list[StoreSetting]:
    return [setting for setting in await server.durability() if "replicas" in setting.name]


def test_a_cluster_loses_nodes(nats_cluster: NatsCluster) -> None:
    """X2: one that is killed and one that shuts down, by a URL that names one node only."""

    async def main() -> None:
        first = nats_cluster.nodes[0]
        with pytest.raises(ConfigError, match=r"as many nodes with JetStream as replicas="):
            async with opened(first.url(replicas="5", namespace="five")):
                pass
        async with opened(first.url(replicas="3")) as server:
            assert server.replicas == 3
            while any(setting.level == "warning" for setting in await replicas(server)):
                pass
            first.kill()
            await works_again(server)
            while not all(first.name in setting.message for setting in await replicas(server)):
                pass
            first.start()
            await works_again(server)
            leaving = await server.wire()
            (node,) = [node for node in nats_cluster.nodes if node.name == leaving.info["server_name"]]
            node.signal(signal.SIGUSR2)  # it closes its connections after a while
            await another(server, leaving)
            await works_again(server)

    run(main)
