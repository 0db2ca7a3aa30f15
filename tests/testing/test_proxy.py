"""The proxy: every byte in order when it behaves, and each kind of misbehaviour exactly as ordered."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from taskharbor.testing import Direction, Link, Proxy, ProxyThread

WORD = b"0123456789abcdef"
FAREWELL = b"bye"
PATIENCE = 30
BOTH: list[Direction] = ["to_server", "to_client"]


class Echo(asyncio.Protocol):
    """Sends everything back, unless it is silent, and keeps what came and how it ended."""

    def __init__(self) -> None:
        self.came = b""
        self.silent = False
        self._news = asyncio.Event()
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.came += data
        self._news.set()
        if not self.silent:
            self.transport.write(data)

    async def has(self, n: int) -> None:
        """Wait until so many bytes have come."""
        while len(self.came) < n:
            self._news.clear()
            await self._news.wait()

    def eof_received(self) -> None:
        self.transport.write(FAREWELL)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(exc)


class World:
    """A server, a proxy in front of it, and clients."""

    def __init__(self) -> None:
        self.served: list[Echo] = []
        self.proxy: Proxy
        self.server: asyncio.Server
        self._clients: list[socket.socket] = []

    def serve(self) -> Echo:
        self.served.append(Echo())
        return self.served[-1]

    async def client(self, port: int | None = None) -> socket.socket:
        """A connection by way of the proxy. A bare socket, which hands out what came before a reset, then the reset."""
        client = socket.socket()
        self._clients.append(client)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, (self.proxy.host, port or self.proxy.port))
        return client

    @property
    def port(self) -> int:
        """Where the server itself listens."""
        return int(self.server.sockets[0].getsockname()[1])

    async def connected(self) -> tuple[socket.socket, Echo]:
        """A connection, and what the server has of it."""
        client = await self.client()
        await talk(client, b"!")
        self.served[-1].came = b""
        return client, self.served[-1]

    def close(self) -> None:
        for client in self._clients:
            client.close()


@asynccontextmanager
async def world() -> AsyncGenerator[World]:
    world = World()
    world.server = await asyncio.get_running_loop().create_server(world.serve, "127.0.0.1", 0)
    async with world.server, Proxy("127.0.0.1", world.port) as world.proxy:
        with closing(world):
            yield world


def play(scene: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    """Run a scene to its end, in bounded time."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE), world() as given:
            await scene(given)

    asyncio.run(main())


async def send(client: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(client, data)


async def read(client: socket.socket, n: int) -> bytes:
    """Exactly so many bytes."""
    got = b""
    while len(got) < n:
        more = await asyncio.get_running_loop().sock_recv(client, n - len(got))
        assert more, f"ended after {got!r}"
        got += more
    return got


async def talk(client: socket.socket, data: bytes) -> None:
    """Send, and receive it back."""
    await send(client, data)
    assert await read(client, len(data)) == data


async def last_words(client: socket.socket) -> bytes:
    """The bytes that still come before the connection is reset."""
    got = b""
    try:
        while more := await asyncio.get_running_loop().sock_recv(client, 1000):
            got += more
    except ConnectionResetError:
        return got
    raise AssertionError(f"ended without a reset after {got!r}")


def test_it_passes_everything_on_in_order() -> None:
    async def exchange(client: socket.socket, word: bytes) -> None:
        _, got = await asyncio.gather(send(client, word), read(client, len(word)))
        assert got == word

    async def scene(world: World) -> None:
        clients = [await world.client() for _ in range(5)]
        await asyncio.gather(*(exchange(client, Random(n).randbytes(700_000)) for n, client in enumerate(clients)))
        assert world.proxy.accepted == len(world.proxy.links) == 5
        assert world.proxy.received == world.proxy.forwarded == {"to_server": 3_500_000, "to_client": 3_500_000}
        assert world.proxy.links[2].forwarded == {"to_server": 700_000, "to_client": 700_000}
        assert [link.number for link in world.proxy.links] == [0, 1, 2, 3, 4]

    play(scene)


def test_one_side_may_end_before_the_other() -> None:
    async def scene(world: World) -> None:
        client, server = await world.connected()
        await send(client, WORD)
        client.shutdown(socket.SHUT_WR)
        assert await read(client, len(WORD + FAREWELL)) == WORD + FAREWELL
        assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
        assert await server.ended is None
        await world.proxy.until(lambda: not world.proxy.links)

    play(scene)


def test_a_reset_by_the_server_reaches_the_client() -> None:
    async def scene(world: World) -> None:
        client, server = await world.connected()
        server.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1] + [0] * 7))
        server.transport.abort()
        assert await last_words(client) == b""

    play(scene)


def test_without_a_server_clients_are_reset() -> None:
    async def scene(world: World) -> None:
        world.server.close()
        client = await world.client()
        assert await last_words(client) == b""

    play(scene)


def test_stalled_bytes_wait_and_lose_nothing() -> None:
    async def scene(world: World) -> None:
        proxy = world.proxy
        client, server = await world.connected()
        proxy.stall()
        await send(client, WORD)
        late = await world.client()
        await send(late, WORD)
        late.shutdown(socket.SHUT_WR)
        await proxy.until(lambda: proxy.received["to_server"] == 1 + 2 * len(WORD))
        assert (server.came, proxy.forwarded["to_server"], len(proxy.links)) == (b"", 1, 2)
        proxy.resume()
        assert await read(client, len(WORD)) == WORD
        assert await read(late, len(WORD + FAREWELL)) == WORD + FAREWELL
        await talk(client, WORD)

    play(scene)


def test_a_stall_in_one_direction_lets_the_other_pass() -> None:
    async def scene(world: World) -> None:
        client, server = await world.connected()
        world.proxy.stall("to_client")
        await send(client, WORD)
        await world.proxy.until(lambda: world.proxy.received["to_client"] == 1 + len(WORD))
        assert (server.came, world.proxy.forwarded["to_client"]) == (WORD, 1)
        world.proxy.resume()
        assert await read(client, len(WORD)) == WORD

    play(scene)


def test_a_stall_holds_a_transfer_that_is_under_way() -> None:
    async def scene(world: World) -> None:
        client, server = await world.connected()
        server.transport.pause_reading()
        word = Random(1).randbytes(20_000_000)  # more than all the kernel's buffers hold
        sending = asyncio.create_task(send(client, word))
        [link] = world.proxy.links
        await world.proxy.until(lambda: link.received["to_server"] > link.forwarded["to_server"] > 1)
        world.proxy.stall()
        passed = link.forwarded["to_server"]
        server.transport.resume_reading()
        await server.has(passed - 1)
        await talk(await world.client(world.port), WORD)  # some turns of the loop, in which the rest could move
        assert link.forwarded["to_server"] == passed
        world.proxy.resume()
        assert await read(client, len(word)) == word
        await sending

    play(scene)


def test_a_reset_hits_all_connections_on_both_sides_at_once() -> None:
    async def scene(world: World) -> None:
        pairs = [await world.connected() for _ in range(3)]
        world.proxy.reset()
        for client, server in pairs:
            assert await last_words(client) == b""
            assert isinstance(await server.ended, ConnectionResetError)
        await world.proxy.until(lambda: not world.proxy.links)
        await world.connected()
        assert world.proxy.accepted == 4

    play(scene)


def test_refusing_keeps_open_connections_and_the_port() -> None:
    async def scene(world: World) -> None:
        port = world.proxy.port
        client, _ = await world.connected()
        for _ in range(2):
            world.proxy.refuse()
            with pytest.raises(ConnectionRefusedError):
                await world.client()
        await talk(client, WORD)
        for _ in range(2):
            world.proxy.accept()
            await world.connected()
        assert (world.proxy.port, world.proxy.accepted) == (port, 3)

    play(scene)


@pytest.mark.parametrize("direction", BOTH)
def test_a_cut_happens_at_the_very_byte(direction: Direction) -> None:
    async def scene(world: World) -> None:
        for n in range(len(WORD) + 1):
            client, server = await world.connected()
            cut = world.proxy.cut_after(n, direction)
            await send(client, WORD)
            got = await last_words(client)
            assert isinstance(await server.ended, ConnectionResetError)
            assert (got if direction == "to_client" else server.came) == WORD[:n]
            assert cut.done

    play(scene)


@pytest.mark.parametrize("n", [65_535, 65_536, 65_537, 1_000_000, 2_999_999])
def test_a_cut_happens_at_the_very_byte_of_a_long_transfer(n: int) -> None:
    async def scene(world: World) -> None:
        client, server = await world.connected()
        server.silent = True  # one that writes to a broken connection does not read its rest
        word = Random(n).randbytes(3_000_000)
        world.proxy.cut_after(n, "to_server")
        [_, ended] = await asyncio.gather(send(client, word), server.ended, return_exceptions=True)
        assert isinstance(ended, ConnectionResetError)
        assert server.came == word[:n]

    play(scene)


def test_a_cut_counts_over_several_messages_and_waits_for_none_after_it() -> None:
    async def scene(world: World) -> None:
        client, server = await world.connected()
        cut = world.proxy.cut_after(3 * len(WORD), "to_server")
        await talk(client, WORD)
        await talk(client, WORD)
        assert not cut.done
        await send(client, WORD)
        await server.ended
        assert server.came == WORD * 3

    play(scene)


def test_a_cut_hits_the_first_connection_that_gets_there_and_no_other() -> None:
    async def scene(world: World) -> None:
        (one, _), (two, _) = await world.connected(), await world.connected()
        cut = world.proxy.cut_after(10, "to_server")
        await talk(one, b"1" * 9)
        three = await world.client()
        await talk(three, b"3" * 9)
        await send(two, b"2" * 10)
        await last_words(two)
        assert cut.done
        await talk(one, WORD)
        await talk(three, WORD)
        assert [link.number for link in world.proxy.links] == [0, 2]

    play(scene)


def test_a_swallowed_reply_is_lost_after_its_request_has_arrived() -> None:
    async def scene(world: World) -> None:
        client, server = await world.connected()
        idle, _ = await world.connected()
        cut = world.proxy.swallow_reply()
        await send(client, WORD)
        assert await last_words(client) == b""
        await server.ended
        assert server.came == WORD
        assert cut.done
        await talk(idle, WORD)

    play(scene)


def test_a_delay_holds_what_waits_already_until_it_is_taken_back() -> None:
    async def scene(world: World) -> None:
        client, server = await world.connected()
        world.proxy.delay(3600)
        await send(client, WORD)
        await world.proxy.until(lambda: world.proxy.received["to_server"] == 1 + len(WORD))
        assert server.came == b""
        world.proxy.delay(0.001)
        assert await read(client, len(WORD)) == WORD

    play(scene)


def test_single_connections_have_the_same_controls() -> None:
    async def scene(world: World) -> None:
        clients = [await world.connected() for _ in range(4)]
        stalled, cut, swallowed, reset = world.proxy.links
        stalled.stall()
        cut.cut_after(3, "to_server")
        swallowed.swallow_reply()
        reset.reset()
        for client, _ in clients[:3]:
            await send(client, WORD)
        for client, _ in clients[1:]:
            assert WORD[:3].startswith(await last_words(client))
        assert [server.came for _, server in clients] == [b"", WORD[:3], WORD, b""]
        stalled.delay(3600)
        stalled.cut_after(5, "to_server")
        stalled.heal()
        assert await read(clients[0][0], len(WORD)) == WORD

    play(scene)


def test_rules_for_the_next_connections() -> None:
    async def scene(world: World) -> None:
        proxy, numbers = world.proxy, list[int]()
        before, _ = await world.connected()
        proxy.on_next(lambda link: numbers.append(link.number), times=None)
        proxy.on_next(lambda link: link.cut_after(9, "to_client"), times=2)
        proxy.on_next(lambda link: link.cut_after(4, "to_client"))
        for wanted in (WORD[:4], WORD[:9]):
            client = await world.client()
            await send(client, WORD)
            assert await last_words(client) == wanted
        await world.connected()
        proxy.on_next(Link.reset)
        with pytest.raises(ConnectionResetError):
            await world.connected()
        await talk(before, WORD)
        assert numbers == [1, 2, 3, 4]

    play(scene)


def test_healing_takes_everything_back() -> None:
    async def scene(world: World) -> None:
        client, _ = await world.connected()
        proxy = world.proxy
        proxy.stall()
        proxy.delay(3600)
        proxy.refuse()
        proxy.on_next(Link.reset, times=None)
        cuts = [proxy.cut_after(5, "to_server"), proxy.swallow_reply(), proxy.links[0].swallow_reply()]
        await send(client, WORD)
        proxy.heal()
        assert await read(client, len(WORD)) == WORD
        await world.connected()
        assert not any(cut.done for cut in cuts)

    play(scene)


def test_leaving_resets_what_is_open_and_frees_the_port() -> None:
    async def scene(world: World) -> None:
        async with Proxy("localhost", world.port) as second:
            world.proxy, first = second, world.proxy
            client, _ = await world.connected()
            second.stall()
        assert await last_words(client) == b""
        with pytest.raises(ConnectionRefusedError):
            await world.client()
        world.proxy = first

    play(scene)


def test_orders_that_make_no_sense_are_refused() -> None:
    async def scene(world: World) -> None:
        with pytest.raises(ValueError, match="from 0"):
            world.proxy.cut_after(-1, "to_server")
        with pytest.raises(ValueError, match="to_client"):
            world.proxy.cut_after(1, cast(Direction, "sideways"))
        with pytest.raises(TimeoutError):
            await world.proxy.until(lambda: False, timeout=0)

    play(scene)


def test_the_server_may_listen_on_a_unix_socket() -> None:
    async def scene(world: World) -> None:
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            path = str(Path(folder, "echo.sock"))
            server = await asyncio.get_running_loop().create_unix_server(world.serve, path)
            async with server, Proxy(path) as proxy:
                world.proxy, first = proxy, world.proxy
                client, echo = await world.connected()
                proxy.cut_after(5, "to_server")
                await send(client, WORD)
                await last_words(client)
                await echo.ended
                assert echo.came == WORD[:5]
            world.proxy = first

    play(scene)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("postgresql://me:secret@db.example:5432/shop?a=b%20c", "postgresql://me:secret@127.0.0.1:PORT/shop?a=b%20c"),
        ("postgresql://me@/shop?host=/run/pg&port=5433&a=b%20c", "postgresql://me@127.0.0.1:PORT/shop?a=b%20c"),
        ("postgresql://me@/shop?host=/run/pg", "postgresql://me@127.0.0.1:PORT/shop"),
        ("redis://db.example/0", "redis://127.0.0.1:PORT/0"),
        ("nats://[::1]:4222", "nats://127.0.0.1:PORT"),
    ],
)
def test_addresses_by_way_of_the_proxy(before: str, after: str) -> None:
    async def scene(world: World) -> None:
        assert world.proxy.url(before) == after.replace("PORT", str(world.proxy.port))

    play(scene)


@contextmanager
def blocking_server() -> Generator[int]:
    """An echo server on a thread: its port."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def echo(connection: socket.socket) -> None:
            with connection:
                try:
                    while data := connection.recv(1000):
                        connection.sendall(data)
                except ConnectionError:
                    pass

        def serve() -> None:
            while not done.is_set():
                connection, _ = door.accept()
                thread = threading.Thread(target=echo, args=[connection], daemon=True)
                thread.start()

        done = threading.Event()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield door.getsockname()[1]
        done.set()
        socket.create_connection(door.getsockname()).close()
        thread.join(PATIENCE)


def heard(client: socket.socket) -> bytes:
    """The bytes that come before the reset, read by a blocking client."""
    got = b""
    try:
        while more := client.recv(1000):
            got += more
    except ConnectionResetError:
        return got
    raise AssertionError(f"ended without a reset after {got!r}")


@pytest.fixture
def proxy() -> Generator[ProxyThread]:
    """On a thread, in front of an echo server on another."""
    with blocking_server() as port, ProxyThread("127.0.0.1", port) as proxy:
        yield proxy


def caller(proxy: ProxyThread) -> socket.socket:
    """A connection that blocks, but not forever."""
    return socket.create_connection((proxy.host, proxy.port), PATIENCE)


def test_on_a_thread_bytes_stall_and_are_counted(proxy: ProxyThread) -> None:
    with caller(proxy) as client:
        proxy.stall()
        client.sendall(WORD)
        proxy.until(lambda: proxy.received["to_server"] == len(WORD))
        assert proxy.forwarded == {"to_server": 0, "to_client": 0}
        proxy.delay(3600)
        proxy.resume()
        assert proxy.forwarded == {"to_server": 0, "to_client": 0}
        proxy.heal()
        assert client.recv(1000) == WORD
        assert (proxy.accepted, len(proxy.links)) == (1, 1)
    proxy.until(lambda: not proxy.links)


def test_on_a_thread_connections_are_cut_and_reset(proxy: ProxyThread) -> None:
    orders: list[tuple[Callable[[], object], bytes]] = [
        (lambda: proxy.cut_after(4, "to_client"), WORD[:4]),
        (proxy.swallow_reply, b""),
        (lambda: proxy.on_next(lambda link: link.cut_after(2, "to_client")), WORD[:2]),
    ]
    for order, wanted in orders:
        order()
        with caller(proxy) as client:
            client.sendall(WORD)
            assert heard(client) == wanted
    for reset in (proxy.reset, lambda: proxy.call(lambda inner: inner.links[0].reset())):
        proxy.until(lambda: not proxy.links)
        with caller(proxy) as client:
            proxy.until(lambda: len(proxy.links) == 1)
            reset()
            assert heard(client) == b""


def test_on_a_thread_it_refuses_and_ends(proxy: ProxyThread) -> None:
    assert proxy.url("redis://x:1/0") == f"redis://127.0.0.1:{proxy.port}/0"
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        caller(proxy)
    proxy.accept()
    with caller(proxy) as client:
        client.sendall(WORD)
        assert client.recv(1000) == WORD
    with ProxyThread("127.0.0.1", proxy.port) as second, caller(second) as client:
        pass
    with pytest.raises(ConnectionRefusedError):
        caller(second)


def test_a_thread_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def bound(port: int) -> socket.socket:
        raise OSError("no port is free")

    monkeypatch.setattr("taskharbor.testing.proxy._bound", bound)
    with pytest.raises(OSError, match="no port is free"):
        ProxyThread("127.0.0.1", 1).__enter__()


def test_another_process_by_way_of_a_thread(proxy: ProxyThread) -> None:
    program = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as it:
    it.sendall(b"0123456789abcdef")
    try:
        while more := it.recv(1): print(more.decode(), end="")
    except ConnectionResetError:
        print(" reset")
"""
    proxy.cut_after(7, "to_client")
    command = [sys.executable, "-c", program, str(proxy.port)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout == "0123456 reset\n"
