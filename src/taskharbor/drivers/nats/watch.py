"""The watch: an ordered stream of all changes of LINE, into memory.

One consumer for each driver that claims or lists, however many queues it serves: the server serves unfiltered consumers
cheaply, and filtered ones not. It is ephemeral: the server removes it when nobody listens any more. If messages are
missing, or the node of the consumer is gone, the watch begins again where it was.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from random import Random

from taskharbor.core.backoff import STORE_BACKOFF
from taskharbor.core.text import described
from taskharbor.drivers.nats.connection import NatsMessage
from taskharbor.drivers.nats.failure import ApiError
from taskharbor.drivers.nats.line import ClaimShare, HeldPage
from taskharbor.drivers.nats.pages import IS_INFLIGHT, IS_READY, JobPage
from taskharbor.drivers.nats.store import StoredValue, Streams
from taskharbor.drivers.nats.wire import NatsWire, header, publication
from taskharbor.drivers.wakeup import Wakeup
from taskharbor.errors import DriverClosed, DriverUnavailable, HarborError

logger = logging.getLogger("taskharbor.nats")
HEARTBEAT = 1.0
SILENT_FOR = 4.0
INACTIVE_FOR = 30.0
# Removed pages are remembered for two minutes: a watch that was away for longer reads everything again.
RESUMES_WITHIN = 60.0
LOAD_WITHIN = 120.0
BARRIER_WITHIN = 8.0
HEARD_WITHIN = 0.25
# How long two workers that got in each other's way leave each other their shares, and how long a claim is remembered.
CONTENDED_FOR = 0.5
# The first byte of what is stored for a queue that is paused, or no longer.
PAUSED, OPEN = b"+", b"-"
NANOS = 1_000_000_000
RNG = Random()


class LineWatch:
    """Keeps the line of a store up to date, on the loop that asked for it first."""

    def __init__(self, store: Streams) -> None:
        self.store = store
        self.line = store.line
        self.work = Wakeup()
        self.freed = Wakeup()  # a page of which this process has swapped a version
        self.records: dict[str, StoredValue] = {}
        self.contended = 0.0
        self.name = ""  # of the worker that claims
        self._peers: dict[str, float] = {}
        self._moved = Wakeup()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loaded = False
        self._failed: Exception | None = None
        self._consumer = ""  # the one that is followed
        self._made = ""  # the one to remove
        self._count = 0
        self._batch: bytes | None = None  # the one whose messages are held back until its last has come
        self._held: list[tuple[str, int, bytes]] = []
        self._heard = 0.0
        self._current: float = 0.0  # when everything was here that was stored before
        self._created: str = ""  # when the stream was made that is followed
        self._broken: asyncio.Future[str] | None = None
        self._wire: NatsWire | None = None
        self._skip = len(store.subjects.line)
        self._closed = False
        self._tidy_at = 1000

    # for callers on any loop

    async def ready(self) -> None:
        """Return when the line is in memory."""
        if self._loaded and self._is_running():
            return
        if self._closed:
            raise DriverClosed("this nats driver was closed")
        if not self._is_running():
            self._loop = asyncio.get_running_loop()
            self._loaded, self._failed = False, None
            self._task = self._loop.create_task(self._run())
        until = asyncio.get_running_loop().time() + LOAD_WITHIN
        while not self._loaded:
            if self._closed:
                raise DriverClosed("this nats driver was closed")
            if self._failed is not None:
                failed, self._failed = self._failed, None
                raise failed
            if asyncio.get_running_loop().time() > until:
                raise DriverUnavailable(f"{self.store.server.where}: the waiting jobs could not be read in time")
            await self._moved.wait(0.25)

    def _is_running(self) -> bool:
        return (
            self._task is not None and not self._task.done() and self._loop is not None and not self._loop.is_closed()
        )

    async def barrier(self) -> None:
        """Return when everything has been seen that was stored before this call."""
        loop = asyncio.get_running_loop()
        until = loop.time() + BARRIER_WITHIN
        await self._following()
        # A consumer hears of a message a moment after it was acknowledged, so what it counts is not enough. The last
        # message may be gone, and will never come: then the count has to do.
        last = int((await self.store.server.api(f"STREAM.INFO.{self.store.server.line}"))["state"]["last_seq"])
        heard_by = loop.time() + HEARD_WITHIN
        while asyncio.get_running_loop().time() < until:
            consumer = await self._following()
            try:
                found = await self.store.server.api(f"CONSUMER.INFO.{self.store.server.line}.{consumer}")
            except ApiError as error:
                if error.code != 404:
                    raise
                if consumer == self._consumer:  # it has gone, and the watch would find out later
                    self._break("its consumer is gone")
                await self._moved.wait(0.05)
                continue
            goal = int(found["delivered"]["consumer_seq"]) + int(found["num_pending"])
            while consumer == self._consumer and asyncio.get_running_loop().time() < until:
                is_heard = self.line.seen >= last or loop.time() > heard_by
                if self._count >= goal and not self._held and is_heard:
                    return
                await self._moved.wait(0.05)
        raise DriverUnavailable(f"{self.store.server.where}: the watch of the line does not follow")

    async def _following(self) -> str:
        """Return when the line is in memory and followed; the name of the consumer."""
        until = asyncio.get_running_loop().time() + BARRIER_WITHIN
        while True:
            await self.ready()
            if consumer := self._consumer:
                return consumer
            if asyncio.get_running_loop().time() > until:
                raise DriverUnavailable(f"{self.store.server.where}: the watch of the line begins again")
            await self._moved.wait(0.05)

    def share(self, worker: str, time: float) -> ClaimShare:
        """The share of this worker among those that claim at present, if they got in each other's way."""
        if time - self.contended > CONTENDED_FOR:
            return ClaimShare()
        names = sorted({worker, *(name for name, at in list(self._peers.items()) if time - at < CONTENDED_FOR)})
        return ClaimShare(names.index(worker), len(names))

    def rank(self, worker: str, time: float) -> ClaimShare:
        """The share of this worker in upkeep, among all that claimed within a few seconds."""
        names = sorted({worker, *(name for name, at in list(self._peers.items()) if time - at < 5.0)})
        return ClaimShare(names.index(worker), len(names))

    @contextmanager
    def swapping(self, names: Iterable[str]) -> Generator[None]:
        """Have this process pick nothing from these pages while it swaps them."""
        held = [known for name in names if (known := self.line.pages.get(name)) is not None]
        for known in held:
            known.busy += 1
        try:
            yield
        finally:
            for known in held:
                known.busy -= 1
            self.freed.wake()

    def took(self, held: HeldPage | None) -> None:
        """Wake those that wait for work, if there may be some in this page."""
        if held is not None and self.work.awaited and has_work(held.page):
            self.work.wake()

    @property
    def is_here(self) -> bool:
        """Whether it runs on the loop of the caller."""
        return self._loop is asyncio.get_running_loop()

    @property
    def follows(self) -> bool:
        """Whether the line is in memory, or being read into it."""
        return self._is_running()

    def applied(self, subject: str, revision: int, body: bytes) -> None:
        """Take in what this process has written itself."""
        if self.follows:
            self.learn(subject, StoredValue(revision, body))

    async def close(self) -> None:
        """Stop it, and remove its consumer."""
        self._closed = True
        task, loop = self._task, self._loop
        self._task = None
        if task is None or loop is None or task.done():
            return
        if loop is asyncio.get_running_loop():
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
        elif not loop.is_closed():
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)
        self._moved.wake()
        self.work.wake()

    # the consumer

    async def _run(self) -> None:
        failures = 0
        try:
            while True:
                try:
                    reason = await self._follow()
                    logger.debug("nats.watch: begins again: %s", reason)
                    failures = 0
                except (HarborError, OSError, TimeoutError) as error:
                    failures += 1
                    if not self._loaded:
                        self._failed = error if isinstance(error, HarborError) else None
                        self._moved.wake()
                    if isinstance(error, DriverClosed):
                        return
                    logger.debug("nats.watch: %s", described(error))
                    await asyncio.sleep(STORE_BACKOFF.delay(failures, RNG))
        finally:
            await self._remove()

    async def _follow(self) -> str:
        """Follow the stream until something breaks; what it was."""
        server = self.store.server
        loop = asyncio.get_running_loop()
        wire = self._wire = await server.wire()
        broken = self._broken = loop.create_future()
        wire.closed.add_done_callback(lambda _: self._lost(wire))
        stream = await server.api(f"STREAM.INFO.{server.line}")
        created = str(stream["created"])
        resume = (
            self._loaded
            and loop.time() - self._current < RESUMES_WITHIN
            and created == self._created  # it was not removed and made again
            and int(stream["state"]["last_seq"]) >= self.line.seen
        )
        if not resume:
            self._loaded, self._created = False, created
            self.line.clear()
            self.records.clear()
        inbox, name = wire.inbox(), f"watch-{secrets.token_hex(8)}"
        self._count = 0
        self._held.clear()
        self._heard = loop.time()
        await self._remove()
        self._made = name
        sid = wire.subscribe(inbox, self._take)
        try:
            found = await server.api(
                f"CONSUMER.CREATE.{server.line}.{name}", self._configuration(name, inbox, resume, self.line.seen)
            )
            self._consumer = name
            self._moved.wake()
            if not int(found["num_pending"]) and not int(found["delivered"]["consumer_seq"]):
                self._current = loop.time()
                self._is_loaded()
            while not broken.done():
                await asyncio.wait([broken], timeout=HEARTBEAT)
                if loop.time() - self._heard > SILENT_FOR:
                    return "it is silent"
                if wire.leaving or wire.suspect:
                    return "its server is going away"
            reason: str = broken.result()
            return reason
        finally:
            self._broken = None
            self._consumer = ""
            wire.unsubscribe(sid)

    def _configuration(self, name: str, inbox: str, resume: bool, seen: int) -> dict[str, object]:
        start: dict[str, object] = {"deliver_policy": "all"}
        if resume and seen:
            start = {"deliver_policy": "by_start_sequence", "opt_start_seq": seen + 1}
        return {
            "stream_name": self.store.server.line,
            "config": {
                "name": name,
                "deliver_subject": inbox,
                "ack_policy": "none",
                "replay_policy": "instant",
                "flow_control": True,
                "idle_heartbeat": int(HEARTBEAT * NANOS),
                "inactive_threshold": int(INACTIVE_FOR * NANOS),
                "mem_storage": True,
                "num_replicas": 1,
                "max_deliver": 1,
                **start,
            },
        }

    def _lost(self, wire: NatsWire) -> None:
        if self._wire is wire:
            self._break("the connection was lost")

    async def _remove(self) -> None:
        """Remove the consumer; the server does it by itself after a while."""
        name, self._made = self._made, ""
        wire = self._wire
        if name and wire is not None and not wire.closed.done():
            wire.write(publication(f"$JS.API.CONSUMER.DELETE.{self.store.server.line}.{name}", b"", b""))

    def _break(self, reason: str) -> None:
        broken = self._broken
        if broken is None or broken.done():
            return
        loop = broken.get_loop()
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_set, broken, reason)

    def _is_loaded(self) -> None:
        self._loaded = True
        self._moved.wake()
        self.work.wake()

    # messages

    def _take(self, message: NatsMessage) -> None:
        self._heard = asyncio.get_running_loop().time()
        if message.headers.startswith(b"NATS/1.0 100"):
            self._answer(message)
            return
        parts = message.reply.split(b".")
        first = 5 if len(parts) == 9 else 7
        sequence, number, pending = int(parts[first]), int(parts[first + 1]), int(parts[first + 3])
        if number != self._count + 1:
            self._break("messages were lost")
            return
        self._count = number
        self._hold(message, sequence, pending)
        if not pending:
            self._current = self._heard
        if self._loaded:
            self._moved.wake()
        elif not pending:
            self._is_loaded()

    def _answer(self, message: NatsMessage) -> None:
        """Answer a heartbeat or a request of flow control, which say what should have come."""
        stalled = header(message.headers, b"Nats-Consumer-Stalled")
        for subject in (message.reply, stalled):
            if subject and self._wire is not None:
                self._wire.write(publication(subject.decode(), b"", b""))
        last = header(message.headers, b"Nats-Last-Consumer")
        if last is not None and int(last) > self._count:
            self._break("messages were lost")
        elif last is not None:
            self._current = self._heard

    def _hold(self, message: NatsMessage, sequence: int, pending: int) -> None:
        """Take in a message; those of one batch together, when the last of them has come."""
        batch = header(message.headers, b"Nats-Batch-Id") if b"Nats-Batch-Id" in message.headers else None
        if self._held and batch != self._batch:  # its last message was replaced by a later one
            self._release()
        self._batch = batch
        self._held.append((message.subject.decode(), sequence, message.body))
        if batch is None or not pending or b"Nats-Batch-Commit" in message.headers:
            self._release()

    def _release(self) -> None:
        """Take in what was held back: what was stored together is seen together."""
        held, self._held = self._held, []
        for subject, sequence, body in held:
            self._event(subject, sequence, body)
            self.line.advance(sequence)

    def _event(self, subject: str, sequence: int, body: bytes) -> None:
        kind = subject[self._skip : self._skip + 2]
        if kind == "s.":
            flow, _, name = subject[self._skip + 2 :].partition(".")
            held = self.line.take(flow, name, sequence, body)
            if held is not None:
                self._note_peer(held.page)
                if self._loaded:
                    self.took(held)
            return
        self.learn(subject, StoredValue(sequence, body))

    def learn(self, subject: str, value: StoredValue) -> None:
        """Take in a value that is not a page."""
        known = self.records.get(subject)
        if known is not None and known.revision >= value.revision:
            return
        self.records[subject] = value
        if len(self.records) > self._tidy_at:
            seen = self.line.seen
            self.records = {name: each for name, each in self.records.items() if each.body or each.revision > seen}
            self._tidy_at = 2 * len(self.records) + 1000
        if subject.startswith(f"{self.store.subjects.line}p."):
            mark, queue = value.body[:1], value.body[1:].decode()
            if mark == PAUSED:
                self.line.paused[queue] = value.revision
            else:
                self.line.paused.pop(queue, None)
                self.work.wake()

    def _note_peer(self, page: JobPage) -> None:
        for entry in page.entries:
            if entry is not None:
                if entry.state == IS_INFLIGHT and entry.worker:
                    self._peers[entry.worker] = self._heard
                    if len(self._peers) > 1000:
                        self._peers = {name: at for name, at in self._peers.items() if self._heard - at < 5.0}
                return


def _set(future: asyncio.Future[str], reason: str) -> None:
    if not future.done():
        future.set_result(reason)


def has_work(page: JobPage) -> bool:
    """Whether a job of the page is or will be ready."""
    return any(entry is not None and entry.state == IS_READY for entry in page.entries)
