"""The claimer: makes and renews claims, also if the call that makes one is cancelled (M4)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import datetime
from typing import Any, TypeVar

from taskharbor.client.options import Duration
from taskharbor.core import evolve
from taskharbor.core.decide import token_of
from taskharbor.core.job import JobRecord
from taskharbor.driver import Extended
from taskharbor.errors import TaskAlreadyClaimed, WrongWorker
from taskharbor.manager import checks, rules
from taskharbor.manager.checks import Caller
from taskharbor.manager.claims import Claims
from taskharbor.manager.lifecycle import Lifecycle
from taskharbor.manager.task import Task, TaskStatus, claimed_task, is_held, status_of
from taskharbor.manager.task_store import TaskStore

T = TypeVar("T")
TRIES = 8
BREATH = 0.002


class Claimer:
    """Makes and renews claims; `claims` are those that this manager holds."""

    def __init__(self, lifecycle: Lifecycle, lease: Duration) -> None:
        self.claims = Claims()
        self._store = lifecycle.store
        self._lease = checks.checked_lease(lease)
        self._going_on: set[asyncio.Task[Any]] = set()

    async def claim(self, store: TaskStore, who: Caller) -> Task:
        """Claim a pending task, or renew this worker's claim."""
        id, worker = who.id, who.worker
        tries = 0
        while tries < TRIES:
            held = self.claims.of(id, worker)
            if held is not None and (job := await self.renewed(store, held)) is not None:
                return claimed_task(job, store.now)
            job = await store.find(id)
            coming = self.claims.is_claiming(id, worker)  # asked first: a claim is held before it ends
            is_own = job.lease is not None and job.lease.worker == worker
            if is_own and is_held(job, store.now) and (coming or self.claims.has(job)):
                tries += not coming  # another call of the same worker: once it has the token, so has this one
            else:
                _check_claimable(job, who, store.now)
                if (task := await self._to_the_end(self._reserve(job, worker))) is not None:
                    return task
                tries += 1
            await asyncio.sleep(max(1, tries) * BREATH)
        raise TaskAlreadyClaimed(f"others are claiming task {id} at this moment: take another one, or try again")

    async def resume(self, store: TaskStore, who: Caller) -> Task:
        """Renew the claim of the caller's token, and take it over. Never makes a new claim."""
        claim = await self.claim_of(store, who)
        if claim is not None and (job := await self.renewed(store, claim)) is not None:
            self.claims.take(job, store.now)
            return claimed_task(job, store.now)
        job = await store.find(who.id)
        refused = rules.refusal(job, who, store.now)
        raise rules.taken(job, who) if isinstance(refused, WrongWorker) else refused

    async def claim_of(self, store: TaskStore, who: Caller) -> JobRecord | None:
        """The claim of the caller's token, or without one this manager's own claim; it may have expired."""
        held = self.claims.of(who.id, who.worker)
        if who.token is None or (held is not None and token_of(held) == who.token):
            return held
        job = await store.find(who.id)
        return job if rules.is_claim(job, who) else None

    async def renewed(
        self, store: TaskStore, claim: JobRecord, fraction: float | None = None, note: str = ""
    ) -> JobRecord | None:
        """Renew this claim and return the task as it is stored; None if the claim is over."""
        if not await self._extend(store, claim, fraction, note):
            return None
        job = await store.find(claim.id)
        return job if is_held(job, store.now) and token_of(job) == token_of(claim) else None

    async def _extend(self, store: TaskStore, held: JobRecord, fraction: float | None, note: str) -> bool:
        progress = checks.checked_progress(fraction, note, held.progress)
        answer = await store.extend(held, self._lease, progress)
        if not isinstance(answer, Extended):
            return False
        self.claims.renew(evolve.extended(held, answer.expires_at, None, progress))
        return True

    async def _reserve(self, job: JobRecord, worker: str) -> Task | None:
        with self.claims.claiming(job.id, worker):
            async with self._store() as store:
                claimed = await store.claim(job, worker, self._lease)
                return None if claimed is None else await self._taken(store, claimed)

    async def _taken(self, store: TaskStore, job: JobRecord) -> Task:
        if job.max_attempts is not None and job.version > job.max_attempts:
            await store.settle(rules.spent(job, now := store.now), now)
            raise rules.used_up(job)
        self.claims.take(job, store.now)
        return claimed_task(job, store.now)

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this even if the caller is cancelled: a claim whose token is lost would block the task."""
        going_on = asyncio.ensure_future(work)
        self._going_on.add(going_on)
        going_on.add_done_callback(self._ended)
        await asyncio.wait([going_on])
        return going_on.result()

    def _ended(self, work: asyncio.Task[Any]) -> None:
        self._going_on.discard(work)
        if not work.cancelled():
            work.exception()  # retrieved: the caller may be gone


def _check_claimable(job: JobRecord, who: Caller, now: datetime) -> None:
    status = status_of(job, now)
    if status in (TaskStatus.COMPLETED, TaskStatus.FAILED):
        raise rules.ended(job, now)
    if status is TaskStatus.CLAIMED:
        raise rules.taken(job, who)
