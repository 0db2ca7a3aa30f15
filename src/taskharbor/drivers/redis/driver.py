"""The Redis driver: hot verbs are scripts over whole batches, the others steps of the core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import repeat
from typing import Concatenate, ParamSpec, TypeVar
from urllib.parse import SplitResult

import msgspec

from taskharbor.core.dependency import Parent
from taskharbor.core.evolve import Cancellation, DeadLetter, DeadLettering, Deletion, Replay, Replaying, Reschedule
from taskharbor.core.filter import Filter
from taskharbor.core.group import Group, GroupResult
from taskharbor.core.job import JobRecord
from taskharbor.core.lease import Extended, Report, Verdict, check_duration, refusal
from taskharbor.core.reserved import in_line
from taskharbor.core.schedule import Schedule, Swap
from taskharbor.core.steps import forget, lease, replay, reschedule, stop, swap
from taskharbor.core.steps.draft import Draft
from taskharbor.core.steps.lease import is_claimable
from taskharbor.core.steps.needs import VerbStep
from taskharbor.core.tally import Tally
from taskharbor.core.transition import Transition
from taskharbor.driver import DeadGroup, QueueCounts, RepairReport, StoreSetting, WorkerRecord, WorkflowCounts, at_once
from taskharbor.drivers.redis import checks, enqueue, reading
from taskharbor.drivers.redis import settle as settling
from taskharbor.drivers.redis.calls import AwaitedCalls, BlockingCalls, BoundedCalls
from taskharbor.drivers.redis.connection import Server
from taskharbor.drivers.redis.drafts import run, run_if, write
from taskharbor.drivers.redis.keyspace import keys
from taskharbor.drivers.redis.parts import micros
from taskharbor.drivers.redis.prune import prune
from taskharbor.drivers.redis.repair import repair
from taskharbor.drivers.redis.reserve import Reserving, extend
from taskharbor.drivers.shared.claims import claim, not_renewed
from taskharbor.errors import JobExists, LeaseError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
MAX_PAYLOAD = 64 * 1024 * 1024
# What a value holds beside a payload or a result: options, failures with their tracebacks.
BESIDE = 512 * 1024
# For one call of a repair, which makes many.
REPAIR_WITHIN = 10.0
# Jobs that one step of an operator's verb takes: long scripts hold up every other client.
PAGE = 200

_encode = msgspec.json.Encoder().encode
_worker = msgspec.json.Decoder(WorkerRecord).decode
_schedule = msgspec.msgpack.Decoder(Schedule).decode


class RedisDriver:
    """A store on a Redis or Valkey server."""

    name = "redis"
    ephemeral = False
    max_payload: int | None = MAX_PAYLOAD

    def __init__(self, server: Server) -> None:
        self._server = server
        self.max_payload = min(MAX_PAYLOAD, max(0, server.max_bulk - BESIDE))
        self._calls = AwaitedCalls(server)
        self._reserving = Reserving(self._calls)

    @classmethod
    async def open(cls, url: SplitResult, options: dict[str, str]) -> RedisDriver:
        """Connect to the server that a URL names."""
        return cls(await Server.open(url, options))

    async def _run(self, step: Callable[Concatenate[Draft, P], VerbStep[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        self._server.check()
        return await run(self._calls, step, *args, **kwargs)

    async def enqueue(self, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
        self._server.check()
        return await enqueue.enqueue(self._calls, groups, now)

    # EnqueueBlocking

    def enqueues_blocking(self, groups: Sequence[Group]) -> bool:
        return self._server.has_blocking()

    def enqueue_blocking(self, groups: Sequence[Group], now: datetime, timeout: float) -> list[GroupResult]:
        self._server.check()
        return at_once(enqueue.enqueue(BlockingCalls(self._server, timeout), groups, now))

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
        return await self._reserving.claim(claim(now, lease_for, worker), queues, limit)

    async def _reserve_ids(
        self, ids: Sequence[str], now: datetime, lease_for: timedelta, limit: int, worker: str
    ) -> list[JobRecord]:
        token = claim(now, lease_for, worker).tokens  # its number and id follow when stored
        got: list[JobRecord] = []
        while len(got) < limit:
            left = [id for id in dict.fromkeys(ids) if id not in {job.id for job in got}]
            jobs = await reading.get(self._server, left)
            paused = await reading.paused(self._server)
            due = [job for job in jobs if job is not None and job.queue not in paused and is_claimable(job, now)]
            found = due[: limit - len(got)]
            if not found:
                break
            claimed = await run_if(
                self._calls,
                {("SISMEMBER", "paused", job.queue): b"0" for job in found},
                lease.claim,
                [job.id for job in found],
                now,
                lease_for,
                worker,
                repeat(token).__next__,
            )
            if claimed is None:  # a queue was paused meanwhile
                continue
            got += claimed[0]
            if len(claimed[0]) == len(found):
                break
        records = await reading.get(self._server, [job.id for job in got])
        return [
            job for job in records if job is not None and job.lease is not None and job.lease.token.startswith(token)
        ]

    async def extend_lease(
        self, reports: Sequence[Report], now: datetime, lease_for: timedelta
    ) -> list[Extended | LeaseError]:
        self._server.check()
        check_duration(lease_for)
        answers: list[Extended | LeaseError | None] = list(await extend(self._server, reports, now, lease_for))
        refused = [index for index, answer in enumerate(answers) if answer is None]
        stored = await reading.get(self._server, [reports[index].id for index in refused])
        for index, job in zip(refused, stored, strict=True):
            report = reports[index]
            if refusal(job, report.id, report.token, now) is None:  # renewed meanwhile, by a clock that is behind
                (answers[index],) = await extend(self._server, [report], now, lease_for)
            if answers[index] is None:
                answers[index] = not_renewed(job, report, now)
        return [answer for answer in answers if answer is not None]

    async def settle(self, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
        self._server.check()
        # A claim that is made at the same time goes first: its jobs run while the server writes these outcomes.
        await asyncio.sleep(0)
        return await settling.settle(self._calls, transitions, now)

    async def close(self) -> None:
        await self._server.close()

    # Inspect

    async def get(self, ids: Sequence[str]) -> list[JobRecord | None]:
        self._server.check()
        return await reading.get(self._server, ids)

    async def find_key(self, key: str, now: datetime) -> str | None:
        return await self._run(_find_key, key, now)

    async def query(self, where: Filter, now: datetime, limit: int, after: str | None = None) -> list[JobRecord]:
        self._server.check()
        return await reading.query(self._server, where, now, limit, after)

    async def counts(self, now: datetime) -> list[QueueCounts]:
        self._server.check()
        return await reading.counts(self._server, now)

    async def dead_groups(self, where: Filter, now: datetime, limit: int) -> list[DeadGroup]:
        self._server.check()
        return await reading.dead_groups(self._server, where, now, limit)

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
        self._server.check()
        await write(self._calls, ("SADD" if paused else "SREM", "paused", queue), ("PUBLISH", "wake", ""))

    # Maintain

    async def sweep(self, now: datetime, keep_until: datetime, limit: int) -> int:
        self._server.check()
        ids = await reading.to_sweep(self._server, now, limit)
        done = 0
        for page in paged(ids):
            if done < limit:
                done += await self._run(stop.sweep, page, now, keep_until, limit - done)
        return done

    async def prune(self, now: datetime, limit: int) -> int:
        self._server.check()
        return await prune(self._calls, now, limit)

    # WorkflowStore

    async def parents(self, ids: Sequence[str], most: int) -> list[list[Parent]]:
        self._server.check()
        return [await reading.parents(self._server, id, most) for id in ids]

    async def workflows(
        self, limit: int, after: str | None = None, ids: Sequence[str] | None = None
    ) -> list[WorkflowCounts]:
        self._server.check()
        return await reading.workflows(self._server, limit, after, ids)

    async def free_workflow_key(self, workflow_id: str) -> bool:
        return await self._run(forget.free_workflow_key, workflow_id)

    # WaitForWork

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        self._server.check()
        await self._server.wait("wake", timeout)

    async def wait_for_end(self, id: str, timeout: float) -> None:
        self._server.check()
        await self._server.wait("ends", timeout)

    async def next_due(self, queues: Sequence[str]) -> datetime | None:
        self._server.check()
        return await reading.next_due(self._server, in_line(queues))

    # ServerClock

    async def server_now(self) -> datetime:
        self._server.check()
        return await self._server.now()

    # Durability

    async def durability(self) -> list[StoreSetting]:
        self._server.check()
        return checks.durability(await checks.settings(self._server.command))

    # Repairs

    async def repair(self, *, dry: bool) -> RepairReport:
        self._server.check()
        return await repair(BoundedCalls(self._server, REPAIR_WITHIN), dry=dry)

    # Erases

    async def erase(self) -> None:
        self._server.check()
        names = [name async for name in keys(self._server.command, self._server.prefix)]
        for name in names:
            await self._server.command("UNLINK", f"{self._server.prefix}{name}")

    # Schedules

    async def schedules(self) -> list[Schedule]:
        self._server.check()
        found = await self._server.command("HVALS", f"{self._server.prefix}schedules")
        return sorted(map(_schedule, found), key=lambda schedule: schedule.name)

    async def swap_schedules(self, swaps: Sequence[Swap], now: datetime) -> list[bool | JobExists]:
        return await self._run(swap.swap_schedules, swaps, now)

    # Registry

    async def beat(self, worker: WorkerRecord) -> None:
        self._server.check()
        await write(self._calls, ("HSET", "workers", worker.id, _encode(worker)))

    async def workers(self, seen_since: datetime) -> list[WorkerRecord]:
        self._server.check()
        found = map(_worker, await self._server.command("HVALS", f"{self._server.prefix}workers"))
        return sorted((worker for worker in found if worker.seen_at >= seen_since), key=lambda worker: worker.id)

    async def forget_worker(self, id: str) -> None:
        self._server.check()
        await self._server.command("HDEL", f"{self._server.prefix}workers", id)

    # Counters

    async def tallies(self, since: datetime) -> list[Tally]:
        self._server.check()
        return await reading.tallies(self._server, since)

    async def forget_tallies(self, before: datetime) -> None:
        self._server.check()
        prefix = self._server.prefix
        for minute in await self._server.command("ZRANGEBYSCORE", f"{prefix}minutes", "-inf", f"({micros(before)}"):
            await self._server.command("DEL", f"{prefix}tally:{minute.decode()}")
            await self._server.command("ZREM", f"{prefix}minutes", minute)


def paged(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Bites of a batch whose items do not depend on each other."""
    return (items[first : first + PAGE] for first in range(0, len(items), PAGE))


def _find_key(draft: Draft, key: str, now: datetime) -> VerbStep[str | None]:
    yield from draft.look_up_living([key])
    known = draft.living_key(key, now)
    return None if known is None else known.owner
