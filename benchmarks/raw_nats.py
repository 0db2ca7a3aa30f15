"""The limit on NATS: the messages that a correct leased queue sends, by the driver's own wire on one connection.

The state of 100 jobs is one page, behind a compare-and-swap of its revision; what was asked for is a card for each job,
which does not change. A claim is a swap and one direct get of the cards, in one round trip; an ack is another swap.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import msgspec

from benchmarks.clock import LONGEST, Sample, rate
from taskharbor.drivers.nats.connection import JetStream
from taskharbor.drivers.nats.store import Outdated, Streams, StreamWrite

BATCH = 100
MESSAGES, MESSAGE = 1000, 300  # of an atomic batch, and the bytes of each message
LEASE = 30_000_000
CARD = b"p" * 200
pack = msgspec.msgpack.Encoder().encode
Entry = tuple[str, str, int, str, int]  # id, state, when it is due, token, expiry


class Raw:
    """A connection, and names that nobody else uses."""

    def __init__(self, store: Streams) -> None:
        self._store = store
        self._own, self._number = secrets.token_hex(4), 0

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncGenerator[Raw]:
        """With the two streams of a namespace."""
        options = dict(part.split("=") for part in urlsplit(url).query.split("&") if part)
        server = await JetStream.open(urlsplit(url), {**options, "namespace": "raw"})
        try:
            yield cls(Streams(server))
        finally:
            await server.close()

    def name(self) -> str:
        """One that is new."""
        self._number += 1
        return f"{self._own}{self._number}"

    async def create(self, content: bytes) -> None:
        """A message under a new subject, which must not be there."""
        await self._store.put(StreamWrite(self._store.subjects.card(self.name()), content, 0))

    async def create_many(self, contents: Sequence[bytes]) -> list[str]:
        """The same in one atomic batch; the names."""
        names = [self.name() for _ in contents]
        subjects = self._store.subjects
        writes = [StreamWrite(subjects.card(name), content, 0) for name, content in zip(names, contents, strict=True)]
        await self._store.commit(writes)
        return names

    async def fill(self, jobs: int) -> list[tuple[str, list[Entry], int]]:
        """Cards and pages: name, content and revision of each page."""
        pages: list[tuple[str, list[Entry], int]] = []
        for _ in range(0, jobs, MESSAGES):
            names = await self.create_many([CARD] * MESSAGES)
            parts = [names[first : first + BATCH] for first in range(0, MESSAGES, BATCH)]
            for part in parts:
                name, entries = self.name(), [(job, "ready", now(), "", 0) for job in part]
                revision = await self._store.put(StreamWrite(self._store.subjects.page("-", name), pack(entries), 0))
                pages.append((name, entries, revision))
        return pages

    async def turn(self, name: str, entries: list[Entry], revision: int) -> int:
        """Claim a page and read its cards, then acknowledge it; how many jobs it had."""
        store, wire, token, at = self._store, await self._store.server.wire(), secrets.token_hex(8), now()
        page = store.subjects.page("-", name)
        entries = [(job, "inflight", due, token, at + LEASE) for job, _, due, _, _ in entries]
        swap, answer = store.publish(wire, StreamWrite(page, pack(entries), revision))
        asked = {"multi_last": [store.subjects.card(job) for job, *_ in entries]}
        read, cards = store.ask(wire, store.server.jobs, asked)
        wire.write(swap + read)
        claimed = store.answer(await answer)
        if len(await cards) != len(entries) + 1 or claimed is None or isinstance(claimed, Outdated):
            raise RuntimeError("a claim was refused")
        entries = [(job, "done", due, token, 0) for job, _, due, _, _ in entries]
        await store.put(StreamWrite(page, pack(entries), claimed))
        return len(entries)


def now() -> int:
    """Microseconds."""
    return time.time_ns() // 1000


def create(url: str, seconds: float, outstanding: int = 50) -> Sample:
    """Messages stored one by one, so many under way at once."""

    async def main() -> Sample:
        async with Raw.open(url) as raw:
            content, done, begun = b"x" * MESSAGE, [0], time.perf_counter()

            async def some() -> None:
                while time.perf_counter() < begun + seconds:
                    await raw.create(content)
                    done[0] += 1

            await asyncio.gather(*(some() for _ in range(outstanding)))
            return rate(done[0], time.perf_counter() - begun)

    return asyncio.run(main())


def create_batches(url: str, jobs: int, times: int = 3) -> Sample:
    """Atomic batches, one after another."""

    async def main() -> Sample:
        async with Raw.open(url) as raw:
            contents, begun = [b"x" * MESSAGE] * MESSAGES, time.perf_counter()
            for _ in _batches(jobs * times):
                await raw.create_many(contents)
            return rate(jobs * times, time.perf_counter() - begun)

    return asyncio.run(main())


def _batches(jobs: int) -> Iterator[int]:
    return iter(range(-(-jobs // MESSAGES)))


def drain(url: str, jobs: int) -> Sample:
    """Claim and acknowledge page after page until nothing is left."""

    async def main() -> Sample:
        async with Raw.open(url) as raw:
            pages = await raw.fill(jobs)
            done, begun = 0, time.perf_counter()
            for page in pages:
                done += await raw.turn(*page)
                if time.perf_counter() > begun + LONGEST:
                    break
            return rate(done, time.perf_counter() - begun)

    return asyncio.run(main())
