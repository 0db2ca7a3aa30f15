"""Requests and replies on one connection, for an event loop (`LoopLink`) and for threads (`BlockingLink`).

On hiredis itself, because a client library around it takes longer than the server. A link never confuses replies:
hiredis reads them all, in order, whether their callers still wait or not.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias, cast

import hiredis

from taskharbor.drivers.redis.dial import connected, left
from taskharbor.drivers.redis.failure import ReplyError
from taskharbor.drivers.redis.url import Address

Arg: TypeAlias = bytes | str | int | float
# For one attempt. Callers retry, and recover within 5 s after the server is back (X2).
CONNECT_WITHIN = 3.0
# Longer than any caller waits: a connection without an answer for so long is closed.
ANSWER_WITHIN = 60.0
CLOSE_WITHIN = 1.0
CHUNK = 65_536
NAMING: tuple[Arg, ...] = ("CLIENT", "SETNAME", "taskharbor")
NUMBERS = (int, float)
_MISSING = object()
_pack: Callable[[tuple[Arg, ...]], bytes] = cast(Any, hiredis).pack_command  # its stubs are wrong


def packed(words: tuple[Arg, ...]) -> bytes:
    """A request as bytes.

    hiredis gets no numbers: it calls `PyObject_Repr` for them, which runs signal handlers, and crashes if one raises.
    """
    return _pack(tuple([repr(word) if type(word) in NUMBERS else word for word in words]))


def _reader() -> hiredis.Reader:
    return hiredis.Reader(replyError=ReplyError, errors="replace", notEnoughData=_MISSING)


def _greeting(address: Address) -> list[tuple[Arg, ...]]:
    """The requests that a new connection begins with."""
    greeting: list[tuple[Arg, ...]] = []
    if address.password is not None or address.user is not None:
        user = () if address.user is None else (address.user,)
        greeting.append(("AUTH", *user, address.password or ""))
    if address.db:
        greeting.append(("SELECT", address.db))
    greeting.append(NAMING)
    return greeting


def _check_greeting(words: tuple[Arg, ...], error: ReplyError) -> None:
    """Raise the error, unless the server only refuses to name the connection."""
    if words is not NAMING or not str(error).startswith(("NOPERM", "ERR unknown")):
        raise error


class LoopLink(asyncio.Protocol):
    """A connection of an event loop. Any number of requests may be under way: the server answers in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._reader = _reader()
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._transport: asyncio.Transport | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._ended_by: Exception | None = None
        self.retired = False
        self.pushed: Callable[[Any], None] | None = None  # called with each message of a subscription
        self.closed: asyncio.Future[None] = loop.create_future()

    @classmethod
    async def connect(cls, address: Address) -> LoopLink:
        """Connect and log in."""
        loop = asyncio.get_running_loop()
        link = cls(loop)
        try:
            async with asyncio.timeout(CONNECT_WITHIN):
                if address.socket is not None:
                    await loop.create_unix_connection(lambda: link, address.socket)
                else:
                    await loop.create_connection(lambda: link, address.host, address.port, ssl=address.tls)
                for words in _greeting(address):
                    try:
                        await link.request(packed(words))
                    except ReplyError as error:
                        _check_greeting(words, error)
        except BaseException:
            link.abort()
            raise
        return link

    @property
    def load(self) -> int:
        """The number of requests under way."""
        return len(self._waiting)

    async def request(self, request: bytes) -> Any:
        """Send a request and wait for its reply; an error that the server answers is raised."""
        if self._transport is None or self._transport.is_closing():
            raise self._ended_by or ConnectionResetError("the connection is closed")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append((future, self._loop.time()))
        if self._watch is None:
            self._watch = self._loop.call_later(ANSWER_WITHIN, self._look)
        self._transport.write(request)
        try:
            reply = await future
        except BaseException:
            if not self.closed.done():
                self.retire()  # cancelled: the server may be silent, so no other caller should wait for it here
            raise
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def retire(self) -> None:
        """Close it when the requests under way are answered. It takes no new ones."""
        self.retired = True
        if all(future.done() for future, _ in self._waiting):
            self.abort()

    def abort(self) -> None:
        """Close it now."""
        self.retired = True
        if self._watch is not None:
            self._watch.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not _MISSING:
                self._replied(reply)
        except Exception as error:  # it is not a Redis, or it sends the reason before it hangs up
            self._ended_by = error
            self._lost(error)
            self.abort()
        if self.retired:
            self.retire()

    def _replied(self, reply: Any) -> None:
        if self.pushed is not None and isinstance(reply, list) and reply[0] == b"pmessage":
            self.pushed(reply)
            return
        if not self._waiting:
            raise reply if isinstance(reply, ReplyError) else ConnectionError("an answer to nothing")
        future, _ = self._waiting.popleft()
        if not future.done():
            future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self.retired = True
        if self._watch is not None:
            self._watch.cancel()
        self._lost(exc if isinstance(exc, OSError) else ConnectionResetError("the connection was closed"))
        if not self.closed.done():
            self.closed.set_result(None)

    def _lost(self, error: Exception) -> None:
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)

    def _look(self) -> None:
        """One timer serves all requests: a timer for each would cost more."""
        self._watch = None
        if not self._waiting:
            return
        due = self._waiting[0][1] + ANSWER_WITHIN
        if due <= self._loop.time():
            self._lost(TimeoutError(f"no answer within {ANSWER_WITHIN:g} s"))
            self.abort()
        else:
            self._watch = self._loop.call_at(due, self._look)


class BlockingLink:
    """A connection for one thread at a time. After any error but `ReplyError` it has to be closed."""

    def __init__(self, address: Address, within: float) -> None:
        deadline = time.monotonic() + within
        self._reader = _reader()
        self._used_at = 0.0
        self._socket = connected(address, deadline)
        try:
            for words in _greeting(address):
                try:
                    self.request(packed(words), deadline)
                except ReplyError as error:
                    _check_greeting(words, error)
        except BaseException:
            self.close()
            raise

    def request(self, request: bytes, deadline: float) -> Any:
        """Send a request and wait for its reply until `deadline`, by the monotonic clock."""
        self._limit(deadline)
        self._socket.sendall(request)
        reply = self.reply(deadline)
        self._used_at = time.monotonic()
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def send(self, words: tuple[Arg, ...], deadline: float) -> None:
        """Send a request whose replies are read by `reply`."""
        self._limit(deadline)
        self._socket.sendall(packed(words))

    def reply(self, deadline: float) -> Any:
        """The next reply."""
        while (reply := self._reader.gets()) is _MISSING:
            self._limit(deadline)
            if not (data := self._socket.recv(CHUNK)):
                raise ConnectionResetError("the connection was closed")
            self._reader.feed(data)
        return reply

    def _limit(self, deadline: float) -> None:
        self._socket.settimeout(left(deadline))

    def is_quiet(self, burst: float) -> bool:
        """Whether an idle connection has received nothing: that could only be its end.

        Not checked within `burst` seconds after its last use: in a burst of calls, the check would cost each of them a
        switch between threads.
        """
        return time.monotonic() < self._used_at + burst or not _is_readable(self._socket)

    def cut(self) -> None:
        """Shut the connection down, from any thread: a thread that waits for a reply gets an error."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it."""
        self._socket.close()


def _is_readable(line: socket.socket) -> bool:
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(line, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([line], [], [], 0)[0])
