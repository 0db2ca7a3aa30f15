"""Getting jobs into the store, and looking after them from outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec.structs import replace

from taskharbor.client.attendance import Watch
from taskharbor.client.batching import no_answer
from taskharbor.client.handle import Collected, Job
from taskharbor.client.hints import discard
from taskharbor.client.portal import Portal
from taskharbor.client.registered_task import Registered
from taskharbor.client.session import Session
from taskharbor.client.step import Preparation, Step, key_expiry
from taskharbor.core.arguments import known
from taskharbor.core.codec import checked_size
from taskharbor.core.decide import later
from taskharbor.core.job import JobRecord, NewJob
from taskharbor.core.reserved import TASKS
from taskharbor.core.states import TERMINAL, shown
from taskharbor.core.workflow import mapped
from taskharbor.driver import (
    Cancellation,
    Driver,
    Enqueued,
    Group,
    GroupResult,
    Inspect,
    Manage,
    Transaction,
    WaitForWork,
    Within,
    WorkflowCounts,
    WorkflowStore,
    at_once,
    capability,
    offered,
)
from taskharbor.errors import CapabilityMissing, ConfigError, DriverError, InvalidJob
from taskharbor.worker.context import lineage
from taskharbor.workflows.flow import Flow, FlowOptions, Plan
from taskharbor.workflows.run import Run

R = TypeVar("R")
LONGEST_WAIT = 5.0
BREATH = 0.0005


closed_world: ContextVar[bool] = ContextVar("taskharbor_closed_world", default=False)
_stand_ins: ContextVar[Mapping[Client, Session]] = ContextVar("taskharbor_stand_ins", default=MappingProxyType({}))


class Client:
    """What tasks, handles and the harbor share to reach the store."""

    def __init__(self, session: Session) -> None:
        self._sessions = [session]
        self._waiting = 0
        self.tasks: Mapping[str, Registered] = {}

    @property
    def session(self) -> Session:
        """The harbor's own session, unless another stands in for it here; in a closed world there is no other."""
        found = _stand_ins.get().get(self)
        if found is None and closed_world.get():
            raise ConfigError("this harbor is not part of the simulation: give it to cluster.workers or cluster.client")
        return found or self._sessions[-1]

    @contextmanager
    def stand_in(self, session: Session) -> Generator[None]:
        """Use this session inside the block, whoever asks."""
        self._sessions.append(session)
        try:
            yield
        finally:
            self._sessions.remove(session)

    @contextmanager
    def stand_in_here(self, session: Session) -> Generator[None]:
        """Use this session inside the block, and in the tasks that start there."""
        before = _stand_ins.set({**_stand_ins.get(), self: session})
        try:
            yield
        finally:
            _stand_ins.reset(before)

    def seen(self, record: JobRecord) -> JobRecord:
        """The record for those who use the library: its `arguments` are decoded by the signature of its task.

        The token of a TaskManager's claim is left out.
        """
        if record.queue == TASKS:  # whoever has the token of a claim may complete the task (M1)
            lease = None if record.lease is None else replace(record.lease, token="")
            return replace(record, lease=lease, settled_token=None)
        task = self.tasks.get(record.type)
        return record if task is None else replace(record, payload=known(record.payload, task.named))

    @property
    def portal(self) -> Portal:
        """Where blocking twins run."""
        return self.session.portal

    @asynccontextmanager
    async def store(self) -> AsyncGenerator[Driver]:
        """The driver, with a bound on how long an operation may take (X2)."""
        limit = self.session.settings.store_timeout
        try:
            async with asyncio.timeout(limit):
                yield await self.session.driver()
        except TimeoutError as error:
            raise no_answer(limit) from error

    async def enqueue(self, steps: Sequence[Step[Any]]) -> list[Job[Any]]:
        """Store the steps as one group: all of them or none (D1)."""
        if not steps:
            return []
        handle = transaction_of(steps)
        session = self.session
        async with self.store() as driver:
            target = driver if handle is None else _joined(driver, handle, blocks=False)
            group = Group(jobs=tuple(self._prepared(steps, session)))
            (result,) = await target.enqueue([group], session.now())
        return self._handles(steps, result)

    def enqueue_blocking(self, steps: Sequence[Step[Any]], handle: object) -> list[Job[Any]]:
        """Store the steps within the transaction of a handle that blocks: in this thread, which is the handle's."""
        session = self.session
        driver = session.portal.run(self._opened)
        tx = _joined(driver, handle, blocks=True)
        (result,) = at_once(tx.enqueue([Group(jobs=tuple(self._prepared(steps, session)))], session.now()))
        return self._handles(steps, result)

    async def enqueue_flow(self, plan: Plan[R], options: FlowOptions) -> Run[R]:
        """Store the steps of a flow as one group, under its key if it has one (D1)."""
        session = self.session
        async with self.store() as driver:
            handle = options.get("tx")
            target = driver if handle is None else _joined(driver, handle, blocks=False)
            group = self._group(plan, options, session)
            (result,) = await target.enqueue([group], session.now())
        return self._run(plan, group, result)

    def enqueue_flow_blocking(self, plan: Plan[R], options: FlowOptions) -> Run[R]:
        """Store a flow within the transaction of a handle that blocks: in this thread, which is the handle's."""
        session = self.session
        driver = session.portal.run(self._opened)
        tx = _joined(driver, options.get("tx"), blocks=True)
        group = self._group(plan, options, session)
        (result,) = at_once(tx.enqueue([group], session.now()))
        return self._run(plan, group, result)

    def _group(self, plan: Plan[Any], options: FlowOptions, session: Session) -> Group:
        now = session.now()
        preparation = Preparation(session.settings, now, session.chance, lineage())
        workflow_id = preparation.new_id()
        jobs = plan.jobs(preparation, workflow_id)
        limit = session.payload_limit
        for job in jobs:
            if len(job.payload) > limit:
                checked_size(job.payload, limit, f"the arguments of {job.type}")
        key = options.get("idempotency_key")
        expires_at = None if key is None else key_expiry(options, session.settings, now)
        return Group(jobs=tuple(jobs), key=key, key_expires_at=expires_at, workflow_id=workflow_id)

    def _run(self, plan: Plan[R], group: Group, result: GroupResult) -> Run[R]:
        if isinstance(result, Exception):
            raise result
        first = result[0]

        def returns(number: int) -> Any:
            return plan.laid[number].step.returns

        if not first.created:
            known = mapped(plan.outs, returns) if first.same_payload else None
            return Run(self, first.id, None, False, first.same_payload, known)

        def handle(number: int) -> Job[Any]:
            return (Collected if number in plan.collected else Job)(self, result[number].id, returns(number))

        return Run(self, group.workflow_id or "", mapped(plan.outs, handle))

    async def _opened(self) -> Driver:
        async with self.store() as driver:
            return driver

    def _handles(self, steps: Sequence[Step[Any]], result: GroupResult) -> list[Job[Any]]:
        if isinstance(result, Exception):
            raise result
        return [
            Job(self, stored.id, step.task.signature.returns, stored.created, stored.same_payload)
            for step, stored in zip(steps, result, strict=True)
        ]

    async def enqueue_one(self, step: Step[R]) -> Job[R]:
        """Store one step, together with others that are enqueued at this moment; but in a transaction, alone."""
        if transaction_of([step]) is not None:
            return (await self.enqueue([step]))[0]
        session = self.session
        if not session.is_open:  # the engine's clock and its limits are known once it is
            async with self.store():
                pass
        result = await session.intake.store(Group(jobs=tuple(self._prepared([step], session))))
        if isinstance(result, Exception):
            raise result
        (stored,) = result
        return Job(self, stored.id, step.task.signature.returns, stored.created, stored.same_payload)

    def enqueue_with(self, flow: Flow[R]) -> tuple[tuple[NewJob, ...], Job[R] | Run[R]]:
        """The jobs of a step or a flow, to be stored when the running job succeeds, and the handle on them."""
        if not isinstance(flow, Flow):
            raise InvalidJob(f"only steps and flows can be enqueued, such as task.step(…), not {flow!r}")
        if isinstance(flow, Step):
            return self._step_with(flow)
        plan = Plan(flow)
        if plan.client is None:
            return (), plan.nothing()
        if plan.client is not self:
            raise InvalidJob("this flow belongs to another harbor than the running job: enqueue it by itself")
        group = self._group(plan, {}, self.session)
        return group.jobs, self._run(plan, group, tuple(Enqueued(job.id, True) for job in group.jobs))

    def _step_with(self, step: Step[R]) -> tuple[tuple[NewJob, ...], Job[R]]:
        if transaction_of([step]) is not None:
            raise InvalidJob("current().enqueue stores with the job's own Ack, in no other transaction: leave tx= out")
        (job,) = self._prepared([step], self.session)
        return (job,), Job(self, job.id, step.task.signature.returns)

    def _prepared(self, steps: Sequence[Step[Any]], session: Session) -> list[NewJob]:
        if any(step.client is not self for step in steps):
            raise InvalidJob("a step belongs to another harbor than the one that was to enqueue it")
        limit = session.payload_limit  # also the engine's own, which is known once it is open
        preparation = Preparation(session.settings, session.now(), session.chance, lineage())
        for step in steps:
            if len(step.payload) > limit:
                checked_size(step.payload, limit, f"the arguments of {step.task.name}")
        return preparation.jobs(steps)

    async def record(self, id: str) -> JobRecord | None:
        """The job as stored."""
        async with self.store() as driver:
            return (await capability(driver, Inspect).get([id]))[0]

    async def workflow(self, id: str) -> WorkflowCounts | None:
        """The states of a workflow's jobs as stored."""
        async with self.store() as driver:
            found = await capability(driver, WorkflowStore).workflows(1, None, [id])
        return found[0] if found else None

    async def cancel(self, ids: Sequence[str]) -> list[Cancellation]:
        """Cancel jobs in line at once; ask the holders of running ones to stop."""
        async with self.store() as driver:
            now = self.session.now()
            keep_until = later(now, self.session.settings.retention.done)
            return await capability(driver, Manage).cancel(ids, now, keep_until)

    async def finished(self, id: str, timeout: float | None) -> JobRecord | None:
        """The job once it has ended, None if it is gone; `TimeoutError` if it takes longer."""
        self._waiting += 1
        try:
            return await self._until_ended(id, timeout)
        finally:
            self._waiting -= 1

    async def _until_ended(self, id: str, timeout: float | None) -> JobRecord | None:
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        watch = None if timeout is not None else self.watch()
        pause = 0.01
        while True:
            left = deadline - loop.time() if deadline is not None else LONGEST_WAIT if watch is None else watch.longest
            hint = asyncio.ensure_future(self._end_hint(id, left, pause))
            await asyncio.sleep(0)  # the hint listens before the look, so that no end falls between the two
            try:
                job = await self.record(id)
                if job is None or job.state in TERMINAL:
                    return job
                if deadline is not None and loop.time() >= deadline:
                    raise TimeoutError(
                        f"job {id} is {shown(job, self.session.now())} and has no result after {timeout:g} s"
                    )
                if watch is not None:
                    await watch.look(f"job {id}")
                await hint
            finally:
                discard(hint)
            # Any end wakes everybody who waits: the more there are, the longer each leaves the store to the workers.
            await asyncio.sleep(min((self._waiting - 1) * BREATH, max(0.0, left)))
            pause = min(pause * 1.5, LONGEST_WAIT)

    def watch(self) -> Watch | None:
        """For a wait without an end: whether somebody works; None where that cannot be known."""
        attendance = self.session.attendance
        return None if attendance is None else Watch(attendance, self.session)

    async def _end_hint(self, id: str, left: float, pause: float) -> None:
        wait = max(0.0, min(left, LONGEST_WAIT))
        with suppress(DriverError):  # without hints there is still the look
            hints = offered(await self.session.driver(), WaitForWork)
            if hints is not None:
                await hints.wait_for_end(id, wait)
                return
        await asyncio.sleep(min(wait, pause))


def listed(steps: Iterable[Step[R]]) -> list[Step[R]]:
    """The steps as a list; `InvalidJob` for one step alone, or something else."""
    if not isinstance(steps, Iterable):
        raise InvalidJob(f"give a list of steps, such as [task.step(1), task.step(2)], not {steps!r}")
    return list(steps)


def transaction_of(steps: Sequence[Step[Any]]) -> object | None:
    """The handle that these steps go with (`tx=`), None if they go with none; all of them or none."""
    for step in steps:
        if not isinstance(step, Step):
            raise InvalidJob(f"only steps can be enqueued, such as task.step(…), not {step!r}")
    handle = steps[0].options.get("tx") if steps else None
    if any(step.options.get("tx") is not handle for step in steps):
        raise InvalidJob("steps that are enqueued together must have the same tx=, or none of them any")
    return handle


def _joined(driver: Driver, handle: object, *, blocks: bool) -> Transaction:
    found = offered(driver, Within)
    if found is None:
        raise CapabilityMissing(
            f"the {driver.name} driver cannot enqueue inside your own transaction (tx=): it has none to share; "
            "PostgreSQL and SQLite have"
        )
    tx = found.within(handle)
    if tx.blocks and not blocks:
        raise InvalidJob("tx= is used by blocking calls, which would hold the event loop up: use enqueue, not aenqueue")
    if blocks and not tx.blocks:
        raise InvalidJob("tx= has to be awaited: use `await ….aenqueue(…)`, not enqueue")
    return tx
