"""A handler's own transaction, which ends with its job's Ack: `current().transaction()`.

The writes of the handler and the end of the job are one commit, fenced by the lease: exactly once for all that is in
that database. From the settle to the end of the transaction the job's row is locked, so its lease is not renewed: a
renewal would wait for the lock and delay those of other jobs. If it is unknown whether a commit happened, the store is
asked (X3).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from datetime import timedelta
from typing import Any, TypeVar

from taskharbor.core.lease import Verdict
from taskharbor.core.states import DONE
from taskharbor.core.transition import Ack
from taskharbor.driver import Driver, Extended, Inspect, OwnTransaction, Report, Within, at_once, capability, offered
from taskharbor.errors import BlockingCallInLoop, CapabilityMissing, DriverUnavailable, LeaseError, LeaseLost
from taskharbor.worker.running import JobRun

R = TypeVar("R")
A_MOMENT = timedelta(milliseconds=1)


class Block:
    """`async with` in an `async def` handler, `with` in a `def` one; either gives a connection."""

    def __init__(self, run: JobRun) -> None:
        self._run = run
        self._awaited: AbstractAsyncContextManager[Any] | None = None
        self._blocking: AbstractContextManager[Any] | None = None

    async def __aenter__(self) -> Any:
        self._awaited = _awaited(self._run)
        return await self._awaited.__aenter__()

    async def __aexit__(self, *raised: Any) -> bool | None:
        assert self._awaited is not None
        return await self._awaited.__aexit__(*raised)

    def __enter__(self) -> Any:
        if _on_a_loop():
            raise BlockingCallInLoop("use `async with current().transaction():`: this would block the event loop")
        self._blocking = _blocking(self._run)
        return self._blocking.__enter__()

    def __exit__(self, *raised: Any) -> bool | None:
        assert self._blocking is not None
        return self._blocking.__exit__(*raised)


@asynccontextmanager
async def _awaited(run: JobRun) -> AsyncGenerator[Any]:
    driver = await run.host.client.session.driver()
    with _alone(run):
        async with _within(driver).transaction() as tx:
            yield tx.handle
            await to_its_end(_finish(driver, tx, run))


@contextmanager
def _blocking(run: JobRun) -> Generator[Any]:
    session = run.host.client.session
    driver = session.portal.run(session.driver)
    with _alone(run), _within(driver).transaction_blocking() as tx:
        yield tx.handle
        _finish_blocking(driver, tx, run)


def _within(driver: Driver) -> Within:
    found = offered(driver, Within)
    if found is None:
        raise CapabilityMissing(f"the {driver.name} driver has no transactions to share with a handler; PostgreSQL has")
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


async def _finish(driver: Driver, tx: OwnTransaction, run: JobRun) -> None:
    """Settle and commit. Without an answer in time, ask the store whether it happened."""
    session = run.host.client.session
    run.notice_timeout(asyncio.get_running_loop().time())
    ack = _begin_to_settle(run)
    try:
        async with asyncio.timeout(session.settings.store_timeout):
            (verdict,) = await tx.settle([ack], session.now())
            if verdict == "ok":
                await tx.commit()
    except Exception as error:
        if not await _is_settled(driver, run):
            _go_on(run)
            raise _silence(error) from error
        verdict = "ok"
    _conclude(run, ack, verdict)


def _finish_blocking(driver: Driver, tx: OwnTransaction, run: JobRun) -> None:
    session = run.host.client.session
    ack = _begin_to_settle(run)
    try:
        (verdict,) = at_once(tx.settle([ack], session.now()))
        if verdict == "ok":
            at_once(tx.commit())
    except Exception:
        if not session.portal.run(lambda: _is_settled(driver, run)):
            _go_on(run)
            raise
        verdict = "ok"
    _conclude(run, ack, verdict)


def _begin_to_settle(run: JobRun) -> Ack:
    if run.stop == "lost":
        raise LeaseLost(f"job {run.job.id} is no longer held by this worker: its transaction was rolled back")
    if run.stop == "timeout":  # a thread cannot be interrupted: it learns of its timeout here
        raise InterruptedError(f"job {run.job.id} should end: its timeout is over, its transaction was rolled back")
    run.host.let_go(run)
    return run.host.acknowledge(run)


def _go_on(run: JobRun) -> None:
    """The commit did not happen: the run still has its lease, and fails like any other."""
    run.host.hold(run)


def _conclude(run: JobRun, ack: Ack, verdict: Verdict) -> None:
    if isinstance(verdict, LeaseError):
        run.host.lose(run)
        raise LeaseLost(f"{verdict}: the transaction was rolled back") from verdict
    run.own_effects().settled = ack
    if verdict == "replayed":
        raise LeaseLost(f"job {run.job.id} is done by an earlier transaction of this run: this one is rolled back")


async def _is_settled(driver: Driver, run: JobRun) -> bool:
    """Whether the Ack of this run is in the store. A renewal waits for the transaction's lock, so its answer is final.

    False if the store is away: the run then fails, and its settle is refused should the Ack be there after all.
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


def _silence(error: Exception) -> Exception:
    return DriverUnavailable("the store did not answer the commit in time") if type(error) is TimeoutError else error


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


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
