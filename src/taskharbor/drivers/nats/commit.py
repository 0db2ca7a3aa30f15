"""The commit of a step: what its draft comes to, in cards, keys and pages."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime

from msgspec.structs import replace

from taskharbor.core.job import JobRecord
from taskharbor.core.keys import KeyRecord
from taskharbor.core.states import TERMINAL
from taskharbor.core.steps.draft import Draft
from taskharbor.core.steps.needs import StoredEdge
from taskharbor.drivers.nats.buckets import EndedCounts
from taskharbor.drivers.nats.cargo import PackedCargo, packed
from taskharbor.drivers.nats.large import split
from taskharbor.drivers.nats.names import PageNames
from taskharbor.drivers.nats.pages import (
    HAS_CHILDREN,
    HAS_PARENTS,
    NO_RARE,
    EntryPlace,
    JobCard,
    JobCargo,
    JobPage,
    KeyNote,
    PagedJob,
    born,
    entry_of,
    micros,
    pack,
    record,
    stored,
)
from taskharbor.drivers.nats.reader import PageReader, SeenJob, SeenPage, with_met
from taskharbor.drivers.nats.store import FRESH_FOR, KEPT_BARRED, MOST_MESSAGES, Outdated, Streams, StreamWrite, removal
from taskharbor.drivers.nats.subjects import bucket_of, flow_of
from taskharbor.drivers.nats.sums import sums_of
from taskharbor.drivers.nats.watch import LineWatch
from taskharbor.errors import DriverClosed, DriverError, DriverUnavailable, InvalidJob

PAGE = 100
# A page of so many jobs fits into a message, whatever happens to them.
MOST_IN_PAGE = 2000
# Edges that fit a card; the others are stored in chunks of as many.
EDGES = 1000
Below = tuple[str, int, str]


class TooManyPages(DriverError):
    """A step changes more pages than one batch can hold: nothing was written."""


def page_size(jobs: int, pages: int, usual: int) -> int:
    """How many of these jobs share a page, so that they fit into so many."""
    size = max(usual, -(-jobs // pages))
    if size > MOST_IN_PAGE:
        raise InvalidJob(f"{jobs} jobs cannot be stored together: enqueue at most {MOST_IN_PAGE * pages} at a time")
    return size


class PageEdit:
    """A page that is written: its entries, and what else it says."""

    def __init__(self, seen: SeenPage) -> None:
        assert seen.page is not None
        self.seen = seen
        self.entries: list[PagedJob | None] = list(seen.page.entries)
        self.keys = seen.page.keys
        self.sums = seen.page.sums

    def page(self) -> JobPage:
        assert self.seen.page is not None
        before = self.seen.page
        revived = before.revived or self.seen.ended is not None
        return replace(before, entries=self.entries, keys=self.keys, sums=self.sums, revived=revived)


class StepCommit:
    """Writes a draft: all of it, or nothing."""

    def __init__(self, store: Streams, watch: LineWatch, reader: PageReader, draft: Draft) -> None:
        self._store, self._watch, self._reader, self._draft = store, watch, reader, draft
        self._subjects = store.subjects
        self._begun = asyncio.get_running_loop().time()
        self._edits: dict[str, PageEdit] = {}
        self._new: list[tuple[str, str, JobPage]] = []
        self._places: dict[str, EntryPlace] = {}
        self._cards: dict[str, JobCard] = {}
        self._first: list[StreamWrite] = []  # into JOBS, before the commit
        self._barred: list[StreamWrite] = []
        self._undo: list[tuple[str, bytes]] = []
        self._after: list[StreamWrite] = []  # into JOBS, after the commit
        self._notes: dict[str, KeyNote] = {}
        self._below: defaultdict[str, list[Below]] = defaultdict(list)
        self._names = PageNames()
        self.revisions: dict[str, int] = {}
        self._written: dict[str, JobPage] = {}

    async def is_current(self) -> bool:
        """Whether the pages that were read are still as they were."""
        seen = {self._subjects.page(each.flow, each.name): each.rev for each in self._reader.pages.values()}
        found = await self._store.read(seen)
        return all(found[subject].revision == rev for subject, rev in seen.items())

    def claimed(self, ids: Iterable[str]) -> list[JobRecord]:
        """The records of jobs as they were written."""
        found: list[JobRecord] = []
        for id in ids:
            seen = self._reader.job(id)
            assert seen is not None
            entry = self._written[seen.place.page].entries[seen.place.position]
            assert entry is not None
            known = seen.record
            cargo = JobCargo(known.result, known.failures, known.last_error, known.payload)
            found.append(record(entry, self._written[seen.place.page], seen.place, seen.card, cargo))
        return found

    async def commit(self) -> None:
        """Write everything; `Outdated` if something that was read has changed."""
        await self._prolong()
        await self._plan()
        writes = await self._line_writes()
        if not writes and not self._barred:
            return
        if len(writes) > MOST_MESSAGES:
            raise TooManyPages(
                f"this changes jobs in {len(writes)} pages at once, and the server takes {MOST_MESSAGES}: change fewer "
                "jobs at a time"
            )
        for write in self._barred:
            await self._store.put(write)
        stored_first = await self._store_first()
        try:
            if asyncio.get_running_loop().time() - self._begun > FRESH_FOR:
                raise Outdated
            last = await self._store.commit(writes)
        except Outdated:
            await self._take_back(stored_first)
            raise
        self._apply(writes, last)
        await self._clean_up(last)

    # what is written

    async def _prolong(self) -> None:
        """Keep the records of workflows that have to stay."""
        for workflow, until in self._draft.keep.items():
            at = micros(until)
            for seen in await self._reader.pages_of(workflow):
                if seen.page is None or seen.page.workflow != workflow:
                    continue
                for position, entry in enumerate(seen.page.entries):
                    if entry is not None and entry.keep_until is not None and entry.keep_until < at:
                        edit = self._edit(seen)
                        edit.entries[position] = replace(entry, keep_until=at)
                        self._update_kept(entry.id, until)

    def _update_kept(self, id: str, until: datetime) -> None:
        job = self._draft.jobs.known.get(id)
        if job is not None and id in self._draft.jobs.before:
            self._draft.put(replace(job, keep_until=until))

    def _edit(self, seen: SeenPage) -> PageEdit:
        edit = self._edits.get(seen.name)
        if edit is None:
            edit = self._edits[seen.name] = PageEdit(seen)
        return edit

    async def _plan(self) -> None:
        changed = [(id, before, after) for id, before, after in self._draft.jobs.changes() if before is not after]
        changed_edges = self._changed_edges()
        new = [after for id, _, after in changed if after is not None and self._reader.job(id) is None]
        self._place_new(new)
        for id, _, after in changed:
            seen = self._reader.job(id)
            if seen is None:
                continue
            if after is None:
                self._remove(id, seen)
            else:
                self._change(seen, after)
        for (child, position), edge in changed_edges.items():
            self._satisfy(child, position, edge)
        self._add_below()
        self._build_new(new)
        self._add_sums()
        self._plan_keys()

    def _changed_edges(self) -> dict[tuple[str, int], StoredEdge]:
        found: dict[tuple[str, int], StoredEdge] = {}
        for (child, position), before, after in self._draft.edges.changes():
            if after is None:
                continue  # one of its ends is removed
            found[child, position] = after
            if before is None:
                self._below[after.parent].append((child, position, after.policy))
        return found

    def _place_new(self, new: Sequence[JobRecord]) -> None:
        """Put new jobs into new pages, those of one queue and workflow together."""
        groups: dict[tuple[str, str | None], list[JobRecord]] = {}
        for job in new:
            groups.setdefault((job.queue, job.workflow_id), []).append(job)
        size = page_size(len(new), MOST_MESSAGES // 2, PAGE)
        for (queue, workflow), jobs in groups.items():
            for first in range(0, len(jobs), size):
                part = jobs[first : first + size]
                flow, name = flow_of(workflow), self._names.new(micros(part[0].created_at))
                self._new.append(
                    (
                        flow,
                        name,
                        JobPage(
                            queue,
                            [None] * len(part),
                            0,
                            workflow,
                            offset=len(self._new),
                            created=micros(part[0].created_at),
                        ),
                    )
                )
                self._places |= {job.id: EntryPlace(flow, name, position) for position, job in enumerate(part)}

    def _build_new(self, new: Sequence[JobRecord]) -> None:
        pages = {name: page for _, name, page in self._new}
        edges: defaultdict[str, dict[int, StoredEdge]] = defaultdict(dict)
        for (child, position), _, edge in self._draft.edges.changes():
            if edge is not None and child in self._places:
                edges[child][position] = edge
        for number, job in enumerate(new):
            place = self._places[job.id]
            above = [edges[job.id][position] for position in sorted(edges[job.id])]
            below = tuple(self._below.get(job.id, ()))
            met = b""
            for edge in above:
                met = with_met(met, edge.position, True) if edge.satisfied else met
            flags = (HAS_PARENTS if above else 0) | (HAS_CHILDREN if below else 0)
            cargo = packed(job, job.payload, len(pages[place.page].entries))
            self._first += cargo.writes(self._subjects, job.id)
            rare = replace(NO_RARE, edges=flags, met=met)
            pages[place.page].entries[place.position] = entry_of(job, number, rare, cargo.inline, cargo.name)
            self._store_card(job, place, tuple((edge.parent, edge.policy) for edge in above), below)

    def _store_card(
        self, job: JobRecord, place: EntryPlace, above: tuple[tuple[str, str], ...], below: tuple[Below, ...]
    ) -> None:
        chunks = -(-max(len(above), len(below)) // EDGES) - 1 if above or below else 0
        for number in range(chunks):
            first = (number + 1) * EDGES
            body = pack((above[first : first + EDGES], below[first : first + EDGES]))
            self._first.append(StreamWrite(self._subjects.edges(job.id, place.page, number), body))
        card = JobCard(
            place.page,
            job.type,
            job.payload,
            micros(job.created_at),
            job.max_attempts,
            job.max_crashes,
            job.timeout,
            job.workflow_id,
            job.headers,
            job.tags,
            above[:EDGES],
            below[:EDGES],
            max(chunks, 0),
        )
        body = pack(card)
        if len(body) > self._store.server.max_payload - 1024:
            raise InvalidJob(
                f"job {job.id} has {len(body)} bytes, and the server takes messages of "
                f"{self._store.server.max_payload}: raise max_payload there, or enqueue less in one job"
            )
        revision, leftover = self._reader.cards.get(job.id, (0, None))
        if leftover is not None:
            self._bar(self._reader.pages.get(leftover.page))
        self._first.append(StreamWrite(self._subjects.card(job.id), body, revision))
        self._undo.append((self._subjects.card(job.id), b""))

    def _bar(self, seen: SeenPage | None) -> None:
        """Have a page that may be on its way never come."""
        if seen is not None and seen.page is None and seen.rev >= 0:  # else it is barred already
            self._barred.append(removal(self._subjects.page(seen.flow, seen.name), seen.rev, KEPT_BARRED))
            seen.page, seen.rev = None, -1

    def _change(self, seen: SeenJob, after: JobRecord) -> None:
        page = self._reader.pages[seen.place.page]
        before = seen.entry.rare or NO_RARE
        if _same_cargo(seen.record, after):
            cargo = PackedCargo(before.cargo, before.cargo_at)
        else:
            cargo = packed(after, seen.card.payload, len(page.page.entries) if page.page is not None else 0)
            self._first += cargo.writes(self._subjects, after.id)
            if before.cargo_at is not None and before.cargo_at != cargo.name:
                self._after.append(removal(self._subjects.cargo(after.id, before.cargo_at), None))
        old = self._edit(page).entries[seen.place.position]
        edges = NO_RARE if old is None or old.rare is None else old.rare
        entry = entry_of(after, seen.entry.number, edges, cargo.inline, cargo.name)
        self._edit(page).entries[seen.place.position] = entry

    def _remove(self, id: str, seen: SeenJob) -> None:
        page = self._reader.pages[seen.place.page]
        self._edit(page).entries[seen.place.position] = None
        self._after.append(removal(self._subjects.card(id), self._reader.cards[id][0]))
        for number in range(seen.card.chunks):
            self._after.append(removal(self._subjects.edges(id, seen.card.page, number), None))
        if seen.entry.rare is not None and seen.entry.rare.cargo_at is not None:
            self._after.append(removal(self._subjects.cargo(id, seen.entry.rare.cargo_at), None))

    def _satisfy(self, child: str, position: int, edge: StoredEdge) -> None:
        """Write whether an edge is satisfied."""
        seen = self._reader.job(child)
        if seen is None:
            return  # a new job: see `_build_new`
        edit = self._edit(self._reader.pages[seen.place.page])
        entry = edit.entries[seen.place.position]
        if entry is not None:
            rare = entry.rare or NO_RARE
            rare = replace(rare, met=with_met(rare.met, position, edge.satisfied))
            edit.entries[seen.place.position] = replace(entry, rare=rare)

    def _add_below(self) -> None:
        """Note edges to new jobs at parents that exist already."""
        for parent, edges in self._below.items():
            seen = self._reader.job(parent)
            if seen is None or parent in self._places:
                continue
            edit = self._edit(self._reader.pages[seen.place.page])
            entry = edit.entries[seen.place.position]
            if entry is not None:
                rare = entry.rare or NO_RARE
                rare = replace(rare, edges=rare.edges | HAS_CHILDREN, below=(*rare.below, *edges))
                edit.entries[seen.place.position] = replace(entry, rare=rare)

    def _add_sums(self) -> None:
        if self._draft.tallies:
            edit = next(iter(self._edits.values()))
            edit.sums = sums_of(edit.sums, self._draft.tallies)

    def _plan_keys(self) -> None:
        for key, _, after in self._draft.keys.changes():
            revision, note = self._reader.notes.get(key, (0, None))
            if after is None:
                self._free(key, revision, note)
            else:
                self._take(key, after, revision, note)

    def _free(self, key: str, revision: int, note: KeyNote | None) -> None:
        if note is None:
            return
        if note.is_flow:
            seen = self._reader.pages.get(note.page)
            if seen is not None and seen.page is not None:
                edit = self._edit(seen)
                edit.keys = tuple(each for each in edit.keys if each[0] != key)
        self._after.append(removal(self._subjects.key(key), revision))

    def _take(self, key: str, known: KeyRecord, revision: int, note: KeyNote | None) -> None:
        """Give a key to a job or workflow. The page of whoever had it must not change, or must never come."""
        owner = self._draft.jobs.known.get(known.owner)
        is_flow = owner is None or owner.idempotency_key != key  # a workflow may have the id of one of its jobs
        if is_flow:
            workflow: str | None = known.owner
            flow = flow_of(workflow)
            index = next((number for number, (each, _, _) in enumerate(self._new) if each == flow), None)
            if index is None:  # a group without jobs of its workflow
                index = len(self._new)
                self._new.append((flow, self._names.new(0), JobPage("", [], 0, workflow, offset=index)))
            _, name, page = self._new[index]
            entry = (key, known.digest, stored(known.expires_at))
            self._new[index] = flow, name, replace(page, keys=(*page.keys, entry))
        else:
            job = self._draft.existing(known.owner)
            workflow, is_new = job.workflow_id, job.id in self._places
            seen = self._reader.job(job.id)
            name = self._places[job.id].page if is_new or seen is None else seen.place.page
        if note is not None:
            self._bar_owner(note)
        ours = KeyNote(
            key, known.owner, known.digest, stored(known.expires_at), name, workflow, is_flow
        )  # fmt: skip
        self._first.append(StreamWrite(self._subjects.key(key), pack(ours), revision))
        self._undo.append((self._subjects.key(key), b"" if note is None else pack(note)))

    def _bar_owner(self, note: KeyNote) -> None:
        seen = self._reader.pages.get(note.page)
        if seen is None:
            return
        if seen.page is None:
            self._bar(seen)
        else:
            self._edit(seen)  # rewritten as it is: who read it before cannot commit

    # the commit

    async def _line_writes(self) -> list[StreamWrite]:
        """The batch for LINE: pages that change, others that were read and must not have changed, schedules."""
        ended = EndedCounts(self._store)
        writes = self._page_writes(ended) + self._schedule_writes()
        if not writes:
            return []
        for seen in self._reader.pages.values():
            if seen.rev >= 0 and seen.name not in self._edits:
                writes += self._compare(seen)
        return writes + await ended.writes()

    def _page_writes(self, ended: EndedCounts) -> list[StreamWrite]:
        """Pages that change, and new ones."""
        writes: list[StreamWrite] = []
        for name, edit in self._edits.items():
            seen, page = edit.seen, edit.page()
            self._written[name] = page
            writes.append(StreamWrite(self._subjects.page(seen.flow, name), pack(page), seen.rev))
            if seen.ended is not None and seen.page is not None:
                ended.leave(bucket_of(name), seen.page)
        for flow, name, page in self._new:
            self._written[name] = page
            writes.append(StreamWrite(self._subjects.page(flow, name), pack(page), 0))
        return writes

    def _schedule_writes(self) -> list[StreamWrite]:
        writes: list[StreamWrite] = []
        for name, _, schedule in self._draft.schedules.changes():
            revision, _, old = self._reader.schedules[name]
            subject = self._subjects.schedule(name)
            self._after += [removal(piece, None) for piece in old]
            if schedule is None:
                writes.append(removal(subject, revision))
            else:
                body, first = split(self._subjects, pack(schedule), self._store.server.max_payload - 4096)
                self._first += first
                writes.append(StreamWrite(subject, body, revision))
        return writes

    def _compare(self, seen: SeenPage) -> list[StreamWrite]:
        """What is written so that a page which was only read must not have changed."""
        subject = self._subjects.page(seen.flow, seen.name)
        if seen.page is None:
            return []
        if seen.ended is not None:
            return [removal(subject, seen.rev)]
        return [StreamWrite(subject, pack(seen.page), seen.rev)]

    async def _store_first(self) -> dict[str, int]:
        """Store what the pages will refer to; the revisions."""
        if not self._first:
            return {}
        revisions = await self._store.store_all(self._first)
        return {write.subject: revision for write, revision in zip(self._first, revisions, strict=True)}

    async def _take_back(self, revisions: dict[str, int]) -> None:
        """Remove what was stored for a commit that was refused, and give keys back."""
        writes = [
            StreamWrite(subject, before, revisions[subject]) if before else removal(subject, revisions[subject])
            for subject, before in self._undo
            if subject in revisions
        ]
        known = {subject for subject, _ in self._undo}
        writes += [removal(write.subject, None) for write in self._first if write.subject not in known]
        with suppress(DriverUnavailable):
            await self._clean(writes)

    def _apply(self, writes: Sequence[StreamWrite], last: int) -> None:
        """Take what was committed into the line in memory, and wake waiters."""
        first = last - len(writes) + 1
        self.revisions = {write.subject: revision for revision, write in enumerate(writes, first)}
        follows = self._watch.follows
        flows = {self._subjects.page(flow, name): (flow, name) for flow, name, _ in self._new}
        flows |= {
            self._subjects.page(seen.flow, seen.name): (seen.flow, seen.name) for seen in self._reader.pages.values()
        }
        for revision, write in enumerate(writes, first):
            if write.subject in flows:
                flow, name = flows[write.subject]
                page = self._written.get(name)
                if write.body and page is not None:
                    page = self._written[name] = born(page, revision)
                    if follows:
                        self._watch.took(self._store.line.put(flow, name, revision, page))
                elif not write.body and follows:
                    self._store.line.remove(name, revision)
            else:
                self._watch.applied(write.subject, revision, write.body)

    async def _clean_up(self, last: int) -> None:
        """Remove what nothing refers to any more, and tell who waits. Whatever is not done is a leftover."""
        ended = any(
            after is not None and after.state in TERMINAL and (before is None or before.state not in TERMINAL)
            for _, before, after in self._draft.jobs.changes()
        )
        with suppress(Outdated, DriverUnavailable, DriverClosed):  # the commit stands
            if ended:
                self._store.notify(await self._store.server.wire(), "ends")
            if self._after:
                await self._clean(self._after)
            await self._empty()

    async def _clean(self, writes: Sequence[StreamWrite]) -> None:
        try:
            await self._store.store_all(writes)
        except Outdated:
            for write in writes:
                with suppress(Outdated):
                    await self._store.put(write)

    async def _empty(self) -> None:
        """Remove pages that list nothing any more: first from among the ended, then from LINE."""
        empty = [
            edit.seen for edit in self._edits.values() if not any(edit.entries) and not edit.keys and not edit.sums
        ]
        if not empty:
            return
        ended = {self._subjects.ended(seen.flow, seen.name): seen for seen in empty}
        found = await self._store.read(ended)
        # Also those that are not there: a worker may be about to store an earlier version, which must not come then.
        answers = await self._store.swap([removal(subject, found[subject].revision) for subject in ended])
        removals = [
            removal(subject, self.revisions[subject])
            for seen, answer in zip(empty, answers, strict=True)
            if not isinstance(answer, Outdated)  # else it is left to the upkeep
            and (subject := self._subjects.page(seen.flow, seen.name))
        ]
        for write, answer in zip(removals, await self._store.swap(removals), strict=True):
            if not isinstance(answer, Outdated):
                self._store.line.remove(write.subject.rpartition(".")[2], answer)


def _same_cargo(before: JobRecord, after: JobRecord) -> bool:
    return (
        before.result is after.result
        and before.failures is after.failures
        and before.last_error is after.last_error
        and before.payload is after.payload
    )
