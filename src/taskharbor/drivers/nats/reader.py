"""Reads of one attempt at a step: each value once, with its revision, so that the commit can compare it.

A job exists if the page that its card names lists it. A page is where LINE has it, else among the ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import itemgetter

import msgspec
from msgspec import Struct

from taskharbor.core.job import JobRecord
from taskharbor.core.schedule import Schedule
from taskharbor.core.steps.needs import StoredEdge
from taskharbor.drivers.nats.damage import UNDECODABLE
from taskharbor.drivers.nats.large import pieces, whole
from taskharbor.drivers.nats.pages import (
    IS_DONE,
    NO_RARE,
    EntryPlace,
    JobCard,
    JobCargo,
    JobPage,
    KeyNote,
    PagedJob,
    born,
    moment,
    read_card,
    read_cargo,
    read_note,
    read_page,
    record,
    seq_of,
)
from taskharbor.drivers.nats.store import StoredValue, Streams
from taskharbor.drivers.nats.subjects import flow_of

read_schedule = msgspec.msgpack.Decoder(Schedule).decode
EdgesOfJob = tuple[tuple[tuple[str, str], ...], tuple[tuple[str, int, str], ...]]  # above and below
read_edges = msgspec.msgpack.Decoder(EdgesOfJob).decode
# How often a page that is nowhere is looked for: it may have been on its way.
LOOKS = 3


class SeenPage(Struct, gc=False, eq=False):
    """A page as it was read. `rev` is the revision of its subject in LINE, also if LINE has none.

    `ended`: it was found among the ended, at that revision.
    """

    flow: str
    name: str
    rev: int
    page: JobPage | None = None
    ended: int | None = None
    positions: dict[str, int] | None = None

    def position(self, id: str) -> int | None:
        if self.positions is None:
            entries = () if self.page is None else self.page.entries
            self.positions = {entry.id: place for place, entry in enumerate(entries) if entry is not None}
        return self.positions.get(id)


class SeenJob(Struct, gc=False, eq=False):
    """A job as it was read, with its edges."""

    record: JobRecord
    card: JobCard
    entry: PagedJob
    place: EntryPlace
    above: tuple[tuple[str, str], ...]
    below: tuple[tuple[str, int, str], ...]


class PageReader:
    """The values that were read."""

    def __init__(self, store: Streams) -> None:
        self.store = store
        self.subjects = store.subjects
        self.cards: dict[str, tuple[int, JobCard | None]] = {}
        self.pages: dict[str, SeenPage] = {}
        self.jobs: dict[str, SeenJob | None] = {}
        self.notes: dict[str, tuple[int, KeyNote | None]] = {}
        self.schedules: dict[str, tuple[int, Schedule | None, list[str]]] = {}  # the last are the names of its pieces
        self.is_torn = False  # what a page refers to was not there: the page has changed since, or it was lost
        self._flows: dict[str, list[SeenPage]] = {}

    async def load(self, ids: Iterable[str]) -> None:
        """Read these jobs."""
        wanted = [id for id in dict.fromkeys(ids) if id not in self.jobs]
        if not wanted:
            return
        names = {self.subjects.card(id): id for id in wanted}
        for subject, value in (await self.store.read(names)).items():
            self.cards[names[subject]] = value.revision, _card(value)
        places = {id: card for id in wanted if (card := self.cards[id][1]) is not None}
        await self.load_pages((flow_of(card.workflow), card.page) for card in places.values())
        for id in wanted:
            self.jobs[id] = None
        found: list[tuple[str, JobCard, JobPage, EntryPlace, PagedJob]] = []
        for id, card in places.items():
            seen = self.pages[card.page]
            position = seen.position(id)
            if position is not None and seen.page is not None:
                entry = seen.page.entries[position]
                assert entry is not None
                found.append((id, card, seen.page, EntryPlace(seen.flow, seen.name, position), entry))
        cargos = await self._cargos(entry for *_, entry in found)
        chunks = await self._chunks((id, card) for id, card, *_ in found)
        for id, card, page, place, entry in found:
            rare = entry.rare or NO_RARE
            above, below = card.above, (*card.below, *rare.below)
            for more_above, more_below in chunks.get(id, ()):
                above += more_above
                below += more_below
            self.jobs[id] = SeenJob(record(entry, page, place, card, cargos.get(id)), card, entry, place, above, below)

    async def load_pages(self, places: Iterable[tuple[str, str]]) -> None:
        """Read pages, from LINE or from among the ended."""
        wanted = {name: flow for flow, name in places if name not in self.pages}
        for _ in range(LOOKS):
            if not wanted:
                return
            in_line = {self.subjects.page(flow, name): name for name, flow in wanted.items()}
            for subject, value in (await self.store.read(in_line)).items():
                name = in_line[subject]
                page = read_page(value.body) if value.body else None
                self._see(wanted[name], name, value.revision, page)
            absent = [name for name in wanted if self.pages[name].page is None]
            if not absent:
                return
            among_ended = {self.subjects.ended(wanted[name], name): name for name in absent}
            for subject, value in (await self.store.read(among_ended)).items():
                if value.body:
                    seen = self.pages[among_ended[subject]]
                    seen.page, seen.ended = read_page(value.body), value.revision
            wanted = {name: wanted[name] for name in absent if self.pages[name].page is None}

    def _see(self, flow: str, name: str, rev: int, page: JobPage | None) -> SeenPage:
        seen = self.pages[name] = SeenPage(flow, name, rev, None if page is None else born(page, rev))
        return seen

    async def _cargos(self, entries: Iterable[PagedJob]) -> dict[str, JobCargo]:
        """What is stored apart, because it is large."""
        wanted = {
            self.subjects.cargo(entry.id, entry.rare.cargo_at): entry.id
            for entry in entries
            if entry.rare is not None and entry.rare.cargo_at is not None
        }
        if not wanted:
            return {}
        found = await self.store.read(wanted)
        self.is_torn = self.is_torn or not all(value.body for value in found.values())
        return {wanted[name]: read_cargo(value.body) for name, value in found.items() if value.body}

    async def _chunks(self, cards: Iterable[tuple[str, JobCard]]) -> dict[str, list[EdgesOfJob]]:
        """EdgesOfJob that do not fit the cards."""
        wanted = {self.subjects.edges(id, card.page, number): id for id, card in cards for number in range(card.chunks)}
        found: dict[str, list[EdgesOfJob]] = {}
        if wanted:
            values = await self.store.read(wanted)
            for name, id in wanted.items():
                if values[name].body:
                    found.setdefault(id, []).append(read_edges(values[name].body))
        return found

    def job(self, id: str) -> SeenJob | None:
        """A job that was loaded."""
        return self.jobs.get(id)

    async def look(self, ids: Sequence[str], above: Sequence[str], below: Sequence[str]) -> list[StoredEdge]:
        """Read jobs, and the edges above and below some with the jobs at their other ends."""
        await self.load((*ids, *above, *below))
        ends = [parent for id in above if (seen := self.job(id)) is not None for parent, _ in seen.above]
        ends += [child for id in below if (seen := self.job(id)) is not None for child, _, _ in seen.below]
        await self.load(ends)
        edges: list[StoredEdge] = []
        for id in above:
            if (seen := self.job(id)) is not None:
                edges += [self._edge(seen, position) for position in range(len(seen.above))]
        for id in below:
            if (seen := self.job(id)) is None:
                continue
            for child, position, _ in seen.below:
                other = self.job(child)
                if other is not None and position < len(other.above) and other.above[position][0] == id:
                    edges.append(self._edge(other, position))
        return edges

    def _edge(self, child: SeenJob, position: int) -> StoredEdge:
        parent, policy = child.above[position]
        rare = child.entry.rare or NO_RARE
        return StoredEdge(child.record.id, position, parent, policy, is_met(rare.met, position))

    # workflows

    async def pages_of(self, workflow: str) -> list[SeenPage]:
        """All pages of a workflow."""
        if workflow in self._flows:
            return self._flows[workflow]
        flow = flow_of(workflow)
        names: dict[str, None] = {}
        await self._note_pages(flow, names)
        if await self._note_ended(flow, names):
            await self._note_pages(flow, names)  # again: some may have come back into LINE meanwhile
        await self.load_pages((flow, name) for name in names)
        self._flows[workflow] = [seen for name in names if (seen := self.pages[name]).page is not None]
        return self._flows[workflow]

    async def _note_pages(self, flow: str, names: dict[str, None]) -> None:
        """Note the pages of a workflow in LINE."""
        for subject, value in (await self.store.matching(self.subjects.pages_of(flow))).items():
            name = subject.rpartition(".")[2]
            names[name] = None
            if name not in self.pages:
                self._see(flow, name, value.revision, read_page(value.body))

    async def _note_ended(self, flow: str, names: dict[str, None]) -> bool:
        """Note the ended pages of a workflow; whether there are any."""
        found = await self.store.matching(self.subjects.ended_of(flow))
        names |= {subject.rpartition(".")[2]: None for subject in found}
        return bool(found)

    async def entries_of(self, workflow: str) -> list[PagedJob]:
        """The entries of a workflow in the order of their storing."""
        found = [
            (seq_of(seen.page, entry), entry)
            for seen in await self.pages_of(workflow)
            if seen.page is not None and seen.page.workflow == workflow
            for entry in seen.page.entries
            if entry is not None
        ]
        return [entry for _, entry in sorted(found, key=itemgetter(0))]

    async def kept_until(self, workflow: str) -> datetime | None:
        """Until when the last record of a workflow is kept; None while one has not ended."""
        times = [entry.keep_until for entry in await self.entries_of(workflow)]
        if None in times or not times:
            return None
        return moment(max(time for time in times if time is not None))

    async def members(self, workflow: str, most: int) -> list[SeenJob]:
        """Up to `most` jobs of a workflow, the newest first."""
        ids = [entry.id for entry in reversed(await self.entries_of(workflow))][:most]
        await self.load(ids)
        return [seen for id in ids if (seen := self.job(id)) is not None]

    async def unfinished(self, workflow: str) -> int:
        """How many jobs of a workflow have not ended."""
        return sum(entry.state < IS_DONE for entry in await self.entries_of(workflow))

    # keys and schedules

    async def load_notes(self, keys: Iterable[str]) -> None:
        """Read the notes of keys, and the pages that confirm them."""
        wanted = {self.subjects.key(key): key for key in keys if key not in self.notes}
        if not wanted:
            return
        for subject, value in (await self.store.read(wanted)).items():
            note = read_note(value.body) if value.body else None
            self.notes[wanted[subject]] = value.revision, note
        notes = [note for key in wanted.values() if (note := self.notes[key][1]) is not None]
        await self.load_pages((flow_of(note.workflow), note.page) for note in notes)
        await self.load(note.owner for note in notes if not note.is_flow)

    async def load_schedules(self, names: Iterable[str]) -> None:
        """Read schedules."""
        wanted = {self.subjects.schedule(name): name for name in names}
        for subject, value in (await self.store.read(wanted)).items():
            body = await whole(self.store, value.body)
            schedule = read_schedule(body) if body else None
            self.schedules[wanted[subject]] = value.revision, schedule, pieces(value.body)


def is_met(met: bytes, position: int) -> bool:
    """Whether the edge at this position is satisfied."""
    index = position >> 3
    return index < len(met) and bool(met[index] & (1 << (position & 7)))


def with_met(met: bytes, position: int, satisfied: bool) -> bytes:
    """The bits with the one at this position changed."""
    bits = bytearray(met.ljust((position >> 3) + 1, b"\0"))
    if satisfied:
        bits[position >> 3] |= 1 << (position & 7)
    else:
        bits[position >> 3] &= ~(1 << (position & 7)) & 255
    return bytes(bits)


def _card(value: StoredValue) -> JobCard | None:
    if not value.body:
        return None
    try:
        return read_card(value.body)
    except UNDECODABLE:
        return None
