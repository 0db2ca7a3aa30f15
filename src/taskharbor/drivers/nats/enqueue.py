"""Enqueue: cards and keys first, in batches; then the pages, which make the jobs exist (D1).

Groups whose jobs are surely new go together: jobs of one queue share a page, whoever they belong to. If one of them is
not new, each group goes by itself, by the step of the core.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import groupby

from taskharbor.core.group import Group, GroupResult
from taskharbor.core.job import NewJob
from taskharbor.core.steps import enqueue as steps
from taskharbor.drivers.nats.commit import page_size
from taskharbor.drivers.nats.drafts import PageSteps
from taskharbor.drivers.nats.names import PageNames
from taskharbor.drivers.nats.pages import JobPage, KeyNote, PagedJob, micros, new_card, new_entry, pack, stored
from taskharbor.drivers.nats.store import MOST_MESSAGES, Outdated, Streams, StreamWrite, removal
from taskharbor.drivers.nats.subjects import flow_of
from taskharbor.drivers.nats.watch import LineWatch
from taskharbor.drivers.shared.groups import all_created, digest_of
from taskharbor.errors import DriverUnavailable, InvalidJob

PAGE = 100
# Groups that go by themselves at the same time.
SIDE_BY_SIDE = 20


class NatsEnqueueing:
    """Stores new jobs."""

    def __init__(self, store: Streams, watch: LineWatch, runner: PageSteps) -> None:
        self._store, self._watch, self._runner = store, watch, runner
        self._names = PageNames()

    async def enqueue(self, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
        """Store each group all or none, in this order."""
        answers: list[GroupResult] = []
        for is_plain, part in groupby(groups, key=_is_plain):
            if is_plain:
                for bite in _bites(list(part)):
                    answers += await self._enqueue_plain(bite, now)
            else:
                answers += [await self._runner.run(steps.enqueue, group, now) for group in part]
        return answers

    async def _enqueue_plain(self, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
        """Store groups that can go together; those that are not surely new by themselves."""
        are_apart = _are_apart([job for group in groups for job in group.jobs])
        done = await self._store_plain(groups, list(range(len(groups))), now) if are_apart else set[int]()
        left = [index for index in range(len(groups)) if index not in done]
        others = dict(
            zip(left, await self._store_others([groups[index] for index in left], now, are_apart), strict=True)
        )
        return [all_created(group.jobs) if index in done else others[index] for index, group in enumerate(groups)]

    async def _store_plain(self, groups: Sequence[Group], plain: list[int], now: datetime) -> set[int]:
        """Store those of these groups that are new, together; their indexes."""
        for _ in range(2):
            if plain and await self._store_new([groups[index] for index in plain], micros(now)):
                return set(plain)
            known = await self._known([job for index in plain for job in groups[index].jobs])
            fresh = [index for index in plain if not any(self._names_of(job) & known for job in groups[index].jobs)]
            if len(fresh) == len(plain):
                break
            plain = fresh
        return set()

    def _names_of(self, job: NewJob) -> set[str]:
        """What is stored by name for a job before its page."""
        names = {self._store.subjects.card(job.id)}
        return names if job.idempotency_key is None else names | {self._store.subjects.key(job.idempotency_key)}

    async def _known(self, jobs: Sequence[NewJob]) -> set[str]:
        """The names of these jobs under which there is something, or was a moment ago."""
        found = await self._store.read(name for job in jobs for name in self._names_of(job))
        return {name for name, value in found.items() if value.revision}

    async def _store_others(self, groups: Sequence[Group], now: datetime, are_apart: bool) -> list[GroupResult]:
        """Store groups one by one, side by side if they have nothing in common."""
        if not are_apart:
            return [await self._runner.run(steps.enqueue, group, now) for group in groups]
        answers: list[GroupResult] = []
        for first in range(0, len(groups), SIDE_BY_SIDE):
            part = groups[first : first + SIDE_BY_SIDE]
            answers += await asyncio.gather(*(self._runner.run(steps.enqueue, group, now) for group in part))
        return answers

    async def _store_new(self, groups: Sequence[Group], now: int) -> bool:
        """Store groups if all of their jobs and keys are new; whether that was so."""
        pages: list[tuple[str, JobPage]] = []
        cards: list[StreamWrite] = []
        for (queue, workflow), jobs in _by_page(groups).items():
            size = page_size(len(jobs), MOST_MESSAGES, PAGE)
            for first in range(0, len(jobs), size):
                part, name = jobs[first : first + size], self._names.new(now)
                entries: list[PagedJob | None] = [new_entry(job, number, now) for number, job in part]
                pages.append((name, JobPage(queue, entries, 0, workflow, offset=len(pages), created=now)))
                for _, job in part:
                    cards += self._first(job, name, now)
        if len(pages) > MOST_MESSAGES:
            raise InvalidJob(
                f"{sum(len(group.jobs) for group in groups)} jobs of {len(pages)} queues or workflows cannot be "
                f"stored together: the server takes batches of {MOST_MESSAGES}, so enqueue fewer at a time"
            )
        has_keys = any(job.idempotency_key is not None for group in groups for job in group.jobs)
        try:
            # A key is often known, an id never: only then something stored would be left over.
            await (self._store.store_all(cards) if has_keys else self._store.store_apart(cards))
        except Outdated:
            if not has_keys or len(cards) > MOST_MESSAGES:  # some may be stored
                await self._take_back(cards)
            return False
        writes = [
            StreamWrite(self._store.subjects.page(flow_of(page.workflow), name), pack(page), 0) for name, page in pages
        ]
        try:
            last = await self._store.commit(writes)
        except Outdated:  # somebody waited for one of the keys in vain, and barred the page
            await self._take_back(cards)
            return False
        for revision, (name, page) in enumerate(pages, last - len(pages) + 1):
            if self._watch.follows:
                self._watch.took(self._store.line.put(flow_of(page.workflow), name, revision, page))
        return True

    def _first(self, job: NewJob, page: str, now: int) -> list[StreamWrite]:
        """The card of a job, and the note of its key."""
        subjects = self._store.subjects
        body = pack(new_card(job, page, now))
        if len(body) > self._store.server.max_payload - 1024:
            raise InvalidJob(
                f"job {job.id} has {len(body)} bytes, and the server takes messages of "
                f"{self._store.server.max_payload}: raise max_payload there, or enqueue less in one job"
            )
        writes = [StreamWrite(subjects.card(job.id), body, 0)]
        if job.idempotency_key is not None:
            note = KeyNote(
                job.idempotency_key, job.id, digest_of(job), stored(job.key_expires_at), page, job.workflow_id, False
            )
            writes.append(StreamWrite(subjects.key(job.idempotency_key), pack(note), 0))
        return writes

    async def _take_back(self, cards: Sequence[StreamWrite]) -> None:
        with suppress(Outdated, DriverUnavailable):
            found = await self._store.read(write.subject for write in cards)
            ours = {write.subject: write.body for write in cards}
            await self._store.store_all(
                [removal(name, value.revision) for name, value in found.items() if value.body == ours[name]]
            )


def _is_plain(group: Group) -> bool:
    """Whether the jobs of a group neither wait for others nor resolve to a workflow."""
    return bool(group.jobs) and group.key is None and not any(job.depends_on for job in group.jobs)


def _bites(groups: Sequence[Group]) -> Iterator[Sequence[Group]]:
    """The groups in parts whose pages one batch can hold."""
    if sum(len(group.jobs) for group in groups) <= MOST_MESSAGES:
        yield groups
        return
    first, number, sizes = 0, 0, Counter[tuple[str, str | None]]()
    for index, group in enumerate(groups):
        counted = Counter((job.queue, job.workflow_id) for job in group.jobs)
        number += sum(-(-(sizes[of] + more) // PAGE) - -(-sizes[of] // PAGE) for of, more in counted.items())
        sizes += counted
        if number > MOST_MESSAGES and index > first:
            yield groups[first:index]
            first, sizes = index, counted
            number = sum(-(-more // PAGE) for more in counted.values())
    yield groups[first:]


def _are_apart(jobs: Sequence[NewJob]) -> bool:
    """Whether no two of the jobs have the same id or key."""
    keys = [job.idempotency_key for job in jobs if job.idempotency_key is not None]
    return len({job.id for job in jobs}) == len(jobs) and len(set(keys)) == len(keys)


def _by_page(groups: Sequence[Group]) -> dict[tuple[str, str | None], list[tuple[int, NewJob]]]:
    """The jobs that can share pages, with their numbers in the order of the call."""
    found: defaultdict[tuple[str, str | None], list[tuple[int, NewJob]]] = defaultdict(list)
    for number, job in enumerate(job for group in groups for job in group.jobs):
        found[job.queue, job.workflow_id].append((number, job))
    return found
