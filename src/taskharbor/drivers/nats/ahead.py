"""Cards of jobs that are next in line, asked for while earlier ones run: a claim then takes one short round trip.

Nothing is decided by them. A card says which page it belongs to, and as long as that lists the job it does not change:
one of an earlier job with the same id names another page. What has not come is read when it is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from taskharbor.drivers.nats.connection import NatsMessage, NatsWire
from taskharbor.drivers.nats.store import LOST_AFTER, MOST_SUBJECTS, StoredValue, Streams, by_subject, last_of

# Bytes that are asked for at a time, by the size of those before: a server drops a client that has too much to read.
ROOM = 4 << 20
FIRST = 8  # cards, before their size is known


class CardRequest:
    """A request on its way, or what it has brought."""

    def __init__(self, replies: asyncio.Future[list[NatsMessage]]) -> None:
        self.replies = replies
        self._found: dict[str, StoredValue] | None = None

    def found(self) -> dict[str, StoredValue]:
        """What has come."""
        if self._found is None:
            failed = not self.replies.done() or self.replies.cancelled() or self.replies.exception() is not None
            self._found = {} if failed else by_subject(self.replies.result())
        return self._found


async def arrived(requests: Collection[CardRequest]) -> None:
    """Wait for the replies to all requests, but not long for one that was lost."""
    if pending := {request.replies for request in requests if not request.replies.done()}:
        await asyncio.wait(pending, timeout=LOST_AFTER)  # each by itself would be cancelled with one who waits for it


class CardsAhead:
    """The cards that were asked for ahead. For one loop at a time: those of another are forgotten."""

    def __init__(self, store: Streams) -> None:
        self._store = store
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: dict[str, CardRequest] = {}
        self._size = ROOM // FIRST

    def missing(self, subjects: Sequence[str]) -> list[str]:
        """Those of the cards that were not asked for."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._asked = loop, {}
        return [subject for subject in subjects if subject not in self._asked]

    def ask(self, wire: NatsWire, subjects: Sequence[str]) -> bytes:
        """A request as it is sent, for those of the cards that were not asked for; the oldest others are forgotten."""
        wanted = self.missing(subjects)[: min(MOST_SUBJECTS, ROOM // self._size)]
        if not wanted:
            return b""
        data, replies = self._store.ask(wire, self._store.server.jobs, last_of(wanted))
        self._asked |= dict.fromkeys(wanted, CardRequest(replies))
        for subject in list(self._asked)[: max(0, len(self._asked) - 2 * len(subjects))]:
            del self._asked[subject]
        return data

    async def take(self, subjects: Sequence[str]) -> dict[str, StoredValue]:
        """Those of the cards that were asked for and have come, when all have."""
        taken = {subject: request for subject in subjects if (request := self._asked.pop(subject, None)) is not None}
        await arrived(set(taken.values()))
        found = {name: value for name, request in taken.items() if (value := request.found().get(name)) is not None}
        if found:
            self._size = max(1, sum(len(value.body) for value in found.values()) // len(found))
        return found
