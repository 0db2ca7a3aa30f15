"""A handler's own transaction, which ends with its job's Ack: `current().transaction()`.

The writes of the handler and the end of the job are one commit, fenced by the lease: exactly once for all that is in
that database. From the settle to the end of the transaction nobody can get at the job, so its lease is not renewed: a
renewal would wait for it, and keep those of other jobs waiting. When nobody knows whether a commit happened, the store
is asked (X3).
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

from taskharbor.core.decide import later, succeed
from taskharbor.core.lease import Verdict
from taskharbor.core.outcome import Succeeded
from taskharbor.core.states import DONE
from taskharbor.core.transition import Ack
from taskharbor.driver import Driver, Extended, Inspect, OwnTransaction, Report, Within, at_once, capability, offered
from taskharbor.errors import BlockingCallInLoop, CapabilityMissing, DriverUnavailable, LeaseError, LeaseLost
from taskharbor.worker.keeper import Held

R = TypeVar("R")
A_MOMENT = timedelta(milliseconds=1)


class Block:
    """`async with` in an `async def` handler, `with` in a `def` one; either gives a connection."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self._awaited: AbstractAsyncContextManager[Any] | None = None
        self._blocking: AbstractContextManager[Any] | None = None

    async def __aenter__(self) -> Any:
        self._awaited = _awaited(self._held)
        return await self._awaited.__aenter__()

    async def __aexit__(self, *raised: Any) -> bool | None:
        assert self._awaited is not None
        return await self._awaited.__aexit__(*raised)

    def __enter__(self) -> Any:
        if _on_a_loop():
            raise BlockingCallInLoop("use `async with current().transaction():`: this would block the event loop")
        self._blocking = _blocking(self._held)
        return self._blocking.__enter__()

    def __exit__(self, *raised: Any) -> bool | None:
        assert self._blocking is not None
        return self._blocking.__exit__(*raised)


@asynccontextmanager
async def _awaited(held: Held) -> AsyncGenerator[Any]:
    driver = await held.client.session.driver()
    with _alone(held):
        async with _within(driver).transaction() as tx:
            yield tx.handle
            await to_its_end(_finish(driver, tx, held))


@contextmanager
def _blocking(held: Held) -> Generator[Any]:
    session = held.client.session
    driver = session.portal.run(session.driver)
    with _alone(held), _within(driver).transaction_blocking() as tx:
        yield tx.handle
        _finish_blocking(driver, tx, held)


def _within(driver: Driver) -> Within:
    found = offered(driver, Within)
    if found is None:
        raise CapabilityMissing(f"the {driver.name} driver has no transactions to share with a handler; PostgreSQL has")
    return found


@contextmanager
def _alone(held: Held) -> Generator[None]:
    """One block at a time. What was to be enqueued with the job in a block that fails goes with it."""
    if held.in_transaction:
        raise RuntimeError("current().transaction() does not nest: the outer block ends with the job's Ack")
    before = held.new_jobs
    held.in_transaction, held.result = True, None
    try:
        yield
    except BaseException:
        held.new_jobs = before
        raise
    finally:
        held.in_transaction = False


async def _finish(driver: Driver, tx: OwnTransaction, held: Held) -> None:
    """Settle and commit. Without an answer in time, find out whether it happened."""
    session = held.client.session
    if held.ends_by <= asyncio.get_running_loop().time() and held.stop is None:  # a blocked loop could not tell
        held.stop = "timeout"
    ack = _begin_to_settle(held)
    try:
        async with asyncio.timeout(session.settings.store_timeout):
            (verdict,) = await tx.settle([ack], session.now())
            if verdict == "ok":
                await tx.commit()
    except Exception as error:
        if not await _is_settled(driver, held):
            _go_on(held)
            raise _silence(error) from error
        verdict = "ok"
    _conclude(held, ack, verdict)


def _finish_blocking(driver: Driver, tx: OwnTransaction, held: Held) -> None:
    session = held.client.session
    ack = _begin_to_settle(held)
    try:
        (verdict,) = at_once(tx.settle([ack], session.now()))
        if verdict == "ok":
            at_once(tx.commit())
    except Exception:
        if not session.portal.run(lambda: _is_settled(driver, held)):
            _go_on(held)
            raise
        verdict = "ok"
    _conclude(held, ack, verdict)


def _begin_to_settle(held: Held) -> Ack:
    if held.stop == "lost":
        raise LeaseLost(f"job {held.job.id} is no longer held by this worker: its transaction was rolled back")
    if held.stop == "timeout":  # a thread cannot be interrupted: it hears of it here
        raise InterruptedError(f"job {held.job.id} should end: its timeout is over, its transaction was rolled back")
    session = held.client.session
    held.settling = True
    held.keeper.drop(held)
    keep_until = later(session.now(), session.settings.retention.done)
    return succeed(held.job, held.token, Succeeded(held.result, held.new_jobs), keep_until, held.started_at)


def _go_on(held: Held) -> None:
    """It did not happen: the run still has its lease, and fails as any other."""
    held.settling = False
    held.keeper.hold([held])


def _conclude(held: Held, ack: Ack, verdict: Verdict) -> None:
    if isinstance(verdict, LeaseError):
        held.stop = "lost"
        raise LeaseLost(f"{verdict}: the transaction was rolled back") from verdict
    held.settled = ack
    if verdict == "replayed":
        raise LeaseLost(f"job {held.job.id} is done by an earlier transaction of this run: this one is rolled back")


async def _is_settled(driver: Driver, held: Held) -> bool:
    """Whether the Ack of this run is in the store. A renewal waits for whoever is at the job, so its answer is final.

    If the store is away, no: the run then fails, and its settle is refused should the Ack be there after all.
    """
    session = held.client.session
    try:
        async with asyncio.timeout(session.settings.store_timeout):
            (answer,) = await driver.extend_lease([Report(held.job.id, held.token)], session.now(), A_MOMENT)
            if isinstance(answer, Extended):
                return False
            (job,) = await capability(driver, Inspect).get([held.job.id])
    except (Exception, asyncio.CancelledError):
        return False
    return job is not None and job.state is DONE and job.settled_token == held.token


def _silence(error: Exception) -> Exception:
    return DriverUnavailable("the store did not answer the commit in time") if type(error) is TimeoutError else error


async def to_its_end(work: Coroutine[Any, Any, R]) -> R:
    """What must not be cut off in the middle; a cancellation meanwhile is heard afterwards."""
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
