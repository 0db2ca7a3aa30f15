"""What crashes left in JOBS: cards, keys, results and edges that were stored for a page which never came.

Nobody sees them. Every value of JOBS is looked at once, when it is old enough that nobody can still be about to write
its page, in the order of writing; how far that has come is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from taskharbor.drivers.nats.connection import NatsMessage
from taskharbor.drivers.nats.damage import UNDECODABLE
from taskharbor.drivers.nats.drafts import confirmed
from taskharbor.drivers.nats.large import pieces
from taskharbor.drivers.nats.pages import JobCard, KeyNote, read_card, read_note
from taskharbor.drivers.nats.reader import PageReader
from taskharbor.drivers.nats.store import KEPT_BARRED, Outdated, Streams, StreamWrite, removal
from taskharbor.drivers.nats.subjects import flow_of, text_of
from taskharbor.drivers.nats.wire import header, status

OLD_ENOUGH = timedelta(minutes=10)
# Values that are looked at in one request, and requests of one call.
BATCH, MOST = 500, 20
HASHED = "=~"


class StoredMessage(NamedTuple):
    """A value of JOBS."""

    subject: str
    revision: int
    body: bytes


class Leftovers:
    """Removes leftovers, bit by bit."""

    def __init__(self, store: Streams) -> None:
        self._store = store
        self._subjects = store.subjects
        self._skip = len(store.server.prefix) + 1

    async def remove(self, now: datetime) -> int:
        """Look at what has become old enough since the last time; how many leftovers were removed."""
        removed = 0
        for _ in range(MOST):
            cursor = await self._store.read_one(self._subjects.cursor)
            after = int(cursor.body or b"0")
            messages = await self._store.collect(
                self._store.server.jobs,
                {"seq": after + 1, "next_by_subj": f"{self._store.server.prefix}.>", "batch": BATCH},
            )
            old = _old(messages, now)
            if not old:
                break
            with suppress(Outdated):
                removed += await self._look_at(old)
            try:
                await self._store.put(StreamWrite(self._subjects.cursor, b"%d" % old[-1].revision, cursor.revision))
            except Outdated:  # another worker is at it
                break
            if len(old) < len(messages) - 1:
                break
        return removed

    async def _look_at(self, messages: Sequence[StoredMessage]) -> int:
        reader = PageReader(self._store)
        cards: dict[str, tuple[StoredMessage, JobCard]] = {}
        notes: dict[str, tuple[StoredMessage, KeyNote]] = {}
        parts: list[StoredMessage] = []
        for message in messages:
            kind = message.subject[self._skip : self._skip + 2]
            with suppress(*UNDECODABLE):
                if kind == "j.":
                    cards[message.subject] = message, read_card(message.body)
                elif kind == "k.":
                    note = read_note(message.body)
                    notes[note.key] = message, note
                elif kind in ("o.", "x."):
                    parts.append(message)
        await reader.load_pages((flow_of(card.workflow), card.page) for _, card in cards.values())
        await reader.load_notes(notes)
        over = [message for message, card in cards.values() if not self._is_listed(reader, message, card)]
        absent = {card.page: flow_of(card.workflow) for _, card in cards.values()}
        for key, (message, note) in notes.items():
            if reader.notes[key][0] == message.revision and confirmed(reader, key) is None:
                over.append(message)
                absent[note.page] = flow_of(note.workflow)
        over += await self._unused(reader, parts)
        await self._bar(reader, absent)
        for message in over:
            with suppress(Outdated):
                await self._store.put(removal(message.subject, message.revision))
        return len(over)

    def _is_listed(self, reader: PageReader, message: StoredMessage, card: JobCard) -> bool:
        page = reader.pages[card.page].page
        return page is not None and any(
            entry is not None and self._subjects.card(entry.id) == message.subject for entry in page.entries
        )

    async def _bar(self, reader: PageReader, pages: dict[str, str]) -> None:
        """Have the pages that are missing never come, before anything is removed that they would need."""
        for name in pages:
            seen = reader.pages.get(name)
            if seen is not None and seen.page is None:
                await self._store.put(removal(self._subjects.page(seen.flow, name), seen.rev, KEPT_BARRED))

    async def _unused(self, reader: PageReader, parts: Sequence[StoredMessage]) -> list[StoredMessage]:
        """Cargo, edges and pieces that nothing refers to."""
        owners = {message.subject: message.subject[self._skip :].split(".") for message in parts}
        known = [each for each in owners.values() if not each[1].startswith((HASHED, PIECE))]
        await reader.load(text_of(each[1]) for each in known)
        used: set[str] = set()
        for subject, (kind, owner, name) in owners.items():
            if owner.startswith(HASHED):
                used.add(subject)  # whose it is cannot be read back
            elif owner != PIECE and (seen := reader.job(text_of(owner))) is not None:
                rare = seen.entry.rare
                is_edge = kind == "x" and name.rpartition("-")[0] == seen.card.page
                if is_edge or (kind == "o" and rare is not None and rare.cargo_at == name):
                    used.add(subject)
        if any(each[1] == PIECE for each in owners.values()):
            schedules = await self._store.matching(f"{self._subjects.line}c.*")
            used |= {name for value in schedules.values() for name in pieces(value.body)}
        return [message for message in parts if message.subject not in used]


# What stands for the owner of the pieces of a schedule.
PIECE = "=p"


def _old(messages: Sequence[NatsMessage], now: datetime) -> list[StoredMessage]:
    """The messages before the first one that is not old enough."""
    found: list[StoredMessage] = []
    for message in messages:
        subject, sequence = header(message.headers, b"Nats-Subject"), header(message.headers, b"Nats-Sequence")
        stamp = header(message.headers, b"Nats-Time-Stamp")
        if status(message.headers) or subject is None or sequence is None or stamp is None:
            break
        if msgspec.convert(stamp.decode(), datetime) > now - OLD_ENOUGH:
            break
        found.append(StoredMessage(subject.decode(), int(sequence), message.body))
    return found
