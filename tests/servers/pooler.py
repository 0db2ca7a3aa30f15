"""A pooler in transaction mode, worse than PgBouncer: after every transaction the client gets another session.

Each client has two sessions of the server, takes turns between them, and whatever a transaction leaves behind in one is
wiped by DISCARD ALL. It reads just enough of the protocol: the client's messages that are answered by ReadyForQuery,
and from that whether a transaction is open. The startup of the second session is the client's own, so the server must
not ask for a password.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import Self

PATIENCE = 30.0
SYNC, QUERY, TERMINATE, READY = b"S", b"Q", b"X", b"Z"
# Requests for TLS, for GSS encryption, and to cancel a statement.
NO_SESSION = (80877103, 80877104)
CANCEL = 80877102
Message = tuple[bytes, bytes]
GOODBYE: Message = (TERMINATE, struct.pack("!I", 4))
WIPE = b"Q" + struct.pack("!I", 16) + b"DISCARD ALL\x00"


class Session:
    """One session at the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def until_ready(self) -> bytes:
        """Everything it says until it is ready."""
        said = b""
        while True:
            kind, body = await _message(self.reader)
            said += kind + body
            if kind == READY:
                return said

    async def wiped(self) -> Session:
        """The session as if it were new."""
        self.writer.write(WIPE)
        assert b"ERROR" not in await self.until_ready()
        return self


class Pooler:
    """Listens on a free port of this machine while `with` is open. `switches` counts the changes of sessions."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._opened: Future[int] = Future()
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clients: set[asyncio.Task[None] | None] = set()  # nothing else keeps them alive
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="pooler", daemon=True)
        self.switches = 0
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = self._opened.result(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        door = await asyncio.start_server(self._welcome, "127.0.0.1", 0, backlog=128)
        self._opened.set_result(door.sockets[0].getsockname()[1])
        await self._stop.wait()
        door.close()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sessions: list[Session] = []
        self._clients.add(asyncio.current_task())
        try:
            hello = await _hello(reader, writer)
            welcome = b""
            while hello is not None and len(sessions) < 2:
                sessions.append(Session(*await asyncio.open_connection("127.0.0.1", self._server_port)))
                sessions[-1].writer.write(hello)
                welcome = await sessions[-1].until_ready()
            if sessions:
                writer.write(welcome)
                await self._relay(reader, writer, sessions)
        except* (OSError, EOFError):
            pass  # one of the two has left
        finally:
            for each in (writer, *(session.writer for session in sessions)):
                each.close()
            self._clients.discard(asyncio.current_task())

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sessions: list[Session]) -> None:
        """One transaction after another, each on the session whose turn it is."""
        requests: asyncio.Queue[Message | None] = asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_hear(reader, requests))
            while (first := await requests.get()) is not None:
                requests.put_nowait(first)
                await _transaction(requests, writer, await sessions[0].wiped())
                sessions.reverse()
                self.switches += 1


async def _transaction(requests: asyncio.Queue[Message | None], writer: asyncio.StreamWriter, session: Session) -> None:
    """Until the server has answered everything and no transaction is open."""
    asked, answer, request = 0, None, None
    while True:
        answer = answer or asyncio.ensure_future(_message(session.reader))
        request = request or asyncio.ensure_future(requests.get())
        await asyncio.wait([answer, request], return_when=asyncio.FIRST_COMPLETED)
        if request.done():
            kind, body = request.result() or GOODBYE
            session.writer.write(kind + body)
            asked += kind in (SYNC, QUERY)
            request = None
        if answer.done():
            kind, body = answer.result()
            writer.write(kind + body)
            asked -= kind == READY
            answer = None
            if kind == READY and body[-1:] == b"I" and not asked and requests.empty():
                if request is not None:
                    request.cancel()
                return


async def _hear(reader: asyncio.StreamReader, requests: asyncio.Queue[Message | None]) -> None:
    with suppress(OSError, EOFError):
        while (message := await _message(reader))[0] != TERMINATE:
            requests.put_nowait(message)
    requests.put_nowait(None)


async def _message(reader: asyncio.StreamReader) -> Message:
    head = await reader.readexactly(5)
    return head[:1], head[1:] + await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)


async def _hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
    """The first message of a client, None if it wants no session."""
    while True:
        size = await reader.readexactly(4)
        body = await reader.readexactly(struct.unpack("!I", size)[0] - 4)
        code = struct.unpack("!I", body[:4])[0]
        if code == CANCEL:
            return None
        if code not in NO_SESSION:
            return size + body
        writer.write(b"N")
