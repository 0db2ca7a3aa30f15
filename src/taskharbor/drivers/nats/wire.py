"""One connection to a NATS server, for one event loop.

A protocol of our own, because a client library takes five times the CPU for each message. All requests share one inbox;
the last token of a reply's subject is the number of its request. A single timer finds requests that were not answered
and connections that are half open.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias, cast

from taskharbor.drivers.nats.failure import TooLarge, away, forbidden_subject, refusal, stranger
from taskharbor.errors import ConfigError
from taskharbor.version import __version__

logger = logging.getLogger("taskharbor.nats")
ANSWER_WITHIN = 10.0
CLOSE_WITHIN = 1.0
LOOK_EVERY = 2.5
LONGEST_LINE = 4_000  # the server closes the connection at 4,096 bytes
LINE_ENDS_WITHIN = 65_536  # INFO is the longest line that a server sends
DEFAULT_MAX_PAYLOAD = 1_048_576
INBOX_SID = b"1"
_M, _H = b"MH"
LoginFields: TypeAlias = Callable[[str], dict[str, str]]  # the fields of CONNECT for the nonce of the server


class NatsMessage(NamedTuple):
    """A message as it came; headers are raw, with the status line, and empty if there are none."""

    subject: bytes
    reply: bytes
    headers: bytes
    body: bytes


# The future, the replies so far if there are several, and the subject of the request.
OpenRequest: TypeAlias = tuple["asyncio.Future[Any]", "list[NatsMessage] | None", str]
_new_message: Callable[[type[NatsMessage], tuple[bytes, bytes, bytes, bytes]], NatsMessage] = cast(Any, tuple).__new__


def publication(subject: str, reply: bytes, body: bytes, headers: bytes = b"") -> bytes:
    """A message as it is sent. `headers` are complete lines; `reply` may be empty."""
    if not headers:
        if reply:
            return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply, len(body), body)
        return b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(body), body)
    size = len(headers) + 12
    if reply:
        return b"HPUB %b %b %d %d\r\nNATS/1.0\r\n%b\r\n%b\r\n" % (
            subject.encode(), reply, size, size + len(body), headers, body,
        )  # fmt: skip
    return b"HPUB %b %d %d\r\nNATS/1.0\r\n%b\r\n%b\r\n" % (subject.encode(), size, size + len(body), headers, body)


def header(headers: bytes, name: bytes) -> bytes | None:
    """The value of a header; None if it is not there."""
    start = headers.find(b"\r\n" + name + b":")
    if start < 0:
        return None
    start += len(name) + 3
    return headers[start : headers.find(b"\r\n", start)].strip()


def status(headers: bytes) -> int:
    """The number in the status line; 0 if there is none, as in a message that was published."""
    if headers[8:9] != b" ":
        return 0
    digits = headers[9:12]
    return int(digits) if digits.isdigit() else 0


class NatsWire(asyncio.Protocol):
    """A connection. Methods are called on its loop only; futures fail with our own errors."""

    def __init__(self, where: str, login: LoginFields, tls: ssl.SSLContext | None, tls_name: str) -> None:
        loop = asyncio.get_running_loop()
        self.where = where
        self.info: dict[str, Any] = {}
        self.max_payload = DEFAULT_MAX_PAYLOAD
        self.leaving = False  # the server shuts down and wants its clients elsewhere
        self.suspect = False  # a request was not answered: the server may have lost the rest of its cluster
        self.closed: asyncio.Future[None] = loop.create_future()
        self.moved: Callable[[], object] | None = None  # called when the server sends other INFO
        self._loop = loop
        self._login, self._tls, self._tls_name = login, tls, tls_name
        self._ready: asyncio.Future[None] = loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self._have = self._need = 0
        self._waiting: dict[bytes, OpenRequest] = {}
        self._callbacks: dict[bytes, Callable[[NatsMessage], object]] = {}
        self._number = 0
        self._sid = 1
        self._inboxes = 0
        self._nonce = secrets.token_hex(11)
        self._inbox = f"_INBOX.{self._nonce}.".encode()
        self._skip = len(self._inbox)
        self._timer: asyncio.TimerHandle | None = None
        self._marks: deque[int] = deque(maxlen=round(ANSWER_WITHIN / LOOK_EVERY))
        self._heard = True
        self._pinged = False
        self._retired = False
        self._complained = False
        self._ended_by: Exception | None = None
        self._upgrade: asyncio.Task[None] | None = None  # nothing else keeps it alive

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        where: str,
        login: LoginFields,
        tls: ssl.SSLContext | None = None,
        tls_name: str | None = None,
        within: float,
    ) -> NatsWire:
        """Connect, log in and subscribe to the inbox. Raises `OSError`, `Denied` and others as they come."""
        wire = cls(where, login, tls, tls_name or host)
        try:
            async with asyncio.timeout(within):
                await wire._loop.create_connection(lambda: wire, host, port)
                await wire._ready
        except BaseException:
            wire.abort()
            raise
        return wire

    @property
    def is_open(self) -> bool:
        """Whether it takes requests."""
        return self._transport is not None and not self._transport.is_closing()

    def request(self, subject: str, body: bytes = b"", headers: bytes = b"") -> asyncio.Future[NatsMessage]:
        """Send a request. A reply `503`, no responders, is a message like others."""
        self.check_size(subject, len(body) + len(headers))
        reply, future = self.ticket(subject)
        self.write(publication(subject, reply, body, headers))
        return future

    def collect(self, subject: str, body: bytes = b"", headers: bytes = b"") -> asyncio.Future[list[NatsMessage]]:
        """Send a batched direct get; its replies, of which the last is the status message."""
        self.check_size(subject, len(body) + len(headers))
        reply, future = self.tickets_many(subject)
        self.write(publication(subject, reply, body, headers))
        return future

    def ticket(self, subject: str) -> tuple[bytes, asyncio.Future[NatsMessage]]:
        """A reply subject and the future of its reply, for `write`. `subject` is what the request is published to."""
        future: asyncio.Future[NatsMessage] = self._loop.create_future()
        return self._enlist((future, None, subject)), future

    def tickets_many(self, subject: str) -> tuple[bytes, asyncio.Future[list[NatsMessage]]]:
        """A reply subject and the future of all replies up to the status message."""
        future: asyncio.Future[list[NatsMessage]] = self._loop.create_future()
        return self._enlist((future, [], subject)), future

    def write(self, data: bytes) -> None:
        """Send publications. On a connection that is closed nothing happens: its tickets have failed."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def check_size(self, subject: str, size: int) -> None:
        """Raise `TooLarge` for a message that would end the connection; `size` is that of body and header lines."""
        if size + 12 > self.max_payload:
            raise TooLarge(
                f"{self.where} takes messages of {self.max_payload} bytes, and one for {subject[:80]} has {size}: "
                "raise max_payload there, or store less in one job"
            )
        if len(subject) * 4 > LONGEST_LINE and len(subject.encode()) > LONGEST_LINE - len(self._inbox) - 60:
            raise TooLarge(f"the subject {subject[:80]}… is longer than the server takes: use shorter names")

    def retire(self) -> None:
        """Close it when nothing is under way and nothing subscribed any more."""
        self._retired = True
        if not self._waiting and not self._callbacks:
            self.abort()

    def inbox(self) -> str:
        """A subject that nothing else uses, to subscribe to."""
        self._inboxes += 1
        return f"_INBOX.{self._nonce}.s.{self._inboxes}"

    def subscribe(self, subject: str, callback: Callable[[NatsMessage], object]) -> bytes:
        """Have the callback called with each message of the subject, until `unsubscribe` with the id returned."""
        self._sid += 1
        sid = b"%d" % self._sid
        self._callbacks[sid] = callback
        self.write(b"SUB %b %b\r\n" % (subject.encode(), sid))
        self._watch()
        return sid

    def unsubscribe(self, sid: bytes) -> None:
        """End a subscription."""
        if self._callbacks.pop(sid, None) is not None:
            self.write(b"UNSUB %b\r\n" % sid)

    def abort(self) -> None:
        """Close it now; what is under way fails."""
        if self._transport is not None:
            self._transport.abort()
        elif not self.closed.done():
            self.closed.set_result(None)

    async def close(self) -> None:
        """Send what was written, and close."""
        if self._transport is not None:
            self._transport.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_WITHIN):
                    await asyncio.shield(self.closed)
        self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        reason = self._ended_by or (exc if isinstance(exc, OSError) else None)
        self._end(reason or ConnectionResetError("the connection was closed"))
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        try:
            done = self._parse(data)
        except Exception as error:
            self._broken(error if self.info else stranger(error, self.where))
            return
        if done < len(data):
            self._parts.append(data[done:] if done else data)
            self._have = len(data) - done

    def _parse(self, data: bytes) -> int:
        """Handle all complete messages; the number of bytes that they were. `_need` is what the next one has."""
        pos, end_of_data = 0, len(data)
        find, skip = data.find, self._skip
        while pos < end_of_data:
            line_end = find(b"\r\n", pos)
            if line_end < 0:
                if end_of_data - pos > LINE_ENDS_WITHIN:
                    raise ConnectionError("it sends something else than NATS")
                self._need = 0
                return pos
            kind = data[pos]
            if kind != _M and kind != _H:
                self._control(data[pos:line_end])
                pos = line_end + 2
                continue
            words = data[pos:line_end].split(b" ")
            start = line_end + 2
            end = start + int(words[-1])
            if end + 2 > end_of_data:
                self._need = end + 2 - pos
                return pos
            if kind == _M:
                headers, body, most = b"", data[start:end], 5
            else:
                middle = start + int(words[-2])
                headers, body, most = data[start:middle], data[middle:end], 6
            pos = end + 2
            message = _new_message(NatsMessage, (words[1], words[3] if len(words) == most else b"", headers, body))
            if words[2] == INBOX_SID:
                self._answered(words[1][skip:], message)
            elif (callback := self._callbacks.get(words[2])) is not None:
                self._call(callback, message)
        return pos

    def _enlist(self, entry: OpenRequest) -> bytes:
        self._number += 1
        token = b"%d" % self._number
        if not self.is_open:
            self._fail(entry, self._gone(asked=False))
        else:
            self._waiting[token] = entry
            if self._timer is None:
                self._watch()
        return self._inbox + token

    def _answered(self, token: bytes, message: NatsMessage) -> None:
        if (entry := self._waiting.get(token)) is None:
            return
        future, found, _ = entry
        if future.done():  # its caller has left
            del self._waiting[token]
        elif found is None:
            del self._waiting[token]
            future.set_result(message)
        else:
            found.append(message)
            if message.headers[8:9] == b" ":  # a status
                del self._waiting[token]
                future.set_result(found)

    def _call(self, callback: Callable[[NatsMessage], object], message: NatsMessage) -> None:
        try:
            callback(message)
        except Exception as error:
            about = {"message": "a callback of a NATS subscription has failed", "exception": error}
            self._loop.call_exception_handler(about)

    def _control(self, line: bytes) -> None:
        word = line[:5].upper()
        if word.startswith(b"PING"):
            self.write(b"PONG\r\n")
        elif word == b"INFO ":
            self._told(json.loads(line[5:]))
        elif word.startswith(b"-ERR"):
            self._refused(line[4:].decode(errors="replace").strip().strip("'"))
        elif word.startswith(b"PONG"):
            if not self._ready.done():
                self._ready.set_result(None)
        elif not word.startswith(b"+OK"):
            raise ConnectionError("it sends something else than NATS")

    def _told(self, info: dict[str, Any]) -> None:
        first, self.info = not self.info, info
        self.max_payload = int(info.get("max_payload", DEFAULT_MAX_PAYLOAD))
        if info.get("ldm"):
            self.leaving = True
        if first:
            self._begin()
        elif self.moved is not None:
            self.moved()

    def _begin(self) -> None:
        wants = self.info.get("tls_required")
        if self._tls is None:
            if wants:
                raise ConfigError(f"{self.where} wants TLS: write tls:// in the URL")
            self._greet()
        elif not wants and not self.info.get("tls_available"):
            raise ConfigError(f"{self.where} offers no TLS: write nats:// in the URL, or set it up there")
        else:
            self._upgrade = self._loop.create_task(self._encrypt(self._tls))

    async def _encrypt(self, context: ssl.SSLContext) -> None:
        assert self._transport is not None
        try:
            self._transport = await self._loop.start_tls(self._transport, self, context, server_hostname=self._tls_name)
            self._greet()
        except Exception as error:
            self._broken(error)

    def _greet(self) -> None:
        fields: dict[str, Any] = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "lang": "python",
            "name": "taskharbor",
            "version": __version__,
            "tls_required": self._tls is not None,
            **self._login(str(self.info.get("nonce", ""))),
        }
        self.write(b"CONNECT %b\r\nSUB %b* %b\r\nPING\r\n" % (json.dumps(fields).encode(), self._inbox, INBOX_SID))

    def _refused(self, text: str) -> None:
        error = refusal(text, self.where)
        subject = forbidden_subject(text)
        if subject is None or not self._ready.done():
            self._broken(error)
            return
        # Each message is refused by itself, so the oldest request is meant.
        token = next((token for token, entry in self._waiting.items() if entry[2] == subject), None)
        if token is not None:
            self._fail(self._waiting.pop(token), error)
        elif not self._complained:  # not a request: a part of a batch, a subscription, flow control
            self._complained = True
            logger.warning("store.permission: %s", error)

    def _broken(self, error: Exception) -> None:
        """The connection cannot be used any more, for this reason."""
        if self._ended_by is None:
            self._ended_by = error
        self._end(error)
        self.abort()

    def _end(self, reason: Exception) -> None:
        """Fail all that is under way."""
        self._ended_by = self._ended_by or reason
        if not self._ready.done():
            self._ready.set_exception(self._ended_by)
            self._ready.exception()  # the caller may have left
        waiting, self._waiting = self._waiting, {}
        for entry in waiting.values():
            self._fail(entry, self._gone(asked=True))

    def _fail(self, entry: OpenRequest, error: Exception) -> None:
        if not entry[0].done():
            entry[0].set_exception(error)
            entry[0].exception()  # asked for: of several requests, a caller may wait for the first only

    def _gone(self, *, asked: bool) -> Exception:
        """The error for a request on a connection that has ended: one for each, because they collect tracebacks."""
        reason = self._ended_by or ConnectionResetError("the connection is closed")
        return away(reason, self.where, asked=asked)

    def _watch(self) -> None:
        """Start the timer."""
        if self._timer is None:
            self._heard, self._pinged = True, False
            self._marks.clear()
            self._timer = self._loop.call_later(LOOK_EVERY, self._look)

    def _look(self) -> None:
        self._timer = None
        if self.closed.done() or not (self._waiting or self._callbacks):
            if self._retired:
                self.abort()
            return
        if self._heard:
            self._pinged = False
        elif self._pinged:
            self._broken(TimeoutError("the connection is silent"))
            return
        else:
            self._pinged = True
            self.write(b"PING\r\n")
        self._heard = False
        self._drop_overdue()
        self._timer = self._loop.call_later(LOOK_EVERY, self._look)

    def _drop_overdue(self) -> None:
        """Forget requests whose callers have left, and fail those that were not answered in time."""
        limit = self._marks[0] if len(self._marks) == self._marks.maxlen else 0
        self._marks.append(self._number)
        for token, entry in list(self._waiting.items()):
            if entry[0].done():
                del self._waiting[token]
            elif int(token) <= limit:
                del self._waiting[token]
                error = TimeoutError(f"no answer within {ANSWER_WITHIN:g} s")
                self._fail(entry, away(error, self.where, asked=True))
                self.suspect = True
