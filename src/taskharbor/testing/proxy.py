"""A TCP proxy that misbehaves on purpose: between a client and a real server, it is the network of fault tests.

It passes bytes on as they come, and on demand stalls, delays, refuses, resets, or cuts a connection at an exact byte.
What is said to a `Proxy` holds for all its connections, open or yet to come. `links` are the open ones, each with the
same controls, and `on_next` gives them to those of the future. Controls act at once and never wait.
`ProxyThread` is a proxy on a thread of its own, for tests that block or that watch other processes.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from taskharbor.testing.wire import Wire

Direction = Literal["to_server", "to_client"]
DIRECTIONS: tuple[Direction, Direction] = ("to_server", "to_client")
LOCALHOST = "127.0.0.1"
PATIENCE = 30.0
Dial = Callable[[], Awaitable[socket.socket]]
P = ParamSpec("P")
T = TypeVar("T")


class _Bell:
    """Wakes everyone who waits for a change, whatever it is."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def heard(self, seconds: float | None = None) -> None:
        """Wait for the next ring, so long at most."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=seconds)
        finally:
            self._waiters.discard(waiter)


class _Over(ConnectionError):
    """This connection shall be reset."""


class Cut:
    """An order to reset a connection at an exact byte; `done` when that has happened."""

    def __init__(self, n: int, direction: Direction, open_now: list[Link]) -> None:
        if n < 0 or direction not in DIRECTIONS:
            raise ValueError(f"cut_after wants a number from 0 and one of {DIRECTIONS}, not {n!r} and {direction!r}")
        self.direction: Direction = direction
        self.done = False
        self._ends = {link: link.forwarded[direction] + n for link in open_now}
        self._end_of_others = n

    def left(self, link: Link) -> int:
        """How many bytes may still pass on this connection."""
        return self._ends.get(link, self._end_of_others) - link.forwarded[self.direction]


class Controls:
    """What can be said to one connection and to all of them alike, and the bytes that were seen on them.

    `received` counts bytes when they reach the proxy, `forwarded` when they leave it, by direction.
    """

    def __init__(self, bell: _Bell) -> None:
        self._bell = bell
        self._stalled: set[Direction] = set()
        self._delay = 0.0
        self._cuts: list[Cut] = []
        self.received: dict[Direction, int] = dict.fromkeys(DIRECTIONS, 0)
        self.forwarded: dict[Direction, int] = dict.fromkeys(DIRECTIONS, 0)

    def stall(self, direction: Direction | None = None) -> None:
        """Nothing moves any more, in one direction or both, not even the end of a connection. Nothing is lost."""
        self._stalled.update(DIRECTIONS if direction is None else [direction])

    def resume(self) -> None:
        """End all stalls."""
        self._stalled.clear()
        self._bell.ring()

    def delay(self, seconds: float) -> None:
        """Whatever arrives goes on so much later, either way; from now on, and what waits already too."""
        self._delay = seconds
        self._bell.ring()

    def cut_after(self, n: int, direction: Direction) -> Cut:
        """Reset the first connection on which n more bytes have gone that way, right behind the last of them. Once.

        With n = 0, the first byte that wants to go that way is lost with its connection.
        """
        cut = Cut(n, direction, self._open())
        self._cuts.append(cut)
        return cut

    def swallow_reply(self) -> Cut:
        """Lose the next bytes from the server and reset their connection: the request arrives, its reply does not."""
        return self.cut_after(0, "to_client")

    def heal(self) -> None:
        """Take back stalls, the delay, and cuts that have not happened."""
        self._cuts.clear()
        self._stalled.clear()
        self.delay(0)

    def _open(self) -> list[Link]:
        raise NotImplementedError


class Link(Controls):
    """One connection through the proxy; `number` counts them from 0."""

    def __init__(self, number: int, client: socket.socket, dial: Dial, of_all: Controls) -> None:
        super().__init__(of_all._bell)
        self.number = number
        self._dial = dial
        self._of_all = of_all
        self._wires = [Wire(client)]
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"proxy-link-{number}")

    def reset(self) -> None:
        """Reset it on both sides."""
        self._hang_up(reset=True)
        self.task.cancel()

    def _hang_up(self, *, reset: bool) -> None:
        for wire in self._wires:
            wire.close(reset=reset)

    def _open(self) -> list[Link]:
        return [self]

    async def _run(self) -> None:
        reset = True
        try:
            [client] = self._wires
            self._wires.append(server := Wire(await self._dial()))
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump("to_server", client, server))
                pumps.create_task(self._pump("to_client", server, client))
            reset = False
        except* OSError:
            pass  # one side broke, or was not there: the other hears of it as a reset
        finally:
            self._hang_up(reset=reset)

    async def _pump(self, direction: Direction, source: Wire, target: Wire) -> None:
        while True:
            data: bytes | None = None
            with suppress(OSError):
                data = await source.receive()
            self._count(direction, received=len(data or b""))
            await self._held(direction, asyncio.get_running_loop().time())
            if data is None:
                raise _Over
            if not data:
                target.end()
                return
            await self._deliver(direction, memoryview(data), target)

    async def _deliver(self, direction: Direction, data: memoryview, target: Wire) -> None:
        while data:
            await self._held(direction)
            cut = self._next_cut(direction)
            allowed = data if cut is None else data[: cut.left(self)]
            sent = target.send(allowed) if allowed else 0
            self._count(direction, forwarded=sent)
            data = data[sent:]
            if cut is not None and not cut.left(self):
                await self._strike(cut, target)
            elif not sent:
                await target.room()

    async def _held(self, direction: Direction, since: float | None = None) -> None:
        """Wait while it is stalled and, if it arrived at `since`, until its delay is over."""
        clock = asyncio.get_running_loop().time
        while True:
            if direction in self._stalled or direction in self._of_all._stalled:
                await self._bell.heard()
            elif since is not None and (wait := since + self._delay + self._of_all._delay - clock()) > 0:
                await self._bell.heard(wait)
            else:
                return

    def _next_cut(self, direction: Direction) -> Cut | None:
        cuts = [cut for cut in (*self._cuts, *self._of_all._cuts) if cut.direction == direction]
        return min(cuts, key=lambda cut: cut.left(self), default=None)

    async def _strike(self, cut: Cut, target: Wire) -> None:
        for cuts in (self._cuts, self._of_all._cuts):
            if cut in cuts:
                cuts.remove(cut)
        await target.departed()
        self._hang_up(reset=True)
        cut.done = True
        raise _Over

    def _count(self, direction: Direction, received: int = 0, forwarded: int = 0) -> None:
        for each in (self, self._of_all):
            each.received[direction] += received
            each.forwarded[direction] += forwarded
        self._bell.ring()


class Proxy(Controls):
    """Listens on a free port of this machine while `async with` is open, and connects clients with the server there.

    Without a port, the host is the path of a Unix socket. `accepted` counts the connections so far.
    """

    host = LOCALHOST

    def __init__(self, host: str, port: int | None = None) -> None:
        super().__init__(_Bell())
        self._server = (host, port)
        self._addresses: list[tuple[socket.AddressFamily, Any]] = []
        self._place: socket.socket | None = None
        self._door: socket.socket | None = None
        self._links: list[Link] = []
        self._rules: list[tuple[Callable[[Link], object], int | None]] = []
        self.accepted = 0
        self.port = 0

    async def __aenter__(self) -> Self:
        self._addresses = await self._resolve()
        # Bound, never listening: it keeps the port ours, and is why clients are refused while the door is closed.
        self._place = _bound(0)
        self.port = self._place.getsockname()[1]
        self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.refuse()
        self.reset()
        if self._links:
            await asyncio.wait([link.task for link in self._links])
        if self._place is not None:
            self._place.close()

    @property
    def links(self) -> list[Link]:
        """The connections that are open now, oldest first."""
        return list(self._links)

    def url(self, url: str) -> str:
        """The same address by way of this proxy: another host and port, also if they are given as options."""
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        options = parse_qsl(parts.query, keep_blank_values=True)
        kept = [(name, value) for name, value in options if name not in ("host", "hostaddr", "port")]
        query = parts.query if kept == options else urlencode(kept, safe="/", quote_via=quote)
        return parts._replace(netloc=f"{user}{at}{self.host}:{self.port}", query=query).geturl()

    def refuse(self) -> None:
        """Nobody gets a new connection; those that are open stay."""
        if self._door is not None:
            asyncio.get_running_loop().remove_reader(self._door)
            self._door.close()
            self._door = None

    def accept(self) -> None:
        """New connections are welcome again, on the same port."""
        if self._door is None:
            self._door = _bound(self.port)
            self._door.listen(128)
            asyncio.get_running_loop().add_reader(self._door, self._welcome, self._door)

    def reset(self) -> None:
        """Reset all connections, on both sides."""
        for link in self._links:
            link.reset()

    def on_next(self, rule: Callable[[Link], object], times: int | None = 1) -> None:
        """Have the rule say something to the next connection, to so many of them, or (None) to every one, at its start.

        `proxy.on_next(lambda link: link.cut_after(100, "to_client"))`
        """
        self._rules.append((rule, times))

    def heal(self) -> None:
        """Take back everything, also what was said to single connections or about the next ones, and accept again."""
        self._rules.clear()
        for link in self._links:
            link.heal()
        super().heal()
        self.accept()

    async def until(self, condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
        """Wait until it holds; asked anew whenever a byte, a connection or a cut has changed something."""
        async with asyncio.timeout(timeout):
            while not condition():
                await self._bell.heard()

    def _open(self) -> list[Link]:
        return self._links

    def _welcome(self, door: socket.socket) -> None:
        while True:
            try:
                client, _ = door.accept()
            except OSError:
                return  # nobody is there any more
            self._let_in(client)

    def _let_in(self, client: socket.socket) -> None:
        link = Link(self.accepted, client, self._dial, self)
        self.accepted += 1
        self._links.append(link)
        link.task.add_done_callback(lambda _: self._gone(link))
        rules, self._rules = self._rules, []
        for rule, times in rules:
            if times is None or times > 1:
                self._rules.append((rule, times and times - 1))
            rule(link)
        self._bell.ring()

    def _gone(self, link: Link) -> None:
        self._links.remove(link)
        self._bell.ring()

    async def _resolve(self) -> list[tuple[socket.AddressFamily, Any]]:
        host, port = self._server
        if port is None:
            return [(socket.AF_UNIX, host)]
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [(family, address) for family, _, _, _, address in found]

    async def _dial(self) -> socket.socket:
        """A connection to the server, by the first address where it answers."""
        *others, last = self._addresses
        for family, address in others:
            with suppress(OSError):
                return await _connected(family, address)
        return await _connected(*last)


async def _connected(family: socket.AddressFamily, address: Any) -> socket.socket:
    connection = socket.socket(family)
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, address)
    except BaseException:
        connection.close()
        raise
    return connection


def _bound(port: int) -> socket.socket:
    """A socket with this port, which two may have as long as one of them listens."""
    found = socket.socket()
    try:
        found.setblocking(False)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform != "linux" and hasattr(socket, "SO_REUSEPORT"):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        found.bind((LOCALHOST, port))
    except BaseException:
        found.close()
        raise
    return found


def _blocking(control: Callable[Concatenate[Proxy, P], T]) -> Callable[Concatenate[ProxyThread, P], T]:
    """A control for callers on other threads: it returns when it has been done."""

    @wraps(control)
    def twin(self: ProxyThread, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.call(lambda proxy: control(proxy, *args, **kwargs))

    return twin


class ProxyThread:
    """A `Proxy` on a thread and an event loop of its own, while `with` is open. Its methods block until it is done."""

    host = LOCALHOST

    def __init__(self, host: str, port: int | None = None) -> None:
        self._proxy = Proxy(host, port)
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="taskharbor-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self.call(lambda _: self._stop.set())
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        # A loop of the standard library, whatever the policy says: it closes sockets under the loop's eyes.
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        try:
            async with self._proxy:
                self._started.set_result(asyncio.get_running_loop())
                await self._stop.wait()
        except Exception as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    def call(self, function: Callable[[Proxy], T]) -> T:
        """Have something done with the proxy on its own thread; for links, too, which know no other."""

        async def there() -> T:
            return function(self._proxy)

        return asyncio.run_coroutine_threadsafe(there(), self._started.result(PATIENCE)).result(PATIENCE)

    def until(self, condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
        """Wait until it holds: see `Proxy.until`."""
        waiting = self._proxy.until(condition, timeout)
        asyncio.run_coroutine_threadsafe(waiting, self._started.result(PATIENCE)).result()

    stall = _blocking(Proxy.stall)
    resume = _blocking(Proxy.resume)
    delay = _blocking(Proxy.delay)
    cut_after = _blocking(Proxy.cut_after)
    swallow_reply = _blocking(Proxy.swallow_reply)
    refuse = _blocking(Proxy.refuse)
    accept = _blocking(Proxy.accept)
    reset = _blocking(Proxy.reset)
    on_next = _blocking(Proxy.on_next)
    heal = _blocking(Proxy.heal)
    url = _blocking(Proxy.url)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._proxy.port

    @property
    def accepted(self) -> int:
        """How many connections there were so far."""
        return self._proxy.accepted

    @property
    def links(self) -> list[Link]:
        """The open connections; to control one, `call`."""
        return self._proxy.links

    @property
    def received(self) -> dict[Direction, int]:
        """Bytes that reached the proxy, by direction."""
        return dict(self._proxy.received)

    @property
    def forwarded(self) -> dict[Direction, int]:
        """Bytes that left the proxy, by direction."""
        return dict(self._proxy.forwarded)
