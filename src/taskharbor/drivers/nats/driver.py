"""The NATS driver: hot verbs are swaps of pages, the others steps of the core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from secrets import token_hex
from typing import Concatenate, ParamSpec, TypeVar
from urllib.parse import SplitResult

import msgspec

from taskharbor.core.dependency import Parent
from taskharbor.core.evolve import Cancellation, DeadLetter, DeadLettering, Deletion, Replay, Replaying, Reschedule
from taskharbor.core.filter import Filter
from taskharbor.core.group import Group, GroupResult
from taskharbor.core.job import JobRecord
from taskharbor.core.lease import Extended, Report, Verdict, check_duration
from taskharbor.core.reserved import in_line
from taskharbor.core.schedule import Schedule, Swap
from taskharbor.core.steps import forget, lease, replay, reschedule, stop, swap
from taskharbor.core.steps.draft import Draft
from taskharbor.core.steps.lease import is_claimable
from taskharbor.core.steps.needs import VerbStep
from taskharbor.core.tally import Tally
from taskharbor.core.transition import Transition
from taskharbor.driver import DeadGroup, QueueCounts, StoreSetting, WorkerRecord, WorkflowCounts
from taskharbor.drivers.nats.connection import JetStream
from taskharbor.drivers.nats.drafts import PageSteps
from taskharbor.drivers.nats.enqueue import NatsEnqueueing
from taskharbor.drivers.nats.extend import extend
from taskharbor.drivers.nats.failure import ApiError
from taskharbor.drivers.nats.large import whole
from taskharbor.drivers.nats.pages import micros, moment
from taskharbor.drivers.nats.reader import read_schedule
from taskharbor.drivers.nats.reading import NatsReading
from taskharbor.drivers.nats.reserve import NatsReserving
from taskharbor.drivers.nats.settle import NatsSettling
from taskharbor.drivers.nats.store import Outdated, Streams, StreamWrite, removal
from taskharbor.drivers.nats.swaps import PageSwaps
from taskharbor.drivers.nats.upkeep import NatsUpkeep
from taskharbor.drivers.nats.waiting import EndHints
from taskharbor.drivers.nats.watch import OPEN, PAUSED, LineWatch
from taskharbor.drivers.shared.claims import claim
from taskharbor.errors import DriverUnavailable, JobExists, LeaseError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
# What a message holds beside a payload or a result: options, failures with their tracebacks.
BESIDE = 256 * 1024
# Jobs that one step of an operator's verb takes.
PAGE = 200
# How long a pause waits for the workers to have seen it.
SEEN_WITHIN, LOOK_EVERY = 1.0, 0.01

_encode = msgspec.json.Encoder().encode
_worker = msgspec.json.Decoder(WorkerRecord).decode


class NatsDriver:
    """A store on NATS JetStream."""

    name = "nats"
    ephemeral = False
    max_payload: int | None

    def __init__(self, server: JetStream) -> None:
        self._server = server
        self.max_payload = max(0, server.max_payload - BESIDE)
        self._store = Streams(server)
        self._subjects = self._store.subjects
        self._watch = LineWatch(self._store)
        self._runner = PageSteps(self._store, self._watch)
        self._enqueueing = NatsEnqueueing(self._store, self._watch, self._runner)
        self.reserving = NatsReserving(self._store, self._watch, self._runner)
        self._swaps = PageSwaps(self._store, self._watch)
        self._settling = NatsSettling(self._store, self._swaps, self._runner)
        self._upkeep = NatsUpkeep(self._store, self._watch, self._runner)
        self._reading = NatsReading(self._store, self._watch)
        self._ends = EndHints(self._store)

    @classmethod
    async def open(cls, url: SplitResult, options: dict[str, str]) -> NatsDriver:
        """Connect to the server that a URL names."""
        return cls(await JetStream.open(url, options))

    async def _run(self, step: Callable[Concatenate[Draft, P], VerbStep[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        self._server.check()
        return await self._runner.run(step, *args, **kwargs)

    async def enqueue(self, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
        self._server.check()
        return await self._enqueueing.enqueue(groups, now)

    async def reserve(
        self,
        queues: Sequence[str],
        now: datetime,
        lease_for: timedelta,
        limit: int,
        worker: str,
        ids: Sequence[str] | None = None,
    ) -> list[JobRecord]:
        self._server.check()
        check_duration(lease_for)
        if ids is not None:
            return await self._reserve_ids(ids, now, lease_for, limit, worker)
        return await self.reserving.claim(claim(now, lease_for, worker), queues, limit)

    async def _reserve_ids(
        self, ids: Sequence[str], now: datetime, lease_for: timedelta, limit: int, worker: str
    ) -> list[JobRecord]:
        token = token_hex(8)
        jobs = await self._reading.get(list(dict.fromkeys(ids)))
        found = [job for job in jobs if job is not None and is_claimable(job, now)]
        paused = await self._paused({job.queue for job in found})
        wanted = [job.id for job in found if job.queue not in paused][: max(limit, 0)]
        if not wanted:
            return []
        claimed, committer = await self._runner.run_with(lease.claim, wanted, now, lease_for, worker, lambda: token)
        return committer.claimed(job.id for job in claimed)

    async def _paused(self, queues: set[str]) -> set[str]:
        """Those of the queues that are paused."""
        subjects = {self._subjects.paused(queue): queue for queue in queues}
        found = await self._store.read(subjects)
        return {subjects[subject] for subject, value in found.items() if value.body[:1] == PAUSED}

    async def extend_lease(
        self, reports: Sequence[Report], now: datetime, lease_for: timedelta
    ) -> list[Extended | LeaseError]:
        self._server.check()
        check_duration(lease_for)
        return await extend(self._store, self._swaps, reports, now, lease_for)

    async def settle(self, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
        self._server.check()
        return await self._settling.settle(transitions, now)

    async def close(self) -> None:
        await self._watch.close()
        await self._server.close()

    # Inspect

    async def get(self, ids: Sequence[str]) -> list[JobRecord | None]:
        self._server.check()
        return await self._reading.get(ids)

    async def find_key(self, key: str, now: datetime) -> str | None:
        return await self._run(_find_key, key, now)

    async def query(self, where: Filter, now: datetime, limit: int, after: str | None = None) -> list[JobRecord]:
        self._server.check()
        return await self._reading.query(where, now, limit, after)

    async def counts(self, now: datetime) -> list[QueueCounts]:
        self._server.check()
        return await self._reading.counts(now)

    async def dead_groups(self, where: Filter, now: datetime, limit: int) -> list[DeadGroup]:
        self._server.check()
        return await self._reading.dead_groups(where, now, limit)

    # Manage

    async def cancel(self, ids: Sequence[str], now: datetime, keep_until: datetime) -> list[Cancellation]:
        return await self._run(stop.cancel, ids, now, keep_until)

    async def dead_letter(self, deaths: Sequence[DeadLetter], now: datetime) -> list[DeadLettering]:
        return await self._run(stop.dead_letter, deaths, now)

    async def delete(self, ids: Sequence[str]) -> list[Deletion]:
        self._server.check()
        return [answer for page in paged(ids) for answer in await self._run(forget.delete, page)]

    async def replay(self, replays: Sequence[Replay], now: datetime) -> list[Replaying]:
        return await self._run(replay.replay, replays, now)

    async def reschedule(self, changes: Sequence[Reschedule], now: datetime) -> list[bool]:
        self._server.check()
        return [answer for page in paged(changes) for answer in await self._run(reschedule.reschedule, page)]

    async def pause(self, queue: str, paused: bool) -> None:
        """Returns when the workers have seen it, or after a second."""
        self._server.check()
        subject = self._subjects.paused(queue)
        if paused:
            write = StreamWrite(subject, PAUSED + queue.encode())
        else:
            write = StreamWrite(subject, OPEN + queue.encode(), None, b"Nats-TTL:1h\r\n")
        revision = await self._store.put(write)
        self._watch.applied(subject, revision, write.body)
        if paused:
            await self._until_seen(revision)

    async def _until_seen(self, revision: int) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + SEEN_WITHIN
        with suppress(ApiError, DriverUnavailable):
            while loop.time() < until:
                found = await self._server.api(f"CONSUMER.LIST.{self._server.line}", {"offset": 0})
                consumers = found.get("consumers") or ()
                if all(int(each["delivered"]["stream_seq"]) >= revision for each in consumers):
                    return
                await asyncio.sleep(LOOK_EVERY)

    # Maintain

    async def sweep(self, now: datetime, keep_until: datetime, limit: int) -> int:
        self._server.check()
        time = asyncio.get_running_loop().time()
        await self._watch.barrier()
        done = 0
        for page in paged(self._store.line.to_sweep(micros(now), limit)):
            if done < limit:
                done += await self._run(stop.sweep, page, now, keep_until, limit - done)
        await self._upkeep.tidy(time)
        return done

    async def prune(self, now: datetime, limit: int) -> int:
        self._server.check()
        await self._watch.barrier()
        return await self._upkeep.prune(now, limit)

    # WorkflowStore

    async def parents(self, ids: Sequence[str], most: int) -> list[list[Parent]]:
        self._server.check()
        return await self._reading.parents(ids, most)

    async def workflows(
        self, limit: int, after: str | None = None, ids: Sequence[str] | None = None
    ) -> list[WorkflowCounts]:
        self._server.check()
        return await self._reading.workflows(limit, after, ids)

    async def free_workflow_key(self, workflow_id: str) -> bool:
        return await self._run(forget.free_workflow_key, workflow_id)

    # WaitForWork

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        self._server.check()
        await self._watch.ready()
        await self._watch.work.wait(timeout)

    async def wait_for_end(self, id: str, timeout: float) -> None:
        self._server.check()
        await self._ends.wait(timeout)

    async def next_due(self, queues: Sequence[str]) -> datetime | None:
        self._server.check()
        await self._watch.barrier()
        found = self._store.line.next_due(in_line(queues))
        return None if found is None else moment(max(found, 0))

    # ServerClock

    async def server_now(self) -> datetime:
        self._server.check()
        return await self._server.now()

    # Durability

    async def durability(self) -> list[StoreSetting]:
        self._server.check()
        return await self._server.durability()

    # Erases

    async def erase(self) -> None:
        self._server.check()
        for stream in (self._server.line, self._server.jobs):
            with suppress(ApiError):
                await self._server.api(f"STREAM.DELETE.{stream}")

    # Schedules

    async def schedules(self) -> list[Schedule]:
        self._server.check()
        found = await self._store.matching(f"{self._subjects.line}c.*")
        bodies = [await whole(self._store, value.body) for value in found.values()]
        return sorted(map(read_schedule, bodies), key=lambda schedule: schedule.name)

    async def swap_schedules(self, swaps: Sequence[Swap], now: datetime) -> list[bool | JobExists]:
        return await self._run(swap.swap_schedules, swaps, now)

    # Registry

    async def beat(self, worker: WorkerRecord) -> None:
        self._server.check()
        await self._store.put(StreamWrite(self._subjects.worker(worker.id), _encode(worker)))

    async def workers(self, seen_since: datetime) -> list[WorkerRecord]:
        self._server.check()
        found = await self._store.matching(self._subjects.workers)
        workers = (_worker(value.body) for value in found.values())
        return sorted((worker for worker in workers if worker.seen_at >= seen_since), key=lambda worker: worker.id)

    async def forget_worker(self, id: str) -> None:
        self._server.check()
        await self._store.put(removal(self._subjects.worker(id), None))

    # Counters

    async def tallies(self, since: datetime) -> list[Tally]:
        self._server.check()
        return await self._reading.tallies(since)

    async def forget_tallies(self, before: datetime) -> None:
        self._server.check()
        await self._watch.barrier()
        floor, at = await self._store.read_one(self._subjects.floor), micros(before)
        if int(floor.body or b"0") < at:
            with suppress(Outdated):
                revision = await self._store.put(StreamWrite(self._subjects.floor, b"%d" % at, floor.revision))
                self._watch.applied(self._subjects.floor, revision, b"%d" % at)
        prefix = f"{self._subjects.line}n."
        for subject, value in list(self._watch.records.items()):
            if value.body and subject.startswith(prefix) and int(subject[len(prefix) :]) < at:
                with suppress(Outdated):
                    revision = await self._store.put(removal(subject, value.revision))
                    self._watch.applied(subject, revision, b"")


def paged(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Bites of a batch whose items do not depend on each other."""
    return (items[first : first + PAGE] for first in range(0, len(items), PAGE))


def _find_key(draft: Draft, key: str, now: datetime) -> VerbStep[str | None]:
    yield from draft.look_up_living([key])
    known = draft.living_key(key, now)
    return None if known is None else known.owner
