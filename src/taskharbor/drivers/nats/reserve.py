"""Reserve: claims in the order of D11, a swap for each page, with the cards read in the same round trip."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import chain
from secrets import token_hex

from msgspec.structs import replace

from taskharbor.core.job import JobRecord
from taskharbor.core.line import shares
from taskharbor.core.reserved import in_line
from taskharbor.core.steps.settle import settle
from taskharbor.core.transition import Fail
from taskharbor.drivers.nats.ahead import CardRequest, CardsAhead, arrived
from taskharbor.drivers.nats.connection import NatsMessage
from taskharbor.drivers.nats.damage import TYPE, UNDECODABLE, damaged_fail
from taskharbor.drivers.nats.drafts import PageSteps
from taskharbor.drivers.nats.failure import away
from taskharbor.drivers.nats.line import PickedEntries, order_of
from taskharbor.drivers.nats.pages import (
    IS_INFLIGHT,
    IS_READY,
    EntryPlace,
    JobCard,
    JobCargo,
    JobPage,
    PagedJob,
    micros,
    pack,
    read_card,
    read_cargo,
    record,
    seq_of,
)
from taskharbor.drivers.nats.store import MOST_SUBJECTS, Outdated, StoredValue, Streams, StreamWrite, last_of
from taskharbor.drivers.nats.subjects import workflow_of
from taskharbor.drivers.nats.watch import LineWatch
from taskharbor.drivers.shared.claims import ClaimTerms
from taskharbor.errors import DriverUnavailable

TRIES = 200
# Tries in a row without a claim after which everything must have been seen that others have written.
IN_VAIN = 3
DEAD_LETTERED = "store.corrupt: job %r is in the dead-letter queue: %s"
BUSY_WITHIN = 0.25
CLAIMED_WITHIN = 4.0  # a cluster takes about as long to elect another leader

logger = logging.getLogger("taskharbor.nats")


class ClaimedPage:
    """A page that was won: the entries that were claimed in it, and the subjects of their cards."""

    def __init__(self, picked: PickedEntries, page: JobPage, cards: list[str]) -> None:
        self.picked, self.page, self.cards = picked, page, cards
        found = [page.entries[position] for position in picked.positions]
        self.entries = [entry for entry in found if entry is not None]


class NatsReserving:
    """Claims jobs in line."""

    def __init__(self, store: Streams, watch: LineWatch, runner: PageSteps) -> None:
        self._store, self._watch, self._runner = store, watch, runner
        self._ahead = CardsAhead(store)
        # How many pages were swapped for claims, and with how many of them others were faster.
        self.swaps = self.conflicts = 0

    async def claim(self, terms: ClaimTerms, queues: Sequence[str], limit: int) -> list[JobRecord]:
        """Claim up to `limit` due jobs of the queues, best first."""
        await self._watch.ready()
        self._watch.name = terms.worker
        found: list[JobRecord] = []
        asked, in_vain = False, 0
        for _ in range(TRIES):
            picked = self._pick(terms, queues, limit - len(found))
            if picked:
                got = await self._swap(terms, queues, picked)
                found += got
                in_vain = 0 if got else in_vain + 1
            if len(found) >= limit or (picked and found and not in_vain):
                break
            if not picked and self._store.line.is_busy(in_line(queues)):
                await self._watch.freed.wait(BUSY_WITHIN)  # this process swaps the pages itself
            elif not picked or in_vain >= IN_VAIN:
                if found or asked:
                    break
                asked, in_vain = True, 0
                await self._watch.barrier()
        return found

    def _pick(self, terms: ClaimTerms, queues: Sequence[str], limit: int) -> list[PickedEntries]:
        """The best entries of the queues, which share the limit."""
        line, now = self._store.line, micros(terms.now)
        time = asyncio.get_running_loop().time()
        share = self._watch.share(terms.worker, time)
        names = [queue for queue in in_line(queues) if queue not in line.paused]
        picked: dict[str, PickedEntries] = {}
        left = limit
        with line.lock:
            for queue, most in shares(names, limit).items():
                for each in line.pick(queue, now, most, share, time):
                    picked[each.held.name] = each
                    left -= len(each.positions)
            if left > 0 and len(names) > 1:  # what some leave unused goes to the others
                for queue in dict.fromkeys(names):
                    mine = [each for each in picked.values() if each.page.queue == queue]
                    had = sum(len(each.positions) for each in mine)
                    for each in line.pick(queue, now, had + left, share, time) if left > 0 else ():
                        picked[each.held.name] = each
                    left -= sum(len(e.positions) for e in picked.values() if e.page.queue == queue) - had
        return list(picked.values())

    def _next(self, terms: ClaimTerms, queues: Sequence[str], picked: Sequence[PickedEntries]) -> list[str]:
        """The cards of as many jobs as were picked, of those that come next in line: first of the same pages."""
        now, count = micros(terms.now), sum(len(each.positions) for each in picked)
        found: list[PagedJob | None] = []
        for each in picked:
            if len(each.positions) < len(each.page.entries):
                taken = set(each.positions)
                found += [entry for position, entry in enumerate(each.page.entries) if position not in taken]
        ready = [entry for entry in found if entry is not None and entry.state == IS_READY and entry.due <= now]
        if len(ready) < count:
            for each in self._pick(terms, queues, count - len(ready)):
                ready += [entry for position in each.positions if (entry := each.page.entries[position]) is not None]
        return [self._store.subjects.card(entry.id) for entry in ready[:count]]

    async def _swap(self, terms: ClaimTerms, queues: Sequence[str], picked: Sequence[PickedEntries]) -> list[JobRecord]:
        """One write: the pages compared and swapped, and cards asked for. The jobs that were won."""
        store, lease = self._store, token_hex(8)
        now, until = micros(terms.now), micros(terms.expires_at)
        wire = await store.server.wire()
        out: list[bytes] = []
        answers: list[asyncio.Future[NatsMessage]] = []
        pages: list[JobPage] = []
        subjects: list[list[str]] = []  # of the cards, of each page
        self.swaps += len(picked)
        for each in picked:
            page = claimed(each, lease, now, until, terms.worker)
            data, future = store.publish(
                wire, StreamWrite(store.subjects.page(each.held.flow, each.held.name), pack(page), each.rev)
            )
            out.append(data)
            answers.append(future)
            pages.append(page)
            entries = [page.entries[position] for position in each.positions]
            subjects.append([store.subjects.card(entry.id) for entry in entries if entry is not None])
        with self._watch.swapping([each.held.name for each in picked]):
            names, is_here = list(chain(*subjects)), self._watch.is_here
            ahead = self._ahead if is_here else CardsAhead(store)
            asked: list[CardRequest] = []
            for part in _parts(ahead.missing(names)):
                data, cards_of_part = store.ask(wire, store.server.jobs, last_of(part))
                out.append(data)
                asked.append(CardRequest(cards_of_part))
            if is_here:
                out.append(ahead.ask(wire, self._next(terms, queues, picked)))
            wire.write(b"".join(out))
            replies = await self._replies(answers)
            won = [
                self._won(each, page, store.answer(reply))
                for each, page, reply in zip(picked, pages, replies, strict=True)
            ]
            cards = await ahead.take(names)
            await arrived(asked)
            for request in asked:
                cards |= request.found()
        claims = [
            ClaimedPage(each, page, of_page)
            for each, page, of_page, is_won in zip(picked, pages, subjects, won, strict=True)
            if is_won
        ]
        return await self._records(terms, claims, cards) if claims else []

    async def _replies(self, answers: Sequence[asyncio.Future[NatsMessage]]) -> list[NatsMessage]:
        """The answers to claims. A claim whose answer is lost may be stored all the same, and lapses then."""
        try:
            async with asyncio.timeout(CLAIMED_WITHIN):
                return [await answer for answer in answers]
        except TimeoutError as error:
            raise away(error, self._store.server.where, asked=True) from None

    def _won(self, each: PickedEntries, page: JobPage, answer: int | Outdated | None) -> bool:
        if answer is None:
            return False
        if isinstance(answer, Outdated):
            self.conflicts += 1
            self._watch.contended = asyncio.get_running_loop().time()
            self._store.line.conflict(each.held, answer.revision)
            return False
        self._store.line.put(each.held.flow, each.held.name, answer, page)
        return True

    async def _mend(self, entry: PagedJob, place: EntryPlace, seen: StoredValue) -> None:
        """Give a job without a readable card a blank one, so that it can be shown, replaced and deleted.

        Unless the card is not as it was read: a node that had led, or had lagged, may not have had it yet.
        """
        card = JobCard(place.page, TYPE, b"", entry.claimed or 0, None, None, workflow=workflow_of(place.flow))
        try:
            await self._store.put(StreamWrite(self._store.subjects.card(entry.id), pack(card), seen.revision))
        except Outdated:
            raise DriverUnavailable(
                f"{self._store.server.where}: a node without the latest changes has answered, so that claims were lost"
            ) from None

    async def _cards(
        self, claims: Sequence[ClaimedPage], cards: dict[str, StoredValue]
    ) -> tuple[dict[str, JobCard], dict[str, StoredValue]]:
        """The cards of claims that can be read, and what is there of those that had to be read again."""
        read: dict[str, JobCard] = {}
        missing: list[str] = []
        for each in claims:
            for name in each.cards:
                card = _readable(cards.get(name))
                if card is not None and card.page == each.picked.held.name:
                    read[name] = card
                else:
                    missing.append(name)
        values: dict[str, StoredValue] = {}
        if missing:  # of a replica that is behind, or of an earlier job with this id
            values = await self._store.read(missing)
            read |= {name: card for name, value in values.items() if (card := _readable(value)) is not None}
        return read, values

    async def _records(
        self, terms: ClaimTerms, claims: Sequence[ClaimedPage], cards: dict[str, StoredValue]
    ) -> list[JobRecord]:
        store = self._store
        found: list[JobRecord] = []
        damaged: list[Fail] = []
        read, values = await self._cards(claims, cards)
        large = {
            store.subjects.cargo(entry.id, entry.rare.cargo_at): entry.id
            for each in claims
            for entry in each.entries
            if entry.rare is not None and entry.rare.cargo_at is not None
        }
        cargos: dict[str, JobCargo] = {}
        if large:
            found_cargos = await store.read(large)
            cargos = {large[name]: read_cargo(value.body) for name, value in found_cargos.items() if value.body}
        for each, position, entry, name in _in_order(claims, micros(terms.now)):
            held, page = each.picked.held, each.page
            place = EntryPlace(held.flow, held.name, position)
            try:
                found.append(record(entry, page, place, read[name], cargos.get(entry.id)))
            except (KeyError, *UNDECODABLE):
                if name not in read:
                    await self._mend(entry, place, values[name])
                damaged.append(damaged_fail(record(entry, page, place), terms.now))
        if damaged:
            await self._runner.run(settle, damaged, terms.now)
            for fail in damaged:
                logger.error(DEAD_LETTERED, fail.id, fail.last_error)
        return found


def _readable(value: StoredValue | None) -> JobCard | None:
    try:
        return None if value is None else read_card(value.body)
    except UNDECODABLE:
        return None


def _in_order(claims: Sequence[ClaimedPage], now: int) -> list[tuple[ClaimedPage, int, PagedJob, str]]:
    """The claimed entries with their positions and the subjects of their cards, the best of each queue first."""
    found = [
        (each, position, entry, name)
        for each in claims
        for position, entry, name in zip(each.picked.positions, each.entries, each.cards, strict=True)
    ]
    if len(claims) > 1:
        queues = {each.page.queue: number for number, each in reversed(list(enumerate(claims)))}
        found.sort(key=lambda it: (queues[it[0].page.queue], *_order(it[0].picked, it[1], now)))
    return found


def _order(picked: PickedEntries, position: int, now: int) -> tuple[int, int, int]:
    entry = picked.page.entries[position]
    assert entry is not None
    priority, due = order_of(entry, now) or (0, 0)
    return priority, due, seq_of(picked.page, entry)


def claimed(picked: PickedEntries, lease: str, now: int, until: int, worker: str) -> JobPage:
    """The page with these entries claimed: as `core.evolve.claimed` says."""
    page = picked.page
    entries: list[PagedJob | None] = list(page.entries)
    for position in picked.positions:
        entry = entries[position]
        assert entry is not None
        again = entry.state == IS_INFLIGHT
        rare = entry.rare
        if rare is not None and rare.progress is not None:
            rare = replace(rare, progress=None)
        entries[position] = PagedJob(
            entry.id,
            IS_INFLIGHT,
            entry.due,
            entry.priority,
            entry.version + 1,
            lease,
            until,
            worker,
            now,
            None,
            entry.settled,
            entry.kind,
            entry.settled_at,
            entry.completed,
            entry.keep_until,
            entry.attempts,
            entry.crashes + again,
            None if again else entry.run_at,
            entry.number,
            rare,
        )
    return replace(page, entries=entries)


def _parts(subjects: Sequence[str]) -> list[Sequence[str]]:
    return [subjects[first : first + MOST_SUBJECTS] for first in range(0, len(subjects), MOST_SUBJECTS)]
