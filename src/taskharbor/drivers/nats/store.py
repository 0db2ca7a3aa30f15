"""Reads and writes of the two streams: values by subject with their revisions, compared and swapped.

A value is read as it is stored, never from a replica that is behind what was acknowledged before. A write that others
were faster than is a `Outdated`, and nothing of it is stored. One that nobody answers may be stored or not.
"""

from __future__ import annotations

import asyncio
import re
import time
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec

from taskharbor.core.backoff import Backoff
from taskharbor.drivers.nats.connection import JetStream, NatsMessage
from taskharbor.drivers.nats.failure import ApiError, answered, away, no_room
from taskharbor.drivers.nats.line import LineInMemory
from taskharbor.drivers.nats.subjects import Subjects
from taskharbor.drivers.nats.wire import NatsWire, header, publication, status
from taskharbor.errors import DriverUnavailable

# What the server accepts in one batch, and what one reply of a direct get may hold.
MOST_MESSAGES = 1000
MOST_SUBJECTS = 1000
# Bytes after which a batch is cut, where it need not be one.
MOST_BYTES = 16 << 20
# Bytes of one reply to a direct get: a server cuts longer ones at its `max_pending`, and drops clients beyond that.
READ_BYTES = 4 << 20
# What the server takes for a batch beside its messages, in seconds: on one node it stages each in a folder of its own.
BATCH_TAKES = 0.002
# How long a batch waits for values of other callers, in seconds.
SHARED_WITHIN = 0.0005
# What it takes for a message by itself, until that was measured; it is ten times as much if each is synced to disk.
MESSAGE_TAKES = 0.000025
# So many at once tell what one of them takes.
TELLING = 8
# Up to here a message costs about the same whatever it holds.
SMALL = 64 << 10
# How long a removed page or card is remembered: longer than any verb takes.
KEPT_REMOVED = b"Nats-TTL:120s\r\n"
# For how many seconds a read is good for a write: a process may be stopped between them until removals are forgotten.
FRESH_FOR = 60.0
# How long a page that must never come is barred: longer than anybody can have been about to write it.
KEPT_BARRED = b"Nats-TTL:1h\r\n"
WRONG_LAST = (10071, 10164)
# Known not to be stored: a batch that was cut short, no leader, a replica that is catching up.
NOT_STORED = (10176, 10008, 10009, 10077, 10158)
AGAIN = Backoff(base=0.02, cap=0.25, spread=1.0)
WITHIN = 9.0
# A node that dies takes requests along; one that reads only is then sent again.
LOST_AFTER = 3.0
BEHIND = Backoff(base=0.002, cap=0.05, spread=0.5)
RNG = Random()

# How a server names what it found.
USUAL = re.compile(rb"\r\nNats-Subject: (\S+)\r\nNats-Sequence: (\d+)\r\n")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Outdated(Exception):
    """Something has changed since it was read: nothing was written. `revision` is the present one if it is known."""

    def __init__(self, revision: int = 0) -> None:
        super().__init__()
        self.revision = revision


class StoredValue(NamedTuple):
    """A value and its revision. Without a body there is none; the revision is then that of its removal, or 0."""

    revision: int = 0
    body: bytes = b""


NOTHING = StoredValue()


class StreamWrite(NamedTuple):
    """A value to store if the subject is at `expected`; always if that is None. An empty one is a removal."""

    subject: str
    body: bytes
    expected: int | None = None
    headers: bytes = b""


def removal(subject: str, expected: int | None, kept: bytes = KEPT_REMOVED) -> StreamWrite:
    """The write that removes a value. The mark that it leaves goes by itself."""
    return StreamWrite(subject, b"", expected, kept)


class Streams:
    """The streams of a namespace."""

    def __init__(self, server: JetStream) -> None:
        self.server = server
        self.subjects = Subjects(server.prefix)
        self.line = LineInMemory()
        self._message_takes = MESSAGE_TAKES
        self._gathering: dict[asyncio.AbstractEventLoop, tuple[list[StreamWrite], asyncio.Task[list[int]]]] = {}
        self._direct = {name: f"$JS.API.DIRECT.GET.{name}" for name in (server.jobs, server.line)}

    def stream_of(self, subject: str) -> str:
        """The stream that a subject belongs to."""
        return self.server.line if subject.startswith(self.subjects.line) else self.server.jobs

    # reads

    async def read(self, subjects: Iterable[str]) -> dict[str, StoredValue]:
        """The values of these subjects, all of one stream. A removed one is there, without a body."""
        wanted = list(dict.fromkeys(subjects))
        found: dict[str, StoredValue] = {}
        for first in range(0, len(wanted), MOST_SUBJECTS):
            found |= await self._read(wanted[first : first + MOST_SUBJECTS])
        return {subject: found.get(subject, NOTHING) for subject in wanted}

    async def _read(self, subjects: Sequence[str]) -> dict[str, StoredValue]:
        stream = self.stream_of(subjects[0])
        found: dict[str, StoredValue] = {}
        while True:
            left = [subject for subject in subjects if subject not in found] if found else subjects
            messages = await self._read_directly(stream, left)
            if messages is None:
                return found | await self._read_leader(stream, left)
            found |= by_subject(messages)
            if not is_cut(messages):
                return found

    async def _read_directly(self, stream: str, subjects: Sequence[str]) -> list[NatsMessage] | None:
        """The replies to a direct get; None if a replica may be behind what the leader has now."""
        if self.server.replicas == 1:
            return await self.collect(stream, last_of(subjects))
        if len(subjects) > 8:
            last = (await self._info(stream))["last_seq"]
            for attempt in range(6):
                messages = await self.collect(stream, last_of(subjects))
                upto = header(messages[-1].headers, b"Nats-UpTo-Sequence")
                if upto is not None and int(upto) >= last:
                    return messages
                await asyncio.sleep(BEHIND.delay(attempt + 1, RNG))
        return None

    async def _read_leader(self, stream: str, subjects: Sequence[str]) -> dict[str, StoredValue]:
        found: dict[str, StoredValue] = {}
        for first in range(0, len(subjects), 200):
            page = subjects[first : first + 200]
            answers = await asyncio.gather(*(self._last(stream, subject) for subject in page))
            found |= dict(zip(page, answers, strict=True))
        return found

    async def _last(self, stream: str, subject: str) -> StoredValue:
        try:
            answer = await self.api(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
        except ApiError as error:
            if error.code == 404:
                return NOTHING
            raise
        message = answer["message"]
        return StoredValue(int(message["seq"]), b64decode(message.get("data") or ""))

    async def read_one(self, subject: str) -> StoredValue:
        """The value of a subject."""
        return (await self.read([subject]))[subject]

    async def matching(self, pattern: str) -> dict[str, StoredValue]:
        """The values whose subjects match, in the order of their writing; those removed are left out."""
        stream = self.stream_of(pattern)
        if self.server.replicas > 1:
            found = await self.read(await self.names(pattern))
        else:
            found = dict[str, StoredValue]()
            after = 1
            while True:
                request = {"seq": after, "next_by_subj": pattern, "batch": MOST_SUBJECTS, "max_bytes": READ_BYTES}
                messages = await self.collect(stream, request)
                found |= (page := by_subject(messages))
                if not is_cut(messages):
                    break
                after = max(each.revision for each in page.values()) + 1
        there = [(subject, value) for subject, value in found.items() if value.body]
        return dict(sorted(there, key=lambda item: item[1].revision))

    async def names(self, pattern: str) -> list[str]:
        """The subjects that match and have a value or the mark of a removal."""
        stream = self.stream_of(pattern)
        found: dict[str, None] = {}
        while True:
            request = {"subjects_filter": pattern, "offset": len(found)}
            answer = await self.api(f"STREAM.INFO.{stream}", request)
            page: dict[str, int] = answer["state"].get("subjects") or {}
            before = len(found)
            found |= dict.fromkeys(page)
            if len(found) == before or len(found) >= int(answer.get("total", 0)):
                return list(found)

    async def collect(self, stream: str, request: object) -> list[NatsMessage]:
        """The replies to a direct get, the status last."""
        subject, body = self._direct[stream], _encode(request)
        until: float | None = None
        while True:
            wire = await self.server.wire()
            try:
                async with asyncio.timeout(LOST_AFTER):
                    messages = await wire.collect(subject, body)
            except TimeoutError as error:
                if not (until := await _once_more(until)):
                    raise away(error, self.server.where, asked=False) from None
                continue
            code = status(messages[-1].headers)
            if code in (204, 404):
                return messages
            if code != 503 or not (until := await _once_more(until)):
                raise answered(self.server.where, {"code": code, "description": _reason(messages[-1].headers)})

    def ask(self, wire: NatsWire, stream: str, request: object) -> tuple[bytes, asyncio.Future[list[NatsMessage]]]:
        """A direct get as it is sent, and the future of its replies."""
        reply, future = wire.tickets_many(self._direct[stream])
        return publication(self._direct[stream], reply, _encode(request)), future

    async def api(self, subject: str, body: object | None = None) -> dict[str, Any]:
        """An answer of JetStream; while it elects a leader, it is asked again."""
        until: float | None = None
        while True:
            try:
                return await self.server.api(subject, body)
            except ApiError as error:
                if (error.code != 503 and error.err_code not in NOT_STORED) or not (until := await _once_more(until)):
                    raise

    async def _info(self, stream: str) -> dict[str, Any]:
        state: dict[str, Any] = (await self.api(f"STREAM.INFO.{stream}"))["state"]
        return state

    # writes

    async def put(self, write: StreamWrite) -> int:
        """Store one value; its revision."""
        (rev,) = await self.swap([write])
        if isinstance(rev, Outdated):
            raise rev
        return rev

    async def swap(self, writes: Sequence[StreamWrite]) -> list[int | Outdated]:
        """Store each value by itself, all on their way at once: its revision, or why it was refused."""
        until: float | None = None
        answers: list[int | Outdated | None] = [None] * len(writes)
        left = list(range(len(writes)))
        while True:
            wire = await self.server.wire()
            replies = await self._send(wire, [writes[index] for index in left])
            again: list[int] = []
            for index, reply in zip(left, replies, strict=True):
                answer = self.answer(reply)
                if answer is None:
                    again.append(index)
                else:
                    answers[index] = answer
            if not again:
                return [answer for answer in answers if answer is not None]
            if not (until := await _once_more(until)):
                raise DriverUnavailable(f"{self.server.where}: the streams have no leader: look at its cluster")
            left = again

    async def _send(self, wire: NatsWire, writes: Sequence[StreamWrite]) -> list[NatsMessage]:
        futures: list[asyncio.Future[NatsMessage]] = []
        out: list[bytes] = []
        for write in writes:
            data, future = self.publish(wire, write)
            out.append(data)
            futures.append(future)
        wire.write(b"".join(out))
        if len(futures) == 1:
            return [await futures[0]]
        return list(await asyncio.gather(*futures))

    def publish(self, wire: NatsWire, write: StreamWrite) -> tuple[bytes, asyncio.Future[NatsMessage]]:
        """A write as it is sent, and the future of its answer."""
        headers = write.headers
        if write.expected is not None:
            headers = b"Nats-Expected-Last-Subject-Sequence:%d\r\n%b" % (write.expected, headers)
        wire.check_size(write.subject, len(write.body) + len(headers))
        reply, future = wire.ticket(write.subject)
        return publication(write.subject, reply, write.body, headers), future

    def answer(self, reply: NatsMessage) -> int | Outdated | None:
        """What the server says to a write: its revision or a conflict; None if it can be sent again."""
        if status(reply.headers):
            if status(reply.headers) == 503:
                return None
            raise answered(self.server.where, {"code": status(reply.headers), "description": _reason(reply.headers)})
        found = _decode(reply.body)
        error = found.get("error")
        if error is None:
            return int(found["seq"])
        code = error.get("err_code")
        if code in WRONG_LAST:
            number = str(error.get("description", "")).rpartition(" ")[2]
            return Outdated(int(number) if number.isdecimal() else 0)
        full = no_room(self.server.where, int(error.get("code", 0)), code or 0, str(error.get("description", "")))
        if full is not None:
            raise full
        if code in NOT_STORED or (error.get("code") == 503 and not code):
            return None
        raise answered(self.server.where, error)

    async def commit(self, writes: Sequence[StreamWrite]) -> int:
        """Store all values, or none if one of the subjects is not as expected; the revision of the last one.

        The others have the revisions before it, in their order.
        """
        if len(writes) == 1:
            return await self.put(writes[0])
        if len(writes) > MOST_MESSAGES:
            raise TooMany(len(writes))
        until: float | None = None
        while True:
            wire = await self.server.wire()
            data, future = self._batch(wire, writes)
            wire.write(data)
            answer = self.answer(await future)
            if isinstance(answer, Outdated):
                raise answer
            if answer is not None:
                return answer
            if not (until := await _once_more(until)):
                raise DriverUnavailable(f"{self.server.where}: the streams have no leader: look at its cluster")

    def _batch(self, wire: NatsWire, writes: Sequence[StreamWrite]) -> tuple[bytes, asyncio.Future[NatsMessage]]:
        name = b"%016x" % RNG.getrandbits(64)
        out: list[bytes] = []
        reply, future = wire.ticket(writes[-1].subject)
        for number, write in enumerate(writes, 1):
            headers = b"Nats-Batch-Id:%b\r\nNats-Batch-Sequence:%d\r\n%b" % (name, number, write.headers)
            if write.expected is not None:
                headers += b"Nats-Expected-Last-Subject-Sequence:%d\r\n" % write.expected
            if number == len(writes):
                headers += b"Nats-Batch-Commit:1\r\n"
            wire.check_size(write.subject, len(write.body) + len(headers))
            out.append(publication(write.subject, reply if number == len(writes) else b"", write.body, headers))
        return b"".join(out), future

    async def store_all(self, writes: Sequence[StreamWrite]) -> list[int]:
        """Store values that need not be stored together, in batches: their revisions. A conflict ends it midway."""
        revisions: list[int] = []
        for part in parts(writes):
            last = await self.commit(part)
            revisions += range(last - len(part) + 1, last + 1)
        return revisions

    async def store_apart(self, writes: Sequence[StreamWrite]) -> None:
        """Store values that need not be stored together, each by itself if that is faster than batches.

        After a conflict some of them are stored.
        """
        if not self._is_faster_apart(writes):
            await self._store_shared(writes)
            return
        begun = time.perf_counter()
        answers = await self.swap(writes)
        if len(writes) >= TELLING:
            took = (time.perf_counter() - begun) / len(writes)
            self._message_takes += (took - self._message_takes) / 4
        for answer in answers:
            if isinstance(answer, Outdated):
                raise answer

    async def _store_shared(self, writes: Sequence[StreamWrite]) -> None:
        """Store values in batches, few of them together with those of other callers."""
        if 2 * len(writes) > MOST_MESSAGES:
            await self.store_all(writes)
            return
        loop = asyncio.get_running_loop()
        known = self._gathering.get(loop)
        if known is None or len(known[0]) + len(writes) > MOST_MESSAGES:
            gathered: list[StreamWrite] = []
            known = self._gathering[loop] = gathered, loop.create_task(self._send_gathered(loop, gathered))
            known[1].add_done_callback(lambda task: task.cancelled() or task.exception())  # callers may have left
        known[0].extend(writes)
        try:
            await asyncio.shield(known[1])
        except Outdated:
            if len(known[0]) == len(writes):
                raise
            await self.store_all(writes)  # it may have been for the values of another

    async def _send_gathered(self, loop: asyncio.AbstractEventLoop, gathered: list[StreamWrite]) -> list[int]:
        try:
            await asyncio.sleep(SHARED_WITHIN)
        finally:
            if (known := self._gathering.get(loop)) is not None and known[0] is gathered:
                del self._gathering[loop]
        return await self.store_all(gathered)

    def _is_faster_apart(self, writes: Sequence[StreamWrite]) -> bool:
        """No client can read whether the server syncs each message: what it took for others before tells."""
        if len(writes) == 1:
            return True
        if self.server.replicas > 1 or sum(len(write.body) for write in writes) > SMALL:
            return False
        if len(writes) * self._message_takes < BATCH_TAKES:
            return True
        self._message_takes += (MESSAGE_TAKES - self._message_takes) / 64  # now and then it is measured again
        return False

    def notify(self, wire: NatsWire, what: str) -> None:
        """Tell whoever waits."""
        wire.write(publication(f"{self.server.prefix}.w.{what}", b"", b""))


class TooMany(Exception):
    """More writes than one commit can hold."""


def parts(writes: Sequence[StreamWrite]) -> Iterable[Sequence[StreamWrite]]:
    """Writes in bites that a batch can hold."""
    first = size = 0
    for index, write in enumerate(writes):
        size += len(write.body) + 200
        if index - first == MOST_MESSAGES or (size > MOST_BYTES and index > first):
            yield writes[first:index]
            first, size = index, len(write.body) + 200
    if first < len(writes):
        yield writes[first:]


def last_of(subjects: Sequence[str]) -> dict[str, object]:
    """The request for the values of these subjects."""
    return {"multi_last": subjects, "max_bytes": READ_BYTES}


def is_cut(messages: Sequence[NatsMessage]) -> bool:
    """Whether the server has ended a reply to a direct get because it was long: more has to be asked for."""
    pending = header(messages[-1].headers, b"Nats-Num-Pending")
    return len(messages) > 1 and pending is not None and int(pending) > 0


def by_subject(messages: Sequence[NatsMessage]) -> dict[str, StoredValue]:
    """The values in the replies to a direct get."""
    found: dict[str, StoredValue] = {}
    for message in messages[:-1]:
        headers = message.headers
        if (usual := USUAL.search(headers)) is not None:
            found[usual[1].decode()] = StoredValue(int(usual[2]), message.body)
            continue
        subject, sequence = header(headers, b"Nats-Subject"), header(headers, b"Nats-Sequence")
        if subject is not None and sequence is not None:
            found[subject.decode()] = StoredValue(int(sequence), message.body)
    return found


def bodies(found: Mapping[str, StoredValue]) -> dict[str, bytes]:
    """The values that are there."""
    return {subject: value.body for subject, value in found.items() if value.body}


async def _once_more(until: float | None) -> float:
    """Wait a moment for a leader; 0 if that has taken too long."""
    now = asyncio.get_running_loop().time()
    until = now + WITHIN if until is None else until
    if now > until:
        return 0.0
    await asyncio.sleep(AGAIN.delay(1 + int((now + WITHIN - until) * 10), RNG))
    return until


def _reason(headers: bytes) -> str:
    return headers[13:].partition(b"\r\n")[0].decode(errors="replace") or "refused"
