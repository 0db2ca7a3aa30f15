"""Servers for tests to talk to: one on a namespace of its own, and one that says only what a test gives it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

from taskharbor.drivers import parse
from taskharbor.drivers.nats.connection import JetStream
from taskharbor.drivers.nats.wire import NatsWire

INFO = {"server_id": "x", "version": "2.15.1", "headers": True, "max_payload": 1_048_576, "jetstream": True}
Answer = Callable[[bytes], bytes]  # from a line of the client to what the server says then


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[JetStream]:
    """Open a URL, without the driver around it."""
    server = await JetStream.open(*parse(url))
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def wired(port: int, login: dict[str, str] | None = None) -> AsyncGenerator[NatsWire]:
    """A bare connection to this machine."""
    wire = await NatsWire.connect(
        "127.0.0.1", port, where=f"NATS at 127.0.0.1:{port}", login=lambda _: login or {}, within=30.0
    )
    try:
        yield wire
    finally:
        await wire.close()


def said(**info: object) -> bytes:
    """The greeting of a server."""
    return b"INFO %b\r\n" % json.dumps({**INFO, **info}).encode()


def polite(line: bytes) -> bytes:
    """Answers a PING."""
    return b"PONG\r\n" if line == b"PING\r\n" else b""


@asynccontextmanager
async def pretender(greeting: bytes | None = None, answer: Answer = polite) -> AsyncGenerator[int]:
    """A server that greets, and answers each line of its clients; its port."""

    ended: set[asyncio.Event] = set()

    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.add(end := asyncio.Event())
        with suppress(OSError):
            writer.write(said() if greeting is None else greeting)
            while line := await reader.readline():
                writer.write(answer(line))
        writer.close()
        end.set()

    server = await asyncio.start_server(welcome, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for end in ended:
            await end.wait()
