"""Servers for tests to talk to: one on a namespace of its own, and one that answers only what a test gives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import hiredis

from taskharbor.drivers import parse
from taskharbor.drivers.redis.connection import Server
from taskharbor.drivers.redis.scripts import script

ECHO = script("echo", "return {KEYS[1], unpack(ARGV)}")


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Server]:
    """Open a URL, without the driver around it."""
    server = await Server.open(*parse(url))
    try:
        yield server
    finally:
        await server.close()


async def echoes(server: Server, text: str = "yes") -> bool:
    """Whether a script gets through, and its own answer back."""
    return bool(await server.run(ECHO, text) == [server.prefix.encode(), text.encode()])


@asynccontextmanager
async def pretender(answers: Mapping[str, bytes], greeting: bytes = b"") -> AsyncGenerator[str]:
    """A server that answers each command by its name, and OK to all others; its URL."""

    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = hiredis.Reader(notEnoughData=...)
        writer.write(greeting)
        while not greeting and (data := await reader.read(65_536)):
            asked.feed(data)
            while (words := asked.gets()) is not ...:
                writer.write(answers.get(words[0].decode().upper(), b"+OK\r\n"))
        writer.close()

    server = await asyncio.start_server(welcome, "127.0.0.1", 0)
    async with server:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def bulk(text: str) -> bytes:
    """A text as a reply."""
    return b"$%d\r\n%s\r\n" % (len(text.encode()), text.encode())
