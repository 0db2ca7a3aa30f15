"""The line in memory: the pages of LINE as this process has seen them, in the order in which jobs are claimed (D11).

Fed by the watch and by what this process itself has written. It may be behind: a claim is decided by the server, which
compares the revision of the page, and nothing is refused because of what is here.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from heapq import heappop, heappush
from zlib import crc32

from msgspec import Struct

from taskharbor.drivers.nats.pages import (
    IS_DONE,
    IS_INFLIGHT,
    IS_READY,
    IS_WAITING,
    NO_RARE,
    JobPage,
    PagedJob,
    born,
    read_page,
    seq_of,
)

# In front of every due time: a job whose first lease has lapsed was due since ever.
EVER = -(1 << 62)
# Jobs a page must have left for being passed over in favour of another worker's share, and how long that lasts.
Order = tuple[int, int]  # the priority, negated, and the effective due time
Placed = tuple[int, int, int, int]  # the order, the place in the order of storing, and the position


class HeldPage(Struct, gc=False, eq=False):
    """A page as it was last seen. `stale`: the server has told of a later revision, which has not come yet.

    `busy`: how many swaps of it this process has under way; `passed`: since when it is left to another worker.
    """

    flow: str
    name: str
    rev: int
    page: JobPage
    stale: int = 0
    busy: int = 0
    passed: float = 0.0


class PickedEntries(Struct, gc=False, eq=False):
    """Entries of one page to be claimed, and the revision at which they were seen."""

    held: HeldPage
    rev: int
    page: JobPage
    positions: list[int]


class ClaimShare(Struct, frozen=True, gc=False):
    """While several workers claim from the same pages: the rank of this one among them. Alone it takes all."""

    rank: int = 0
    among: int = 1

    def has(self, name: str) -> bool:
        return self.among == 1 or crc32(name.encode()) % self.among == self.rank


ALL = ClaimShare()
# Versions of pages, beside four of each, after which the heaps are freed from what is old.
OLD_NOTES = 1000
# Totals of runs in a page from which on they are moved to their minutes, though jobs of the page have not ended.
MANY_SUMS = 30
# How long a page is left to the worker in whose share it is, in seconds.
PATIENCE = 0.4


class QueueInLine:
    """The pages of one queue: those with due jobs by the best of them, the others by when they have one."""

    def __init__(self) -> None:
        self.due: list[tuple[int, int, int, str, int]] = []  # order, name, revision
        self.later: list[tuple[int, str, int]] = []  # time, name, revision
        self.unwanted: list[tuple[int, str, int]] = []  # the same, of jobs that are due and only wait for the sweep
        self.woken = 0  # the latest time for which pages were lined up


def order_of(entry: PagedJob, now: int) -> Order | None:
    """The place of an entry in line; None if it cannot be claimed (D3, D5)."""
    if entry.state == IS_READY:
        if entry.due > now:
            return None
        due = entry.due
    elif entry.state == IS_INFLIGHT and entry.until <= now:
        due = EVER if entry.crashes == 0 else entry.until
    else:
        return None
    rare = entry.rare
    if rare is not None and (
        rare.stop_requested_at is not None or (rare.expires_at is not None and rare.expires_at <= now)
    ):
        return None
    return -entry.priority, due


def claimable(page: JobPage, now: int) -> list[Placed]:
    """What can be claimed of a page, the best first."""
    found: list[Placed] = []
    for position, entry in enumerate(page.entries):
        if entry is None or entry.state > IS_INFLIGHT:
            continue
        if entry.state == IS_READY and entry.rare is None:  # as `order_of` says
            if entry.due <= now:
                found.append((-entry.priority, entry.due, seq_of(page, entry), position))
        elif (order := order_of(entry, now)) is not None:
            found.append((*order, seq_of(page, entry), position))
    found.sort()
    return found


class LineInMemory:
    """The pages that are known, by name and in line. All methods may be called from any thread."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pages: dict[str, HeldPage] = {}
        self.paused: dict[str, int] = {}
        self._queues: dict[str, QueueInLine] = {}
        self._sweeps: list[tuple[int, str, int]] = []
        self._prunes: list[tuple[int, str, int]] = []
        self._gone: dict[str, int] = {}
        self._ended: dict[str, None] = {}
        self._laden: dict[str, None] = {}
        self._noted = 0
        self.seen = 0

    def clear(self) -> None:
        """Forget everything: it will be read again."""
        with self.lock:
            for name in ("pages", "paused", "_queues", "_gone", "_ended", "_laden"):
                getattr(self, name).clear()
            self._sweeps.clear()
            self._prunes.clear()
            self.seen = 0

    # what the stream says

    def take(self, flow: str, name: str, rev: int, body: bytes) -> HeldPage | None:
        """Take in a version of a page from the watch; None if it is known, or if it removes the page."""
        with self.lock:
            held = self.pages.get(name)
            if (held is not None and held.rev >= rev) or self._gone.get(name, 0) >= rev:
                return None
            if not body:
                self.remove(name, rev)
                return None
            return self.put(flow, name, rev, read_page(body))

    def put(self, flow: str, name: str, rev: int, page: JobPage) -> HeldPage | None:
        """Take in a version of a page; None if a later one is known."""
        page = born(page, rev)
        with self.lock:
            held = self.pages.get(name)
            if held is None:
                if self._gone.get(name, 0) >= rev:
                    return None
                held = self.pages[name] = HeldPage(flow, name, rev, page)
            elif held.rev >= rev:
                return None
            else:
                held.rev, held.page = rev, page
            self._line_up(held)
            return held

    def remove(self, name: str, rev: int) -> None:
        """Take in that a page is no longer in LINE."""
        with self.lock:
            held = self.pages.get(name)
            if held is not None and held.rev < rev:
                del self.pages[name]
                self._ended.pop(name, None)
                self._laden.pop(name, None)
            if rev > self.seen:  # older versions may still come
                self._gone[name] = max(rev, self._gone.get(name, 0))

    def advance(self, seen: int) -> None:
        """Everything up to this sequence has been seen."""
        self.seen = seen
        if self._gone and len(self._gone) > 1000:
            with self.lock:
                self._gone = {name: rev for name, rev in self._gone.items() if rev > seen}

    def conflict(self, held: HeldPage, rev: int) -> None:
        """The server has the version `rev` of a page: leave the page until that comes, unless it is here.

        A server that compares with a write under way, or is behind, names no later one: then none may ever come.
        """
        with self.lock:
            if self.pages.get(held.name) is held and held.rev < rev:
                held.stale = max(held.stale, rev)

    def _line_up(self, held: HeldPage) -> None:
        """Note when the page has something to claim, to sweep, or nothing more at all."""
        first, sweep, prune, is_open = _times(held.page)
        if is_open:
            self._ended.pop(held.name, None)
        else:
            self._ended[held.name] = None
        if len(held.page.sums) > MANY_SUMS:
            self._laden[held.name] = None
        else:
            self._laden.pop(held.name, None)
        if prune is not None:
            heappush(self._prunes, (prune, held.name, held.rev))
        if sweep is not None:
            heappush(self._sweeps, (sweep, held.name, held.rev))
        if first is not None:
            heappush(self._queue(held.page.queue).later, (first, held.name, held.rev))
        self._noted += 1
        if self._noted > 4 * len(self.pages) + OLD_NOTES:  # many processes only list, and do no upkeep
            self.compact()

    def _queue(self, queue: str) -> QueueInLine:
        line = self._queues.get(queue)
        if line is None:
            line = self._queues[queue] = QueueInLine()
        return line

    # claims

    def pick(self, queue: str, now: int, limit: int, share: ClaimShare, time: float) -> list[PickedEntries]:
        """Up to `limit` entries of a queue in order. Nothing leaves the line by being picked.

        Pages that this process is swapping are left out. While workers get in each other's way, each prefers its share
        of the pages, and leaves the others to theirs for a moment.
        """
        with self.lock:
            line = self._queues.get(queue)
            if line is None or limit < 1 or queue in self.paused:
                return []
            self._wake(line, now)
            return _PickInLine(self, line, now, limit, share, time).run()

    def _wake(self, line: QueueInLine, now: int) -> None:
        """Line up the pages whose time has come."""
        later = line.later
        line.woken = max(line.woken, now)
        while later and later[0][0] <= now:
            time, name, rev = heappop(later)
            held = self.pages.get(name)
            if held is None or held.rev != rev:
                continue
            if best := claimable(held.page, now)[:1]:
                heappush(line.due, (*best[0][:3], name, rev))
            else:
                heappush(line.unwanted, (time, name, rev))
            if (after := _next_time(held.page, now)) is not None:
                heappush(later, (after, name, rev))

    def is_busy(self, queues: Iterable[str]) -> bool:
        """Whether this process swaps a page of these queues that may have more to claim."""
        wanted = set(queues)
        with self.lock:
            return any(held.busy and held.page.queue in wanted for held in self.pages.values())

    def next_due(self, queues: Collection[str]) -> int | None:
        """When the next job of these queues is due or its lease runs out."""
        times: list[int] = []
        with self.lock:
            for queue in queues:
                line = self._queues.get(queue)
                if line is None or queue in self.paused:
                    continue
                self._trim(line)
                times += [heap[0][0] for heap in (line.later, line.unwanted) if heap]
                times += [line.due[0][1]] if line.due else []
        return min(times, default=None)

    def _trim(self, line: QueueInLine) -> None:
        """Drop what is no longer true from the heads of the heaps."""
        for heap in (line.later, line.unwanted):
            while heap and not self._is_current(*heap[0][1:]):
                heappop(heap)
        while line.due and not self._is_current(*line.due[0][3:]):
            heappop(line.due)

    def _is_current(self, name: str, rev: int) -> bool:
        held = self.pages.get(name)
        return held is not None and held.rev == rev

    # upkeep

    def to_sweep(self, now: int, limit: int) -> list[str]:
        """Jobs that may have expired, or that were asked to stop and whose lease has lapsed."""
        found: list[str] = []
        again: list[tuple[int, str, int]] = []
        with self.lock:
            while self._sweeps and self._sweeps[0][0] <= now and len(found) < limit:
                item = heappop(self._sweeps)
                held = self.pages.get(item[1])
                if held is None or held.rev != item[2]:
                    continue
                again.append(item)  # until it changes
                for entry in held.page.entries:
                    if entry is not None and entry.rare is not None and entry.state < IS_DONE:
                        ends = _sweep_time(entry)
                        if ends is not None and ends <= now:
                            found.append(entry.id)
            for item in again:
                heappush(self._sweeps, item)
        return found

    def to_prune(self, now: int, limit: int) -> list[str]:
        """Ended jobs of LINE past their `keep_until`."""
        found: list[str] = []
        again: list[tuple[int, str, int]] = []
        with self.lock:
            while self._prunes and self._prunes[0][0] <= now and len(found) < limit:
                item = heappop(self._prunes)
                held = self.pages.get(item[1])
                if held is None or held.rev != item[2]:
                    continue
                again.append(item)
                found += overdue(held.page, now)
            for item in again:
                heappush(self._prunes, item)
        return found

    def ended(self, limit: int) -> list[HeldPage]:
        """Pages all of whose jobs have ended, the oldest first."""
        with self.lock:
            return self._free(self._ended, limit)

    def laden(self, limit: int) -> list[HeldPage]:
        """Pages with so many totals that these should go to their minutes at once."""
        with self.lock:
            return self._free(self._laden, limit)

    def _free(self, names: Iterable[str], limit: int) -> list[HeldPage]:
        """Those of the pages that this process does not swap."""
        found: list[HeldPage] = []
        for name in names:
            held = self.pages.get(name)
            if held is not None and not held.busy and held.stale <= held.rev:
                found.append(held)
                if len(found) == limit:
                    break
        return found

    def as_they_are(self, pages: Iterable[HeldPage]) -> list[tuple[HeldPage, int, JobPage]]:
        """Those of the pages that are still in LINE, each with its revision and what it was then."""
        with self.lock:
            return [(held, held.rev, held.page) for held in pages if self.pages.get(held.name) is held]

    def snapshot(self) -> list[HeldPage]:
        """All pages, as they are now."""
        with self.lock:
            return [HeldPage(held.flow, held.name, held.rev, held.page) for held in self.pages.values()]

    def compact(self) -> None:
        """Drop what has become old in the heaps, and queues without pages, when that may be most of them."""
        with self.lock:
            if self._noted <= 4 * len(self.pages) + OLD_NOTES:
                return
            self._noted = 0
            for line in self._queues.values():
                for heap in (line.later, line.unwanted):
                    heap[:] = sorted({item for item in heap if self._is_current(item[1], item[2])})
                line.due[:] = sorted({item for item in line.due if self._is_current(item[3], item[4])})
            self._queues = {
                queue: line for queue, line in self._queues.items() if line.later or line.unwanted or line.due
            }
            for heap in (self._sweeps, self._prunes):
                heap[:] = sorted({item for item in heap if self._is_current(item[1], item[2])})


def overdue(page: JobPage, now: int) -> list[str]:
    """The ended jobs of a page past their `keep_until`."""
    return [
        entry.id
        for entry in page.entries
        if entry is not None and entry.state >= IS_DONE and entry.keep_until is not None and entry.keep_until <= now
    ]


def _next_time(page: JobPage, now: int) -> int | None:
    """When the next of the entries that cannot be claimed at `now` may be."""
    first: int | None = None
    for entry in page.entries:
        if entry is None or entry.state > IS_INFLIGHT or _must_stop(entry):
            continue
        time = entry.due if entry.state == IS_READY else entry.until if entry.state == IS_INFLIGHT else now
        if time > now and (first is None or time < first):
            first = time
    return first


def _times(page: JobPage) -> tuple[int | None, int | None, int | None, bool]:
    """When a page has a job to claim, to sweep and to prune, as far as it is known; and whether one has not ended."""
    first: int | None = None
    sweep: int | None = None
    prune: int | None = None
    is_open = False
    for entry in page.entries:
        if entry is None:
            continue
        state = entry.state
        if state >= IS_DONE:
            if entry.keep_until is not None and (prune is None or entry.keep_until < prune):
                prune = entry.keep_until
            continue
        is_open = True
        if state != IS_WAITING and not _must_stop(entry):
            time = entry.due if state == IS_READY else entry.until
            if first is None or time < first:
                first = time
        if entry.rare is not None and (ends := _sweep_time(entry)) is not None and (sweep is None or ends < sweep):
            sweep = ends
    return first, sweep, prune, is_open


def _must_stop(entry: PagedJob) -> bool:
    """Whether only the sweep has to do with the job, once its lease has lapsed."""
    return entry.rare is not None and entry.rare.stop_requested_at is not None


def _sweep_time(entry: PagedJob) -> int | None:
    """When the sweep has to look at an entry that has not ended."""
    rare = entry.rare or NO_RARE
    times = [time for time in (rare.expires_at, rare.stop_requested_at) if time is not None]
    if not times:
        return None
    return max(min(times), entry.until) if entry.state == IS_INFLIGHT else min(times)


class _PickInLine:
    """One pick: walks the due pages of a queue from the best on."""

    def __init__(
        self, line: LineInMemory, queue: QueueInLine, now: int, limit: int, share: ClaimShare, time: float
    ) -> None:
        self._pages, self._queue, self._heap = line.pages, queue, queue.due
        self._now, self._left, self._share, self._time = now, limit, share, time
        self._limit = limit
        self._found: dict[str, PickedEntries] = {}
        self._others: list[PickedEntries] = []
        self._orders: dict[str, list[Placed]] = {}
        self._back: list[tuple[int, int, int, str, int]] = []

    def run(self) -> list[PickedEntries]:
        while self._heap and self._left > 0 and not self._is_enough():
            self._look(heappop(self._heap))
        for item in self._back:
            heappush(self._heap, item)
        if not self._found and self._others:
            return self._take_others()
        return list(self._found.values())

    def _is_enough(self) -> bool:
        """Whether so much was left to others that looking further would not help."""
        most = 2 * self._share.among
        return len(self._others) >= most and sum(len(each.positions) for each in self._others) >= most * self._limit

    def _look(self, item: tuple[int, int, int, str, int]) -> None:
        name, rev = item[3:]
        held = self._pages.get(name)
        if held is None or held.rev != rev:
            return
        if held.busy or held.stale > held.rev:
            self._back.append(item)
            return
        orders = self._orders.get(name) or self._first_look(item, held)
        if orders is None:
            return
        taken = self._found.get(name)
        start = 0 if taken is None else len(taken.positions)
        if start >= len(orders):
            return
        if item[:3] < orders[start][:3]:  # what stood here has been taken
            heappush(self._heap, (*orders[start][:3], name, rev))
            return
        until = self._until(orders, start)
        positions = [placed[3] for placed in orders[start:until]]
        if taken is None:
            self._found[name] = PickedEntries(held, rev, held.page, positions)
        else:
            taken.positions.extend(positions)
        self._left -= len(positions)
        if until < len(orders) and self._left > 0:
            heappush(self._heap, (*orders[until][:3], name, rev))

    def _first_look(self, item: tuple[int, int, int, str, int], held: HeldPage) -> list[Placed] | None:
        """What can be claimed of a page that comes for the first time; None if nothing is to be."""
        name, rev = item[3:]
        orders = claimable(held.page, self._now)
        if self._now < self._queue.woken and (after := _next_time(held.page, self._now)) is not None:
            heappush(self._queue.later, (after, name, rev))  # it was lined up for a later time
        if not orders:
            heappush(self._queue.unwanted, (item[1], name, rev))
            return None
        self._back.append((*orders[0][:3], name, rev))
        if self._leaves(held, orders):
            return None
        self._orders[name] = orders
        return orders

    def _until(self, orders: Sequence[Placed], start: int) -> int:
        """How far to take from this page before a job of another one comes first."""
        most = min(len(orders), start + self._left)
        if self._share.among > 1 or not self._heap:
            return most
        following = self._heap[0][:3]
        if orders[most - 1][:3] <= following:
            return most
        until = start + 1
        while until < most and orders[until][:3] <= following:
            until += 1
        return until

    def _leaves(self, held: HeldPage, orders: Sequence[Placed]) -> bool:
        """Whether the page is left to the worker in whose share it is."""
        if self._share.has(held.name):
            return False
        if not held.passed:
            held.passed = self._time
        if self._time - held.passed >= PATIENCE:
            return False
        self._others.append(PickedEntries(held, held.rev, held.page, [placed[3] for placed in orders]))
        return True

    def _take_others(self) -> list[PickedEntries]:
        """Take from the shares of others, each worker from another page on."""
        first = self._share.rank % len(self._others)
        found: list[PickedEntries] = []
        left = self._limit
        for picked in self._others[first:] + self._others[:first]:
            if left <= 0:
                break
            picked.positions = picked.positions[:left]
            left -= len(picked.positions)
            found.append(picked)
        return found
