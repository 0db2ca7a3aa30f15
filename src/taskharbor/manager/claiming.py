"""Claims: how they are made, and kept, whatever becomes of the call that makes them (M4)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import datetime
from random import Random
from typing import Any, TypeVar

from taskharbor.client.clock import Clock
from taskharbor.client.forking import after_fork
from taskharbor.client.options import Duration
from taskharbor.core import evolve
from taskharbor.core.decide import token_of
from taskharbor.core.job import JobRecord
from taskharbor.driver import Driver, Extended
from taskharbor.errors import TaskAlreadyClaimed
from taskharbor.harbor import Harbor
from taskharbor.manager import checks, rules
from taskharbor.manager.checks import Caller
from taskharbor.manager.desk import Desk
from taskharbor.manager.holding import Holding
from taskharbor.manager.life import Life
from taskharbor.manager.task import Task, TaskStatus, claimed_task, is_held, status_of

T = TypeVar("T")
TRIES = 8
BREATH = 0.002


class Claiming(Life):
    """Makes claims and holds them."""

    def __init__(
        self, store: str | Driver | Harbor | None, lease: Duration, clock: Clock | None, chance: Random | None
    ) -> None:
        super().__init__(store, clock, chance)
        self._lease = checks.checked_lease(lease)
        self._held = Holding()
        self._going_on: set[asyncio.Task[Any]] = set()
        after_fork(self, Claiming._renew)

    def _renew(self) -> None:
        """A forked child has claimed nothing."""
        self._held = Holding()
        self._gate.renew()

    async def _claim(self, desk: Desk, who: Caller) -> Task:
        id, worker = who.id, who.worker
        tries = 0
        while tries < TRIES:
            held = self._held.of(id, worker)
            if held is not None and (job := await self._renewed(desk, held)) is not None:
                return claimed_task(job, desk.now)
            job = await desk.find(id)
            coming = self._held.is_claiming(id, worker)  # asked first: what is claimed is held before it ends
            if is_held(job, desk.now) and rules.is_holder(job, worker) and (coming or self._held.has(job)):
                tries += not coming  # another call of the same worker: once it has the token, so has this one
            else:
                _check_claimable(job, who, desk.now)
                if (task := await self._to_the_end(self._reserve(job, worker))) is not None:
                    return task
                tries += 1
            await asyncio.sleep(max(1, tries) * BREATH)
        raise TaskAlreadyClaimed(f"others are claiming task {id} at this moment: take another one, or try again")

    async def _resume(self, desk: Desk, who: Caller) -> Task:
        """The claim of the caller's token, renewed and from now on this manager's; never a new claim."""
        claim = await self._claim_of(desk, who)
        if claim is not None and (job := await self._renewed(desk, claim)) is not None:
            self._held.take(job, desk.now)
            return claimed_task(job, desk.now)
        raise rules.not_resumed(await desk.find(who.id), who, desk.now)

    async def _claim_of(self, desk: Desk, who: Caller) -> JobRecord | None:
        """The claim that the caller acts for, whether it has expired or not. A token that is passed decides alone;
        without one, it is this manager's own claim."""
        held = self._held.of(who.id, who.worker)
        if who.token is None or (held is not None and token_of(held) == who.token):
            return held
        job = await desk.find(who.id)
        return job if rules.is_claim(job, who) else None

    async def _renewed(
        self, desk: Desk, claim: JobRecord, fraction: float | None = None, note: str = ""
    ) -> JobRecord | None:
        """The task with a new expiry of this claim, as it is stored; None if the claim is over."""
        if not isinstance(await self._extend(desk, claim, fraction, note), JobRecord):
            return None
        job = await desk.find(claim.id)
        return job if is_held(job, desk.now) and token_of(job) == token_of(claim) else None

    async def _extend(self, desk: Desk, held: JobRecord, fraction: float | None, note: str) -> JobRecord | Exception:
        progress = checks.checked_progress(fraction, note, held.progress)
        answer = await desk.extend(held, self._lease, progress)
        if not isinstance(answer, Extended):
            return answer
        held = evolve.extended(held, answer.expires_at, None, progress)
        self._held.renew(held)
        return held

    async def _reserve(self, job: JobRecord, worker: str) -> Task | None:
        with self._held.claiming(job.id, worker):
            async with self._desk() as desk:
                claimed = await desk.claim(job, worker, self._lease)
                return None if claimed is None else await self._taken(desk, claimed)

    async def _taken(self, desk: Desk, job: JobRecord) -> Task:
        if job.max_attempts is not None and job.version > job.max_attempts:
            await desk.settle(rules.spent(job, now := desk.now), now)
            raise rules.used_up(job)
        self._held.take(job, desk.now)
        return claimed_task(job, desk.now)

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this even if the caller is cancelled: a claim whose token nobody knows would be in everybody's way."""
        going_on = asyncio.ensure_future(work)
        self._going_on.add(going_on)
        going_on.add_done_callback(self._ended)
        await asyncio.wait([going_on])
        return going_on.result()

    def _ended(self, work: asyncio.Task[Any]) -> None:
        self._going_on.discard(work)
        if not work.cancelled():
            work.exception()  # if nobody waits for it any more, nobody has to hear of it


def _check_claimable(job: JobRecord, who: Caller, now: datetime) -> None:
    status = status_of(job, now)
    if status in (TaskStatus.COMPLETED, TaskStatus.FAILED):
        raise rules.ended(job, now)
    if status is TaskStatus.CLAIMED:
        raise rules.taken(job, who)
