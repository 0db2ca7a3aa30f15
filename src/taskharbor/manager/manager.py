"""The manager: checks each call, has the store carry it out in one atomic step, and explains refusals (M1-M4).

The store decides by the token of the claim who may complete a task, never by the worker's name.
"""

from __future__ import annotations

import asyncio
from collections import deque
from random import Random
from typing import Self

from taskharbor.client.clock import Clock
from taskharbor.client.options import Duration
from taskharbor.client.portal import blocking
from taskharbor.core import evolve
from taskharbor.core.codec import checked_size
from taskharbor.core.job import JobRecord
from taskharbor.core.reserved import KEY_PREFIX
from taskharbor.core.states import CANCELLED, DLQ, DONE
from taskharbor.driver import Driver
from taskharbor.errors import TaskNotFound, TaskNotTerminal
from taskharbor.harbor import Harbor
from taskharbor.manager import checks, rules
from taskharbor.manager.claimer import BREATH, TRIES, Claimer
from taskharbor.manager.lifecycle import CallGate, Lifecycle
from taskharbor.manager.submitting import NewTask
from taskharbor.manager.task import STATES, Task, TaskStatus, is_held, is_spent, is_stopping, status_of, task_of
from taskharbor.manager.task_store import PAGE, TaskStore


class TaskManager:
    """Tasks in the store of a URL (None: as for `Harbor`), of a driver or of a harbor.

    A claim lasts `lease` seconds, and a `heartbeat` renews it. It belongs to this manager object, and to any process
    that passes its token. For any number of threads and event loops. `clock` and `rng` are for tests.
    """

    def __init__(
        self,
        store: str | Driver | Harbor | None = None,
        *,
        lease: Duration = 30.0,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        self._lifecycle = Lifecycle(store, clock, rng)
        self._claimer = Claimer(self._lifecycle, lease)
        self._claims = self._claimer.claims

    def __repr__(self) -> str:
        return f"<TaskManager on {self._lifecycle.harbor!r}>"

    @property
    def portal(self) -> CallGate:
        return self._lifecycle.gate

    async def aclose(self) -> None:
        """Close the store, if this manager opened it, after the calls under way. Later calls raise `StoreClosed`."""
        await self._lifecycle.aclose()

    def close(self) -> None:
        """The blocking twin of `aclose`."""
        self._lifecycle.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # submitting

    async def asubmit(self, payload: bytes, *, idempotency_key: str | None = None, max_attempts: int = 0) -> str:
        """Store a task and return its id; a known key stores nothing and returns the id that is there (I1)."""
        task = NewTask.checked(payload, idempotency_key, max_attempts)
        with self._lifecycle.gate.entered():
            return await self._lifecycle.harbor.client.submit(task)

    def submit(self, payload: bytes, *, idempotency_key: str | None = None, max_attempts: int = 0) -> str:
        """The blocking twin of `asubmit`."""
        task = NewTask.checked(payload, idempotency_key, max_attempts)
        with self._lifecycle.gate.entered():
            return self._lifecycle.harbor.client.submit_blocking("asubmit", task)

    # working

    async def aclaim(self, task_id: str, worker_id: str, *, token: str | None = None) -> Task:
        """Take a pending task under a lease, or renew this worker's claim. Only `claim` returns a `claim_token`.

        With `token`, that claim is renewed and belongs to this manager from now on; no new claim is made. If the call
        is cancelled or times out, the claim may still be made: the worker's next `claim` finds it.
        """
        who = checks.checked_caller(task_id, worker_id, token)
        async with self._lifecycle.store() as store:
            return await (self._claimer.claim(store, who) if token is None else self._claimer.resume(store, who))

    async def aheartbeat(
        self, task_id: str, worker_id: str, progress: float | None = None, note: str = "", *, token: str | None = None
    ) -> Task:
        """Renew a claim, and report the progress of the work (0 to 1) if it is known.

        The task has the new `claim_expires_at`; `cancel_requested` is True if an operator wants it to end.
        """
        who = checks.checked_caller(task_id, worker_id, token)
        checks.checked_progress(progress, note, None)
        async with self._lifecycle.store() as store:
            claim = await self._claimer.claim_of(store, who)
            if claim is not None and (job := await self._claimer.renewed(store, claim, progress, note)) is not None:
                return task_of(job, store.now)
            raise rules.refusal(await store.find(who.id), who, store.now)

    async def acomplete(
        self, task_id: str, worker_id: str, result: bytes | None = None, *, token: str | None = None
    ) -> Task:
        """Complete a claimed task. Repeated by the claim that completed it, return what is stored."""
        who = checks.checked_caller(task_id, worker_id, token)
        checks.typed(result, bytes | None, "result must be bytes or None", ": encode it first")
        async with self._lifecycle.store() as store:
            checked_size(result or b"", store.limit, "the bytes of the result")
            if (claim := await self._claimer.claim_of(store, who)) is not None:
                to, now = rules.completed(claim, result), store.now
                if await store.settle(to, now) == "ok":
                    return await self._settled(store, evolve.settled(claim, to, now))
            job = await store.find(who.id)
            if job.state is DONE:
                self._claims.drop(who.id)
            if rules.is_completed_by(job, who, claim, result):
                return task_of(job, store.now)
            raise rules.refusal(job, who, store.now)

    async def afail(
        self, task_id: str, worker_id: str, error: str | BaseException, *, token: str | None = None
    ) -> Task:
        """Fail a claimed task: it is pending again while attempts remain. Repeated by the same claim, return what is
        stored."""
        who = checks.checked_caller(task_id, worker_id, token)
        failure = rules.failure_of(checks.typed(error, str | BaseException, "error must be text or an exception"))
        async with self._lifecycle.store() as store:
            if (claim := await self._claimer.claim_of(store, who)) is not None:
                to = rules.failed(claim, failure, now := store.now)
                if await store.settle(to, now) == "ok":
                    return await self._settled(store, evolve.settled(claim, to, now))
            job = await store.find(who.id)
            if rules.is_failed_by(job, who, claim, failure):
                self._claims.forget(who.id, job.settled_token)
                return task_of(job, store.now)
            raise rules.refusal(job, who, store.now)

    async def _settled(self, store: TaskStore, job: JobRecord) -> Task:
        """The task as it is stored after its settle; if it was deleted meanwhile, without its payload."""
        try:
            stored = await store.find(job.id)
        except TaskNotFound:
            stored = job
        self._claims.forget(job.id, job.settled_token)
        return task_of(stored, store.now)

    # looking after

    async def aretry(self, task_id: str) -> Task:
        """Put a claimed or failed task back to pending while attempts remain, also if another worker holds it."""
        id = checks.checked_id(task_id)
        async with self._lifecycle.store() as store:
            for number in range(TRIES):
                await asyncio.sleep(number * BREATH)
                job = await store.find(id)
                if job.state is DONE:
                    raise rules.ended(job, store.now)
                if is_spent(job):
                    raise rules.used_up(job)
                if (found := await self._put_back(store, job)) is not None:
                    return task_of(found, store.now)
        raise rules.contention(id)

    async def _put_back(self, store: TaskStore, job: JobRecord) -> JobRecord | None:
        """The task as pending; None if it has changed meanwhile."""
        if job.state in (DLQ, CANCELLED):
            return await store.find(job.id) if await store.replay(job) else None
        if not is_held(job, store.now):
            return None if is_stopping(job, store.now) else job
        to = rules.put_back(job, now := store.now)
        if await store.settle(to, now) != "ok":
            return None
        self._claims.forget(job.id, to.token)
        back = await store.find(job.id)
        if back.state in (DLQ, CANCELLED) and back.settled_token == to.token:  # an operator had asked for that end
            await store.replay(back)
            back = await store.find(job.id)
        return back

    async def aget(self, task_id: str) -> Task:
        """A task by its id."""
        id = checks.checked_id(task_id)
        async with self._lifecycle.store() as store:
            return task_of(await store.find(id), store.now)

    async def aget_by_idempotency_key(self, key: str) -> Task:
        """A task by the key that it was submitted with."""
        stored = checks.stored_key(key)
        async with self._lifecycle.store() as store:
            id = await store.find_key(stored)
            if id is None:
                raise TaskNotFound(f"there is no task with the key {stored.removeprefix(KEY_PREFIX)!r}")
            return task_of(await store.find(id), store.now)

    async def alist(self, status: TaskStatus | str | None = None, *, limit: int | None = None) -> list[Task]:
        """Tasks of a status, or all, the oldest first. All that match are read, also with a limit."""
        only, most = checks.checked_status(status), checks.checked_limit(limit)
        found: deque[Task] = deque(maxlen=most)
        seen: set[str] = set()
        after: str | None = None
        while True:
            async with self._lifecycle.store() as store:  # each page has the time that any call has
                page, now = await store.page(() if only is None else STATES[only], after), store.now
            tasks = [task_of(job, now) for job in page if job.id not in seen]
            found.extendleft(task for task in tasks if only in (None, task.status))
            seen.update(task.id for task in tasks)
            if len(page) < PAGE:
                return list(found)
            after = page[-1].id

    async def adelete(self, task_id: str) -> None:
        """Remove a task that has ended, and its key."""
        id = checks.checked_id(task_id)
        async with self._lifecycle.store() as store:
            for _ in range(TRIES):
                await store.find(id)
                answer = await store.delete(id)
                if answer == "deleted":
                    return
                if answer == "missing":
                    raise TaskNotFound(f"task {id} was deleted meanwhile")
                status = status_of(await store.find(id), store.now)
                if status in (TaskStatus.PENDING, TaskStatus.CLAIMED):
                    raise TaskNotTerminal(f"task {id} is {status}: only completed and failed tasks can be deleted")
        raise rules.contention(id)

    claim = blocking(aclaim)
    heartbeat = blocking(aheartbeat)
    complete = blocking(acomplete)
    fail = blocking(afail)
    retry = blocking(aretry)
    get = blocking(aget)
    get_by_idempotency_key = blocking(aget_by_idempotency_key)
    list = blocking(alist)
    delete = blocking(adelete)
