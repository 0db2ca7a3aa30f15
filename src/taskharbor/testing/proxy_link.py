"""One connection through a proxy, and the controls that one connection and a whole proxy share."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal

from taskharbor.testing.wire import Wire

Direction = Literal["to_server", "to_client"]
DIRECTIONS: tuple[Direction, Direction] = ("to_server", "to_client")
Dial = Callable[[], Awaitable[socket.socket]]


class ChangeSignal:
    """Wakes every waiter when anything changes."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, seconds: float | None = None) -> None:
        """Wait for the next change, at most `seconds`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=seconds)
        finally:
            self._waiters.discard(waiter)


class _Reset(ConnectionError):
    """Ends a connection by a reset."""


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
        """The number of bytes that may still pass on this connection."""
        return self._ends.get(link, self._end_of_others) - link.forwarded[self.direction]


class Controls:
    """The controls that one connection and a whole proxy share, and their byte counts.

    `received` counts bytes when they reach the proxy, `forwarded` when they leave it, by direction.
    """

    def __init__(self, signal: ChangeSignal) -> None:
        self._signal = signal
        self._stalled: set[Direction] = set()
        self._delay = 0.0
        self._cuts: list[Cut] = []
        self.received: dict[Direction, int] = dict.fromkeys(DIRECTIONS, 0)
        self.forwarded: dict[Direction, int] = dict.fromkeys(DIRECTIONS, 0)

    def stall(self, direction: Direction | None = None) -> None:
        """Stop all traffic in one direction or both, even the end of a connection. Nothing is lost."""
        self._stalled.update(DIRECTIONS if direction is None else [direction])

    def resume(self) -> None:
        """End all stalls."""
        self._stalled.clear()
        self._signal.notify()

    def delay(self, seconds: float) -> None:
        """Delay all bytes by this time, in both directions, including those already waiting."""
        self._delay = seconds
        self._signal.notify()

    def cut_after(self, n: int, direction: Direction) -> Cut:
        """Reset the first connection on which n more bytes have passed in that direction, right after them. Once.

        With n = 0, the next byte in that direction is lost with its connection.
        """
        cut = Cut(n, direction, self._open())
        self._cuts.append(cut)
        return cut

    def swallow_reply(self) -> Cut:
        """Lose the next bytes from the server and reset their connection: the request arrives, its reply does not."""
        return self.cut_after(0, "to_client")

    def heal(self) -> None:
        """Take back stalls, the delay, and pending cuts."""
        self._cuts.clear()
        self._stalled.clear()
        self.delay(0)

    def _open(self) -> list[Link]:
        raise NotImplementedError


class Link(Controls):
    """One connection through the proxy; `number` counts them from 0."""

    def __init__(self, number: int, client: socket.socket, dial: Dial, of_all: Controls) -> None:
        super().__init__(of_all._signal)
        self.number = number
        self._dial = dial
        self._of_all = of_all
        self._wires = [Wire(client)]
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"proxy-link-{number}")

    def reset(self) -> None:
        """Reset the connection on both sides."""
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
            pass  # one side failed or did not answer: the other gets a reset
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
                raise _Reset
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
                await self._signal.wait()
            elif since is not None and (wait := since + self._delay + self._of_all._delay - clock()) > 0:
                await self._signal.wait(wait)
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
        raise _Reset

    def _count(self, direction: Direction, received: int = 0, forwarded: int = 0) -> None:
        for each in (self, self._of_all):
            each.received[direction] += received
            each.forwarded[direction] += forwarded
        self._signal.notify()
