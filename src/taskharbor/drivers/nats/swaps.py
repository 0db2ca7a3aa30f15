"""Swaps of pages by tokens, which name the page and the place: outcomes and heartbeats alike.

Nothing is refused by what is in memory: a refusal is given after a look at what the server has. What was computed from
a revision is sent with that revision and no other, though the watch may know a later one meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from taskharbor.core.lease import Report
from taskharbor.core.tally import tallies
from taskharbor.core.transition import Transition
from taskharbor.drivers.nats.pages import EntryPlace, JobPage, PagedJob, born, pack, place_of, read_page
from taskharbor.drivers.nats.store import Outdated, StoredValue, Streams, StreamWrite
from taskharbor.drivers.nats.sums import sums_of
from taskharbor.drivers.nats.watch import LineWatch
from taskharbor.errors import DriverClosed, DriverUnavailable, LeaseError

MOST_TRIES = 50
BUSY_WITHIN, BUSY_LOOKS = 0.25, 20

Asked = TypeVar("Asked", Transition, Report)
Answer = TypeVar("Answer")


class Addressed(NamedTuple):
    """What the token of an outcome or report says, and its `number` in the call."""

    number: int
    place: EntryPlace
    lease: str
    version: int


class PageSwap:
    """A page on its way: what was read, and what it is to become."""

    def __init__(self, flow: str, name: str, rev: int, page: JobPage) -> None:
        self.flow, self.name, self.rev, self.page = flow, name, rev, page
        self.entries: list[PagedJob | None] = list(page.entries)
        self.settled: list[Transition] = []
        self.changed = False

    def entry(self, place: EntryPlace, id: str) -> PagedJob | None:
        """The entry of a job at its place, if it is there."""
        entry = self.entries[place.position] if place.position < len(self.entries) else None
        return entry if entry is not None and entry.id == id else None

    def put(self, place: EntryPlace, entry: PagedJob) -> None:
        """Change an entry."""
        self.entries[place.position] = entry
        self.changed = True

    def after(self, now: datetime) -> JobPage:
        """The page with its changes, and with the totals of what was settled."""
        sums = self.page.sums
        if self.settled and (counted := tallies(self.settled, now)):
            sums = sums_of(sums, counted)
        return replace(self.page, entries=self.entries, sums=sums)


class PageSwaps:
    """Swaps pages in which entries change, all at once."""

    def __init__(self, store: Streams, watch: LineWatch) -> None:
        self._store, self._watch = store, watch

    async def each(
        self,
        todo: dict[EntryPlace, list[tuple[Addressed, Asked]]],
        judge: Callable[[PageSwap, Sequence[tuple[Addressed, Asked]]], Awaitable[dict[int, Answer]]],
        now: datetime,
    ) -> dict[int, Answer]:
        """Have each page judged and swapped until it is; the answers. Jobs whose pages LINE has not get none.

        `judge` changes the entries and returns the answers that hold if the swap is won.
        """
        answers: dict[int, Answer] = {}
        fresh = False  # whether pages are read, because what is in memory may be behind
        for _ in range(MOST_TRIES):
            pages = await self._pages(todo, fresh)
            swaps: list[tuple[EntryPlace, PageSwap, dict[int, Answer]]] = []
            again: list[EntryPlace] = []
            for where, items in todo.items():
                swapped = pages.get(where.page)
                found = {} if swapped is None else await judge(swapped, items)
                if not fresh and (swapped is None or any(isinstance(each, LeaseError) for each in found.values())):
                    again.append(where)
                elif swapped is not None and swapped.changed:
                    swaps.append((where, swapped, found))
                else:
                    answers |= found
            won = await self._swap([swapped for _, swapped, _ in swaps], now)
            for (where, _, found), is_won in zip(swaps, won, strict=True):
                if is_won:
                    answers |= found
                else:
                    again.append(where)
            if not again:
                return answers
            todo, fresh = {where: todo[where] for where in again}, True
        raise DriverUnavailable(f"others changed the same jobs {MOST_TRIES} times in a row: try again")

    async def until_free(self, names: Iterable[str]) -> None:
        """Return when this process does not swap these pages already."""
        pages, wanted = self._store.line.pages, set(names)
        for _ in range(BUSY_LOOKS):
            if not any((held := pages.get(name)) is not None and held.busy for name in wanted):
                return
            await self._watch.freed.wait(BUSY_WITHIN)

    async def _pages(self, places: Iterable[EntryPlace], fresh: bool) -> dict[str, PageSwap]:
        """The pages of LINE by name: from memory, or read if they may have changed."""
        found: dict[str, PageSwap] = {}
        unknown: dict[str, EntryPlace] = {}
        for where in places:
            held = None if fresh else self._store.line.pages.get(where.page)
            if held is not None and held.stale <= held.rev:
                found[where.page] = PageSwap(where.flow, where.page, held.rev, held.page)
            else:
                unknown[self._store.subjects.page(where.flow, where.page)] = where
        if unknown:
            for subject, value in (await self._store.read(unknown)).items():
                where = unknown[subject]
                if value.body:
                    found[where.page] = self._read(where, value)
        return found

    def _read(self, where: EntryPlace, value: StoredValue) -> PageSwap:
        page = read_page(value.body)
        page = born(page, value.revision)
        if self._watch.follows:
            self._store.line.put(where.flow, where.page, value.revision, page)
        return PageSwap(where.flow, where.page, value.revision, page)

    async def _swap(self, swaps: Sequence[PageSwap], now: datetime) -> list[bool]:
        """Compare and swap each page; which were won."""
        if not swaps:
            return []
        pages = [swapped.after(now) for swapped in swaps]
        writes = [
            StreamWrite(self._store.subjects.page(swapped.flow, swapped.name), pack(page), swapped.rev)
            for swapped, page in zip(swaps, pages, strict=True)
        ]
        with self._watch.swapping([swapped.name for swapped in swaps]):
            answers = await self._store.swap(writes)
        won = [self._is_won(swapped, page, answer) for swapped, page, answer in zip(swaps, pages, answers, strict=True)]
        if any(swapped.settled for swapped, is_won in zip(swaps, won, strict=True) if is_won):
            with suppress(DriverUnavailable, DriverClosed):  # the swaps stand
                self._store.notify(await self._store.server.wire(), "ends")
        return won

    def _is_won(self, swapped: PageSwap, page: JobPage, answer: int | Outdated) -> bool:
        line = self._store.line
        if isinstance(answer, Outdated):
            if (known := line.pages.get(swapped.name)) is not None and known.rev <= swapped.rev:
                line.conflict(known, answer.revision)
            return False
        if self._watch.follows:
            self._watch.took(line.put(swapped.flow, swapped.name, answer, page))
        return True


def by_page(items: Iterable[tuple[int, Asked]]) -> dict[EntryPlace, list[tuple[Addressed, Asked]]]:
    """Outcomes or reports by the page that their tokens name; those with tokens of another kind are left out."""
    found: defaultdict[tuple[str, str], list[tuple[Addressed, Asked]]] = defaultdict(list)
    for index, item in items:
        if (parts := place_of(item.token)) is not None:
            lease, version, place = parts
            found[place.flow, place.page].append((Addressed(index, place, lease, version), item))
    return {EntryPlace(flow, page, 0): of_page for (flow, page), of_page in found.items()}
