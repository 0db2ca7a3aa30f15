"""A handler's own transaction, which ends with its job's Ack: `current().transaction()`.

The handler's writes and the end of the job are one commit, fenced by the lease. From the settle to the commit the job's
row is locked, so its lease is not renewed: a renewal would wait for the lock and delay those of other jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

from taskharbor.client.blocks import Managed
from taskharbor.core.states import DONE
from taskharbor.driver import Driver, Extended, Inspect, OwnTransaction, Report, Within, at_once, capability, offered
from taskharbor.errors import CapabilityMissing, DriverUnavailable, LeaseError, LeaseLost
from taskharbor.worker.running import JobRun

R = TypeVar("R")
A_MOMENT = timedelta(milliseconds=1)


def transaction(run: JobRun) -> Managed[Any]:
    """A block in a transaction: `async with` in an `async def` handler, `with` in a `def` one; gives a connection."""
    session = run.host.client.session

    @asynccontextmanager
    async def awaited() -> AsyncGenerator[Any]:
        driver = await session.driver()
        with _alone(run):
            async with _within(driver).transaction() as tx:
                yield tx.handle
                run.notice_timeout(asyncio.get_running_loop().time())
                limit = asyncio.timeout(session.settings.store_timeout)
                await to_its_end(_finish(tx, run, limit, lambda: is_settled(driver, run)))

    @contextmanager
    def blocking() -> Generator[Any]:
        driver = session.portal.run(session.driver)

        async def settled() -> bool:
            return session.portal.run(lambda: is_settled(driver, run))

        with _alone(run), _within(driver).transaction_blocking() as tx:
            yield tx.handle
            at_once(_finish(tx, run, nullcontext(), settled))

    return Managed("transaction", awaited, blocking)


def _within(driver: Driver) -> Within:
    found = offered(driver, Within)
    if found is None:
        raise CapabilityMissing(f"current().transaction() works on PostgreSQL only, not with the {driver.name} driver")
    return found


@contextmanager
def _alone(run: JobRun) -> Generator[None]:
    """One block at a time. If it fails, the jobs enqueued in it are dropped."""
    effects = run.own_effects()
    if effects.in_transaction:
        raise RuntimeError("current().transaction() does not nest: the outer block ends with the job's Ack")
    before = effects.new_jobs
    effects.in_transaction, effects.result = True, None
    try:
        yield
    except BaseException:
        effects.new_jobs = before
        raise
    finally:
        effects.in_transaction = False


async def _finish(
    tx: OwnTransaction,
    run: JobRun,
    limit: AbstractAsyncContextManager[object],
    settled: Callable[[], Awaitable[bool]],
) -> None:
    """Settle and commit. If that fails or takes longer than the limit, ask the store whether it happened."""
    if run.stop == "lost":
        raise LeaseLost(f"job {run.job.id} is no longer held by this worker: its transaction was rolled back")
    if run.stop == "timeout":  # a thread cannot be interrupted: it learns of its timeout here
        raise InterruptedError(f"job {run.job.id} should end: its timeout is over, its transaction was rolled back")
    run.host.let_go(run)
    ack = run.host.acknowledge(run)
    try:
        async with limit:
            (verdict,) = await tx.settle([ack], run.host.client.session.now())
            if verdict == "ok":
                await tx.commit()
    except Exception as error:
        if not await settled():
            run.host.hold(run)  # the commit did not happen: the run still has its lease, and fails like any other
            if type(error) is TimeoutError:
                raise DriverUnavailable("the store did not answer the commit in time") from error
            raise
        verdict = "ok"
    if isinstance(verdict, LeaseError):
        run.lease.lose()
        raise LeaseLost(f"{verdict}: the transaction was rolled back") from verdict
    run.own_effects().settled = ack
    run.host.noted(run)
    if verdict == "replayed":
        raise LeaseLost(f"job {run.job.id} is done by an earlier transaction of this run: this one is rolled back")


async def is_settled(driver: Driver, run: JobRun) -> bool:
    """Whether the Ack of this run is in the store. A renewal waits for the transaction's lock, so its answer is final.

    False if the store is away: the run then fails, and its settle is refused if the Ack is stored after all.
    """
    session = run.host.client.session
    try:
        async with asyncio.timeout(session.settings.store_timeout):
            (answer,) = await driver.extend_lease([Report(run.job.id, run.lease.token)], session.now(), A_MOMENT)
            if isinstance(answer, Extended):
                return False
            (job,) = await capability(driver, Inspect).get([run.job.id])
    except (Exception, asyncio.CancelledError):
        return False
    return job is not None and job.state is DONE and job.settled_token == run.lease.token


async def to_its_end(work: Coroutine[Any, Any, R]) -> R:
    """Await work that must not be interrupted; a cancellation meanwhile is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from task.exception()
    return task.result()
