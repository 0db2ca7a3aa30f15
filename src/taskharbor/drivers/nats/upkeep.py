"""Upkeep: ended pages leave LINE, totals go to their minutes, what was kept long enough is forgotten.

A page leaves LINE only after it has been stored among the ended (or removed there, if it is empty), at the revision
that was read before: whoever is late with that cannot bring an old version back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from msgspec.structs import replace

from taskharbor.core.steps import forget
from taskharbor.drivers.nats.buckets import EndedCounts
from taskharbor.drivers.nats.commit import TooManyPages
from taskharbor.drivers.nats.drafts import PageSteps
from taskharbor.drivers.nats.leftovers import Leftovers
from taskharbor.drivers.nats.line import HeldPage, overdue
from taskharbor.drivers.nats.pages import JobPage, RunSum, is_ended, micros, pack, read_page
from taskharbor.drivers.nats.store import FRESH_FOR, Outdated, Streams, StreamWrite, TooMany, removal
from taskharbor.drivers.nats.subjects import bucket_of
from taskharbor.drivers.nats.sums import merged, read_sums
from taskharbor.drivers.nats.watch import LineWatch

# Pages of one batch, and of one round.
BATCH, MOST = 400, 6000
# Totals of one page that are moved at a time.
MOST_SUMS = 500
# A hint for prune is valid for this long.
SLOT = 300_000_000

logger = logging.getLogger("taskharbor.nats")


class NatsUpkeep:
    """What workers do for the store beside their jobs."""

    def __init__(self, store: Streams, watch: LineWatch, runner: PageSteps) -> None:
        self._store, self._watch, self._runner = store, watch, runner
        self._subjects = store.subjects
        self._leftovers = Leftovers(store)

    # ended pages leave LINE

    async def tidy(self, time: float) -> int:
        """Move ended pages out of LINE, those of this worker's share; return how many."""
        line = self._store.line
        line.compact()
        share = self._watch.rank(self._watch.name, time)
        pages = [held for held in line.ended(MOST) if share.has(held.name) or time - (held.passed or time) > 5.0]
        for held in line.ended(MOST) if share.among > 1 else ():
            held.passed = held.passed or time
        for held in line.laden(BATCH):
            if share.has(held.name):
                await self._fold(held)
        moved = 0
        for first in range(0, len(pages), BATCH):
            moved += await self._tidy(pages[first : first + BATCH], time)
        return moved

    async def _tidy(self, pages: Sequence[HeldPage], time: float) -> int:
        """Move some pages; after a conflict, half as many. Those that have changed since `time` stay."""
        seen = [it for it in self._store.line.as_they_are(pages) if all(map(is_ended, it[2].entries))]
        if not seen or is_stale(time):
            return 0
        try:
            await self._store_ended(seen, time)
            await self._leave(seen)
        except (Outdated, TooMany):
            if len(pages) == 1:
                return 0
            half = len(pages) // 2
            return await self._tidy(pages[:half], time) + await self._tidy(pages[half:], time)
        return len(seen)

    async def _store_ended(self, pages: Sequence[tuple[HeldPage, int, JobPage]], time: float) -> None:
        """Store pages among the ended, and say when they may be forgotten."""
        before = {self._subjects.ended(held.flow, held.name): 0 for held, *_ in pages}
        if any(page.revived for _, _, page in pages):
            before = await self._revisions(pages)
        writes: list[StreamWrite] = []
        for held, _, page in pages:
            subject = self._subjects.ended(held.flow, held.name)
            if is_empty(page):
                writes.append(removal(subject, before[subject]))  # also if it is not there: it must not come any more
                continue
            writes.append(StreamWrite(subject, pack(replace(page, sums=(), revived=False)), before[subject]))
            if (first := first_overdue(page)) is not None:
                writes.append(StreamWrite(self._subjects.hint(first // SLOT, held.name), held.flow.encode()))
        if is_stale(time):
            raise Outdated
        try:
            await self._store.store_all(writes)
        except Outdated:
            # Somebody has stored some of them already, and not come further: these are read and replaced.
            found = await self._revisions(pages)
            await self._store.store_all([each._replace(expected=found.get(each.subject)) for each in writes])

    async def _revisions(self, pages: Sequence[tuple[HeldPage, int, JobPage]]) -> dict[str, int]:
        """The revisions among the ended, of nothing newer than these pages: LINE has them still after the look."""
        found = await self._store.read(self._subjects.ended(held.flow, held.name) for held, *_ in pages)
        line = await self._store.read(self._subjects.page(held.flow, held.name) for held, *_ in pages)
        if any(line[self._subjects.page(held.flow, held.name)].revision != rev for held, rev, _ in pages):
            raise Outdated
        return {subject: value.revision for subject, value in found.items()}

    async def _leave(self, pages: Sequence[tuple[HeldPage, int, JobPage]]) -> None:
        """Remove pages from LINE, and count their jobs and their totals, in one batch."""
        ended = EndedCounts(self._store)
        slots: set[int] = set()
        totals: defaultdict[int, list[RunSum]] = defaultdict(list)
        for held, _, page in pages:
            if not is_empty(page):
                ended.arrive(bucket_of(held.name), page)
                if (first := first_overdue(page)) is not None:
                    slots.add(first // SLOT)
            for total in page.sums:
                totals[total.minute].append(total)
        writes = [removal(self._subjects.page(held.flow, held.name), rev) for held, rev, _ in pages]
        writes += await ended.writes()
        writes += [StreamWrite(self._subjects.slot(slot), b"%d" % slot) for slot in sorted(slots)]
        writes += await self._add_totals(totals)
        last = await self._store.commit(writes)
        revisions = range(last - len(writes) + 1, last + 1)
        for (held, _, _), revision in zip(pages, revisions, strict=False):
            self._store.line.remove(held.name, revision)
        for write, revision in list(zip(writes, revisions, strict=True))[len(pages) :]:
            self._watch.applied(write.subject, revision, write.body)

    async def _fold(self, held: HeldPage) -> None:
        """Move totals of a page to their minutes, in one batch: one that never ends must not collect them for ever."""
        for _, rev, page in self._store.line.as_they_are([held]):
            totals: defaultdict[int, list[RunSum]] = defaultdict(list)
            for total in page.sums[:MOST_SUMS]:
                totals[total.minute].append(total)
            after = replace(page, sums=page.sums[MOST_SUMS:])
            subject = self._subjects.page(held.flow, held.name)
            with suppress(Outdated):
                writes = [StreamWrite(subject, pack(after), rev), *await self._add_totals(totals)]
                first = await self._store.commit(writes) - len(writes) + 1
                self._store.line.put(held.flow, held.name, first, after)
                for revision, write in enumerate(writes[1:], first + 1):
                    self._watch.applied(write.subject, revision, write.body)

    async def _add_totals(self, totals: dict[int, list[RunSum]]) -> list[StreamWrite]:
        if not totals:
            return []
        floor = await self._store.read_one(self._subjects.floor)
        oldest = int(floor.body or b"0")
        subjects = {self._subjects.minute(minute): minute for minute in totals if minute >= oldest}
        if not subjects:
            return []
        found = await self._store.read(subjects)
        writes: list[StreamWrite] = []
        for subject, minute in subjects.items():
            known = read_sums(found[subject].body) if found[subject].body else ()
            writes.append(StreamWrite(subject, pack(merged(known, totals[minute])), found[subject].revision))
        return writes

    # what was kept long enough

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget up to `limit` records past their `keep_until`, and what crashes left."""
        await self._leftovers.remove(now)
        at = micros(now)
        done, tried = 0, set[str]()
        while done < limit:  # those that have to stay do not stand in the way of others
            found = self._store.line.to_prune(at, len(tried) + BITE)
            ids = [id for id in dict.fromkeys(found) if id not in tried][:BITE]
            if not ids:
                break
            tried.update(ids)
            done += await self._forget(ids, now, limit - done)
        prefix = f"{self._subjects.line}m."
        slots = sorted(
            (int(subject[len(prefix) :]), value.revision)
            for subject, value in list(self._watch.records.items())
            if value.body and subject.startswith(prefix)
        )
        for slot, revision in slots:
            if slot * SLOT > at or done >= limit:
                break
            done += await self._prune_slot(slot, revision, now, limit - done)
        return done

    async def _forget(self, ids: Sequence[str], now: datetime, limit: int) -> int:
        """Forget records, each by itself if together they are in too many pages."""
        try:
            return await self._runner.run(forget.prune, ids, now, limit)
        except TooManyPages as error:
            if len(ids) == 1:  # its workflow is in too many; the others go on
                logger.warning("nats.prune: job %s stays: %s", ids[0], error)
                return 0
        done = 0
        for id in ids:
            if done < limit:
                done += await self._forget([id], now, limit - done)
        return done

    async def _prune_slot(self, slot: int, revision: int, now: datetime, limit: int) -> int:
        """Forget records of the pages that this slot names; the slot too, if that is done for all of them."""
        at = micros(now)
        hints = await self._store.matching(self._subjects.hints(slot))
        done, left = 0, len(hints)
        found = list(hints.items())
        for first in range(0, len(found), PAGES):
            if done >= limit:
                break
            part = {
                subject: (value.body.decode(), subject.rpartition(".")[2], value.revision)
                for subject, value in found[first : first + PAGES]
            }
            pages = await self._store.read(self._subjects.ended(flow, name) for flow, name, _ in part.values())
            overdue_ids: list[str] = []
            over: list[str] = []
            for subject, (flow, name, _) in part.items():
                body = pages[self._subjects.ended(flow, name)].body
                page = read_page(body) if body else None
                ids = [] if page is None else overdue(page, at)
                overdue_ids += ids
                next_one = None if page is None else first_overdue(page)
                if next_one is None or next_one // SLOT != slot:
                    over.append(subject)
            for begin in range(0, len(overdue_ids), BITE):
                if done < limit:
                    bite = overdue_ids[begin : begin + BITE]
                    done += await self._forget(bite, now, limit - done)
            if done < limit:
                with suppress(Outdated):
                    await self._store.store_all([removal(name, part[name][2]) for name in over])
                left -= len(over)
        if not left and (slot + 1) * SLOT <= at:
            with suppress(Outdated):
                revision = await self._store.put(removal(self._subjects.slot(slot), revision))
                self._watch.applied(self._subjects.slot(slot), revision, b"")
        return done


# Pages that prune reads at a time, and jobs that one step forgets.
PAGES, BITE = 200, 200


def is_stale(time: float) -> bool:
    """Whether this process was stopped for so long since then that what was removed meanwhile may be forgotten."""
    return asyncio.get_running_loop().time() - time > FRESH_FOR


def is_empty(page: JobPage) -> bool:
    """Whether nothing is left of a page."""
    return not page.keys and not any(page.entries)


def first_overdue(page: JobPage) -> int | None:
    """When the first job of an ended page may be forgotten."""
    return min(
        (entry.keep_until for entry in page.entries if entry is not None and entry.keep_until is not None),
        default=None,
    )
