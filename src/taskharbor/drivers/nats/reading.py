"""Reading: records, lists and counts. Nothing here changes the store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from heapq import heapify, heappop, heappush

from msgspec.structs import replace

from taskharbor.core.dependency import Parent
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.states import Shown, State
from taskharbor.core.steps.needs import StoredEdge
from taskharbor.core.tally import Tally
from taskharbor.driver import DeadGroup, QueueCounts, WorkflowCounts
from taskharbor.drivers.nats.buckets import NO_BUCKET, EndedBucket, read_bucket
from taskharbor.drivers.nats.pages import (
    IS_CANCELLED,
    IS_DEAD,
    IS_DONE,
    IS_INFLIGHT,
    IS_READY,
    IS_WAITING,
    NO_RARE,
    STATES,
    JobPage,
    PagedJob,
    RunSum,
    micros,
    moment,
    read_page,
    seq_of,
)
from taskharbor.drivers.nats.reader import PageReader
from taskharbor.drivers.nats.store import Streams
from taskharbor.drivers.nats.subjects import workflow_of
from taskharbor.drivers.nats.sums import merged, read_sums, tally_of
from taskharbor.drivers.nats.watch import LineWatch

# How often records are read that change meanwhile.
LOOKS = 5
# Records that are read at a time.
BITE = 200
ENDED = {Shown.DONE: IS_DONE, Shown.DLQ: IS_DEAD, Shown.CANCELLED: IS_CANCELLED}
CODES: dict[Shown, int] = {
    Shown.SCHEDULED: IS_READY,
    Shown.READY: IS_READY,
    Shown.WAITING: IS_WAITING,
    Shown.CLAIMED: IS_INFLIGHT,
    Shown.RUNNING: IS_INFLIGHT,
    Shown.LAPSED: IS_INFLIGHT,
    **ENDED,
}


class NatsReading:
    """Lists and counts. What waits is in memory, what has ended is read page by page, the newest first."""

    def __init__(self, store: Streams, watch: LineWatch) -> None:
        self._store, self._watch = store, watch
        self._subjects = store.subjects

    async def get(self, ids: Sequence[str]) -> list[JobRecord | None]:
        """The records of these ids."""
        reader = PageReader(self._store)
        await reader.load(ids)
        for _ in range(LOOKS):
            if not reader.is_torn:
                break
            reader = PageReader(self._store)
            await reader.load(ids)
        return [None if (seen := reader.job(id)) is None else seen.record for id in ids]

    async def query(self, where: Filter, now: datetime, limit: int, after: str | None) -> list[JobRecord]:
        """Matching records, the newest first."""
        await self._watch.barrier()
        start = await self._start(after)
        found: list[JobRecord] = []
        async for records in self._records(where, now, start):
            found += records
            if len(found) >= limit:
                break
        return found[:limit]

    async def _start(self, after: str | None) -> int | None:
        """Where a list goes on, in the order of storing."""
        if after is None:
            return None
        reader = PageReader(self._store)
        await reader.load([after])
        seen = reader.job(after)
        page = None if seen is None else reader.pages[seen.place.page].page
        return None if seen is None or page is None else seq_of(page, seen.entry)

    async def _records(self, where: Filter, now: datetime, start: int | None) -> AsyncIterator[list[JobRecord]]:
        """Matching records in bites."""
        fits = _prefilter(where)
        bite: list[str] = []
        async for pages in self._pages(where, start):
            found = [
                (seq_of(page, entry), entry.id)
                for page in pages
                for entry in page.entries
                if entry is not None and fits(entry)
            ]
            bite += [id for seq, id in sorted(found, reverse=True) if start is None or seq < start]
            if len(bite) >= BITE:
                yield await self._matching(bite, where, now)
                bite = []
        if bite:
            yield await self._matching(bite, where, now)

    async def _matching(self, ids: Sequence[str], where: Filter, now: datetime) -> list[JobRecord]:
        records = await self.get(ids)
        return [job for job in records if job is not None and where.matches(job, now)]

    async def _pages(self, where: Filter, before: int | None) -> AsyncIterator[list[JobPage]]:
        """The pages that may have matches, by birth, the latest first; those stored together at once."""
        if where.workflow_id is not None:
            reader = PageReader(self._store)
            seen = await reader.pages_of(where.workflow_id)
            pages = {each.name: each.page for each in seen if each.page is not None}
            buckets: dict[str, EndedBucket] = {}
        else:
            pages = {held.name: held.page for held in self._store.line.snapshot()}
            buckets = {name: bucket for name, bucket in self._buckets().items() if _may_have(bucket, where)}
        in_line = set(pages)
        sources: list[tuple[int, str, JobPage | None]] = [(-page.born, name, page) for name, page in pages.items()]
        sources += [(-bucket.newest, name, None) for name, bucket in buckets.items()]
        heapify(sources)
        together: list[JobPage] = []
        while sources:
            born, name, page = heappop(sources)
            if together and together[0].born != -born:
                yield together
                together = []
            if page is not None:
                if before is None or -born <= before >> 24:
                    together.append(page)
                continue
            for ended_name, ended in (await self._ended(name)).items():
                if ended_name not in in_line:
                    heappush(sources, (-ended.born, ended_name, ended))
        if together:
            yield together

    def _buckets(self) -> dict[str, EndedBucket]:
        prefix = self._subjects.bucket("")
        return {
            subject[len(prefix) :]: read_bucket(value.body) if value.body else NO_BUCKET
            for subject, value in list(self._watch.records.items())
            if value.body and subject.startswith(prefix)
        }

    async def _ended(self, bucket: str) -> dict[str, JobPage]:
        """The ended pages of some minutes by name."""
        found = await self._store.matching(self._subjects.ended_in(bucket))
        return {subject.rpartition(".")[2]: read_page(value.body) for subject, value in found.items()}

    async def counts(self, now: datetime) -> list[QueueCounts]:
        """Every queue that has jobs or is paused, by name."""
        await self._watch.barrier()
        at = micros(now)
        found: dict[str, Counter[str]] = {queue: Counter() for queue in self._store.line.paused}
        oldest: dict[str, int] = {}
        for held in self._store.line.snapshot():
            for entry in held.page.entries:
                if entry is None:
                    continue
                queue = held.page.queue
                state = _shown(entry, at)
                found.setdefault(queue, Counter())[state] += 1
                due = entry.due if state == Shown.READY else entry.until if state == Shown.LAPSED else None
                if due is not None and due <= oldest.get(queue, due):
                    oldest[queue] = due
        for bucket in self._buckets().values():
            for queue, numbers in bucket.queues.items():
                counted = found.setdefault(queue, Counter())
                for state, number in zip(ENDED, numbers, strict=True):
                    counted[state] += number
        return [
            QueueCounts(
                queue=queue,
                paused=queue in self._store.line.paused,
                oldest_due=None if queue not in oldest else moment(oldest[queue]),
                **{str(state): number for state, number in found[queue].items()},
            )
            for queue in sorted(found)
        ]

    async def dead_groups(self, where: Filter, now: datetime, limit: int) -> list[DeadGroup]:
        """Matching dead jobs by cause (Q1)."""
        await self._watch.barrier()
        groups: dict[str, DeadGroup] = {}
        last: dict[str, tuple[datetime, str]] = {}
        wanted = replace(where, states=(Shown.DLQ,))
        if where.states and Shown.DLQ not in where.states:
            return []
        async for jobs in self._records(wanted, now, None):
            for job in jobs:
                _add_to_group(groups, last, job)
        return sorted(groups.values(), key=lambda group: (-group.count, group.fingerprint))[:limit]

    async def workflows(self, limit: int, after: str | None, ids: Sequence[str] | None) -> list[WorkflowCounts]:
        """Workflows by id, the greatest first."""
        names = set(ids) if ids is not None else await self._workflow_ids()
        found: list[WorkflowCounts] = []
        for name in sorted((name for name in names if after is None or name < after), reverse=True):
            if len(found) >= limit:
                break
            found += await self._workflow(name)
        return found

    async def _workflow_ids(self) -> set[str]:
        await self._watch.barrier()
        ids = {held.page.workflow for held in self._store.line.snapshot() if held.page.workflow is not None}
        hashed: list[str] = []
        for subject in await self._store.names(self._subjects.ended_flows):
            id = workflow_of(subject.split(".")[-2])
            if id is None:
                hashed.append(subject)
            else:
                ids.add(id)
        for value in (await self._store.read(hashed)).values():
            if value.body and (id := read_page(value.body).workflow) is not None:
                ids.add(id)
        return ids

    async def _workflow(self, id: str) -> list[WorkflowCounts]:
        reader = PageReader(self._store)
        entries = await reader.entries_of(id)
        if not entries:
            return []
        created = min(
            seen.page.created for seen in await reader.pages_of(id) if seen.page is not None and any(seen.page.entries)
        )
        states: Counter[State] = Counter(STATES[entry.state] for entry in entries)
        return [WorkflowCounts(id=id, created_at=moment(created), states=dict(states))]

    async def parents(self, ids: Sequence[str], most: int) -> list[list[Parent]]:
        """The dependencies of jobs in order (K3)."""
        reader = PageReader(self._store)
        edges: defaultdict[str, list[StoredEdge]] = defaultdict(list)
        for edge in await reader.look((), list(dict.fromkeys(ids)), ()):
            edges[edge.child].append(edge)
        return [_parents(reader, edges[id], most) for id in ids]

    async def tallies(self, since: datetime) -> list[Tally]:
        """The totals of the minutes at or after `since`."""
        await self._watch.barrier()
        floor = self._watch.records.get(self._subjects.floor)
        oldest = max(micros(since), int(floor.body or b"0") if floor is not None else 0)
        prefix = f"{self._subjects.line}n."
        found: list[RunSum] = []
        for subject, value in list(self._watch.records.items()):
            if value.body and subject.startswith(prefix):
                found += read_sums(value.body)
        for held in self._store.line.snapshot():
            found += held.page.sums
        totals = (total for total in merged(found, ()) if total.minute >= oldest)
        return sorted(map(tally_of, totals), key=lambda it: (it.minute, it.queue, it.task, it.outcome))


def _parents(reader: PageReader, edges: Sequence[StoredEdge], most: int) -> list[Parent]:
    known = [(edge, seen.record) for edge in edges if (seen := reader.job(edge.parent)) is not None]
    sizes = [len(job.result or b"") for _, job in known]
    fits = sum(sizes) <= most
    return [
        Parent(job.id, edge.policy, edge.satisfied, job.state, job.result if fits else None, job.last_error, size)
        for (edge, job), size in zip(known, sizes, strict=True)
    ]


def _may_have(bucket: EndedBucket, where: Filter) -> bool:
    """Whether ended jobs of some minutes may match."""
    wanted = [index for index, state in enumerate(ENDED) if not where.states or state in where.states]
    if where.reason is not None or where.fingerprint is not None:
        wanted = [index for index in wanted if index == 1]
    return any(any(numbers[index] for index in wanted) for numbers in bucket.queues.values())


def _prefilter(where: Filter) -> Callable[[PagedJob], bool]:
    """What an entry alone tells of a match: the card is read only if it may be one."""
    codes = {CODES[state] for state in where.states} if where.states else set(range(6))
    if where.reason is not None or where.fingerprint is not None:
        codes &= {IS_DEAD}
    return lambda entry: (
        entry.state in codes and (where.fingerprint is None or (entry.rare or NO_RARE).fingerprint == where.fingerprint)
    )


def _shown(entry: PagedJob, now: int) -> Shown:
    """The state to show, as `core.shown` says."""
    if entry.state == IS_READY:
        return Shown.SCHEDULED if entry.due > now else Shown.READY
    if entry.state == IS_INFLIGHT:
        if entry.until <= now:
            return Shown.LAPSED
        return Shown.CLAIMED if entry.started is None else Shown.RUNNING
    return Shown(STATES[entry.state])


def _add_to_group(groups: dict[str, DeadGroup], last: dict[str, tuple[datetime, str]], job: JobRecord) -> None:
    fingerprint, died = job.fingerprint or "", job.completed_at or job.created_at
    known = groups.get(fingerprint)
    if known is None:
        known = DeadGroup(
            fingerprint=fingerprint,
            task=job.type,
            error=job.last_error,
            count=0,
            first_at=died,
            last_at=died,
            last_id=job.id,
        )
    known = replace(known, count=known.count + 1, first_at=min(known.first_at, died))
    if (died, job.id) >= last.get(fingerprint, (died, job.id)):
        last[fingerprint] = died, job.id
        known = replace(known, last_at=died, last_id=job.id, task=job.type, error=job.last_error)
    groups[fingerprint] = known
