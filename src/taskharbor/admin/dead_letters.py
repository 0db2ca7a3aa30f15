"""Dead jobs for operators: `harbor.admin.dlq` (Q1, Q2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from shlex import quote
from types import EllipsisType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.admin.base import BULK_LIMIT, LIMIT, AdminPart, IdOrIds, Words, each
from taskharbor.admin.bulk import WOULD, Judge, OnProgress, check_limit, look_and_act, matching, would
from taskharbor.client.job_builder import key_expiry
from taskharbor.client.options import Duration, checked, seconds
from taskharbor.client.portal import blocking
from taskharbor.client.registered_task import Registered
from taskharbor.core.codec import Undecodable, checked_size, encode_named
from taskharbor.core.decide import by_hand
from taskharbor.core.evolve import Replay
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.reserved import TASKS
from taskharbor.core.shown import shown
from taskharbor.core.states import CANCELLED, DLQ, Shown
from taskharbor.core.wiring import Wiring, wired, wiring_of
from taskharbor.driver import DeadGroup, Inspect, Manage, Replaying, capability
from taskharbor.errors import ConfigError, IllegalMove, InvalidJob, JobNotFound, WrongArguments

MOMENT = timedelta(microseconds=1)


class Purged(Struct, frozen=True):
    """The ids of the jobs that a purge deleted, and of those that stay because others wait for them.

    `changed`: left alone, because they were gone before or did not match any more.
    """

    deleted: list[str]
    needed: list[str]
    changed: list[str] = []


class Replayed(Struct, frozen=True):
    """The ids of the jobs that run again, and of those among them whose key another job has now.

    `changed`: left alone, because they were gone or did not match any more.
    """

    replayed: list[str]
    without_key: list[str]
    changed: list[str] = []


class DeadLetters(AdminPart):
    """Jobs in the dead-letter queue."""

    async def alist(self, words: Words = "", *, limit: int = LIMIT, after: str | None = None) -> list[JobRecord]:
        """Matching dead jobs, the newest first."""
        return await self._matching(await self._dead(words), limit, after)

    async def aget(self, id: str) -> JobRecord:
        """One dead job with its reason and its failures, or `JobNotFound`."""
        job = await self._get(id)
        if job.state is not DLQ:
            raise JobNotFound(
                f"job {id} is {shown(job, self._now())}, not dead: see `taskharbor jobs show {quote(id)}`"
            )
        return job

    async def agroups(self, words: Words = "", *, limit: int = LIMIT) -> list[DeadGroup]:
        """Matching dead jobs by cause (Q1), the most frequent first; `group:<fingerprint>` names one."""
        where = await self._dead(words)
        async with self._client.store() as driver:
            groups = await capability(driver, Inspect).dead_groups(where, self._now(), limit)
        last = await self._client.records([group.last_id for group in groups])
        reasons = [None if job is None else by_hand(job) for job in last]
        return [
            group if reason is None else replace(group, error=f"by hand: {reason}")
            for group, reason in zip(groups, reasons, strict=True)
        ]

    async def areplay(
        self,
        id: str,
        *,
        arguments: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        idempotency_ttl: Duration | EllipsisType | None = ...,
    ) -> Replaying:
        """Run a dead or cancelled job again, optionally with other arguments or under a new key (Q2).

        The arguments replace the old ones for good; where the task is registered, they must fit it. Returns `replayed`,
        `replayed_without_key` if another job has the key by now, or `missing`. `IllegalMove` if the job is neither dead
        nor cancelled, or a TaskManager's task.
        """
        given: dict[str, Any] = {} if idempotency_key is None else {"idempotency_key": idempotency_key}
        if not isinstance(idempotency_ttl, EllipsisType):
            given["idempotency_ttl"] = idempotency_ttl
        key = checked(given)
        if (job := await self._client.record(id)) is None:
            return "missing"
        _check_replayable(job, with_key=bool(key))
        replay = Replay(
            id=id,
            payload=None if arguments is None else self.edited(job, arguments),
            idempotency_key=idempotency_key,
            key_expires_at=key_expiry(key, self._client.session.settings, self._now()) if key else None,
        )
        async with self._client.store() as driver:
            (answer,) = await capability(driver, Manage).replay([replay], self._now())
        if answer == "not_dead":
            job = await self._client.record(id)
            state = "gone" if job is None else shown(job, self._now()).value
            raise IllegalMove(
                f"job {id} is {state}: only a dead or cancelled job can be replayed; to run it again, enqueue it again"
            )
        return answer

    def edited(self, job: JobRecord, arguments: Mapping[str, Any]) -> bytes:
        """The job's payload with other arguments, or why they do not fit; its place in a workflow stays (K3)."""
        if not isinstance(arguments, Mapping):
            raise InvalidJob(f"arguments must be a dict by the names of parameters, not {arguments!r}")
        limit, wiring = self._client.session.payload_limit, wiring_of(job.payload)
        task = self._client.tasks.get(job.type)
        payload = encode_named(arguments, limit) if task is None else _fitting(task, arguments, wiring, limit)
        return checked_size(wired(payload, wiring), limit, f"the arguments of {job.type}")

    async def areplay_all(
        self,
        words: Words = "",
        *,
        limit: int = BULK_LIMIT,
        dry_run: bool = False,
        among: IdOrIds | None = None,
        progress: OnProgress | None = None,
    ) -> Replayed:
        """Run all matching dead jobs again, at most `limit`. `dry_run` only looks.

        `among`: only these jobs, such as those of a dry run before. Each is looked at again right before the replay;
        one that does not match any more is left alone (`changed`). Tasks of a TaskManager are left out. `progress` is
        called with the number of jobs done so far.
        """
        where = await self._dead(words)
        look = _looking(where, None, tasks=False)
        ids = await self._ids(where, look, limit, among, dry_run)
        # Jobs go before their dependants, which have to wait for them.
        return Replayed(ids, []) if dry_run else await self._replay_ids(ids[::-1], look, progress)

    async def areplay_ids(self, ids: IdOrIds) -> Replayed:
        """Run these dead or cancelled jobs again, but no tasks of a TaskManager."""
        return await self._replay_ids(each(ids), _taking(lambda job: job.queue != TASKS))

    async def _replay_ids(self, ids: Sequence[str], look: Judge, progress: OnProgress | None = None) -> Replayed:
        _check_number(ids)
        found = Replayed([], [])
        answers = await look_and_act(self._client, ids, look, self._replay, progress)
        for id, answer in zip(ids, answers, strict=True):
            (found.replayed if answer.startswith("replayed") else found.changed).append(id)
            if answer == "replayed_without_key":
                found.without_key.append(id)
        return found

    async def apurge(
        self,
        words: Words = "",
        *,
        older_than: Duration | None = None,
        limit: int = BULK_LIMIT,
        dry_run: bool = False,
        among: IdOrIds | None = None,
        progress: OnProgress | None = None,
    ) -> Purged:
        """Delete matching dead jobs for good, at most `limit`; with `older_than`, those that died so long ago.

        One that others in its workflow wait for stays; if those are cancelled, they go with it (Q2). Failed tasks of a
        TaskManager are dead jobs here. `dry_run` only looks, and does not find these out. `among`: only these jobs, as
        in `replay_all`.
        """
        where = await self._dead(words)
        last = None if older_than is None else _before(self._now(), older_than)
        if last is not None:  # a job that died by then was created by then
            where = replace(where, until=min(where.until or last + MOMENT, last + MOMENT))
        look = _looking(where, last, tasks=True)
        ids = await self._ids(where, look, limit, among, dry_run)
        return Purged(ids, []) if dry_run else await self._purge(ids, look, progress)

    async def apurge_ids(self, ids: IdOrIds) -> Purged:
        """Delete these jobs, if they have ended and no others need them but cancelled ones, which go with them."""
        return await self._purge(each(ids), _taking(lambda _: True))

    async def _purge(self, ids: Sequence[str], look: Judge, progress: OnProgress | None = None) -> Purged:
        first = await self._delete_ids(ids, look, progress)
        if not first.needed or not await self._delete_cancelled(first.needed):
            return first
        second = await self._delete_ids(first.needed, look)
        return Purged(first.deleted + second.deleted, second.needed, first.changed + second.changed)

    async def _delete_cancelled(self, ids: Sequence[str]) -> bool:
        """Delete the cancelled jobs in the workflows of these jobs, the last ones first; whether there were any."""
        jobs, gone = await self._client.records(ids), False
        for workflow in dict.fromkeys(job.workflow_id for job in jobs if job is not None and job.workflow_id):
            async for page in self._client.pages(Filter(workflow_id=workflow, states=(Shown.CANCELLED,))):
                cancelled = _taking(lambda job: job.state is CANCELLED)
                gone |= bool((await self._delete_ids([job.id for job in page], cancelled)).deleted)
        return gone

    async def _delete_ids(self, ids: Sequence[str], look: Judge, progress: OnProgress | None = None) -> Purged:
        _check_number(ids)
        purged = Purged([], [])
        lists = {"deleted": purged.deleted, "needed": purged.needed}
        answers = await look_and_act(self._client, ids, look, self._delete, progress)
        for id, answer in zip(ids, answers, strict=True):
            lists.get(answer, purged.changed).append(id)
        return purged

    async def _ids(self, where: Filter, look: Judge, limit: int, among: IdOrIds | None, dry_run: bool) -> list[str]:
        """The ids of matching dead jobs, the newest first."""
        if among is None:
            pages = self._client.pages(where)
            return await matching(lambda job: look(job, self._now()) == WOULD, pages, limit, BULK_LIMIT)
        check_limit(limit, BULK_LIMIT)
        named = [*dict.fromkeys(each(among))]
        _check_number(named)
        return await would(self._client, named, look) if dry_run else named

    async def _dead(self, words: Words) -> Filter:
        where = await self._filter(words)
        if not set(where.states) <= {Shown.DLQ}:
            raise ConfigError("the dead-letter queue holds dead jobs only: leave state: out, or look through all jobs")
        return replace(where, states=(Shown.DLQ,))

    list = blocking(alist)
    get = blocking(aget)
    groups = blocking(agroups)
    replay = blocking(areplay)
    replay_all = blocking(areplay_all)
    replay_ids = blocking(areplay_ids)
    purge = blocking(apurge)
    purge_ids = blocking(apurge_ids)


def _check_number(ids: Sequence[str]) -> None:
    if len(ids) > BULK_LIMIT:
        raise InvalidJob(f"{len(ids):,} jobs are too many for one call: at most {BULK_LIMIT:,}")


def _looking(where: Filter, last: datetime | None, *, tasks: bool) -> Judge:
    """Take dead jobs that match and died by `last`; those of a TaskManager only with `tasks`."""

    def look(job: JobRecord | None, now: datetime) -> str:
        if job is None or not where.matches(job, now) or (job.queue == TASKS and not tasks):
            return "changed"
        return WOULD if last is None or (job.completed_at or job.created_at) <= last else "changed"

    return look


def _taking(takes: Callable[[JobRecord], bool]) -> Judge:
    return lambda job, _: WOULD if job is not None and takes(job) else "changed"


def _check_replayable(job: JobRecord, *, with_key: bool) -> None:
    """Refuse a replay that this job can never have, whatever its state."""
    if job.queue == TASKS:
        raise IllegalMove(
            f"{job.id} is a TaskManager's task, whose attempts are its claims: put it back with "
            "TaskManager.retry while attempts remain, or delete it and submit it again"
        )
    if with_key and job.workflow_id is not None:
        raise InvalidJob(f"job {job.id} is a step of a workflow and has no key of its own: leave idempotency_key out")


def _fitting(task: Registered, arguments: Mapping[str, Any], wiring: Wiring, limit: int) -> bytes:
    """The payload of named arguments that fit the task; without the first if the steps before give it (K3)."""
    signature = task.signature
    if wiring.takes is None:
        payload = encode_named(arguments, limit)
        try:
            signature.decode(payload)
        except Undecodable as error:
            raise WrongArguments(f"task {task.name}: {error}") from None
        return payload
    return signature.encode_rest(Any, (), arguments, limit)


def _before(now: datetime, age: Duration) -> datetime:
    try:
        if (length := timedelta(seconds=seconds(age))) >= timedelta():
            return now - length
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidJob(f"older_than must be seconds or a timedelta, neither negative nor before all time, not {age!r}")
