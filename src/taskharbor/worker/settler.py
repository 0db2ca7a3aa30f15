"""The settler: writes outcomes to the store, in batches without a timer.

Whatever finished during the last flush goes into the next: an idle worker flushes at once, a busy one in batches. If
the reply is lost, the settle is repeated until the lease ends; the store recognises a repeat (X3, D8).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime

from taskharbor.client.session import Session
from taskharbor.core.backoff import SETTLE_BACKOFF
from taskharbor.core.durations import count
from taskharbor.core.job import JobRecord
from taskharbor.core.lease import Verdict
from taskharbor.core.outcome import Succeeded
from taskharbor.core.transition import Transition
from taskharbor.driver import Driver, Inspect, offered
from taskharbor.errors import DriverClosed, DriverError, DriverUnavailable, LeaseError, StoreGone
from taskharbor.worker.decider import Decider, Pending, Settlement
from taskharbor.worker.job_log import log_job
from taskharbor.worker.keeper import Keeper
from taskharbor.worker.running import JobRun

logger = logging.getLogger("taskharbor.settler")

Subscriber = Callable[[Sequence[Settlement], datetime], None]
OnRefused = Callable[[JobRun, Transition, LeaseError, JobRecord | None], None]


class Settler:
    """Takes outcomes from the worker and settles them.

    `refused` is called with each outcome that the store did not accept, and with what is stored instead.
    """

    def __init__(self, session: Session, keeper: Keeper, decider: Decider, refused: OnRefused, timeout: float) -> None:
        self._driver = session.driver
        self._now = session.now
        self._rng = session.rng
        self._keeper = keeper
        self._decider = decider
        self._refused = refused
        self._timeout = timeout
        self._subscribers: list[Subscriber] = []
        self._pending: list[Pending] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call this with all outcomes that the store accepts, in batches, and the time of their settle."""
        self._subscribers.append(subscriber)

    def publish(self, batch: Sequence[Settlement], now: datetime) -> None:
        """Tell the subscribers that the store has accepted these."""
        for subscriber in self._subscribers:
            subscriber(batch, now)

    def submit(self, run: JobRun, outcome: Transition | Succeeded) -> None:
        run.settling = True
        self._pending.append((run, outcome))
        if len(self._pending) == 1:
            self._idle.clear()
            self._wake.set()

    async def flushed(self) -> None:
        await self._idle.wait()

    @property
    def idle(self) -> bool:
        """Whether nothing is left to write."""
        return self._idle.is_set()

    async def run(self) -> None:
        failures = 0
        while True:
            await self._wake.wait()
            pending, self._pending = self._pending, []
            self._wake.clear()
            left = await self._flush_safely(pending)
            if left:
                failures += 1
                self._pending[:0] = left
                self._wake.set()
                await asyncio.sleep(SETTLE_BACKOFF.delay(failures, self._rng))
            else:
                failures = 0
            if not self._pending:
                self._idle.set()

    def _batch(self, pending: list[Pending]) -> list[Settlement]:
        """The outcomes that are still to be written, decided: those of lost leases are not."""
        time = asyncio.get_running_loop().time()
        lost = [run for run, _ in pending if run.lease.lost or run.lease.deadline <= time]
        for run in lost:
            self._keeper.drop(run)
            log_job(logger, logging.WARNING, "lease.lost", run.job, "its outcome was not written")
        held = [each for each in pending if each[0] not in lost] if lost else pending
        return self._decider.decide_successes(held)

    async def _flush_safely(self, pending: list[Pending]) -> Sequence[Pending]:
        left: Sequence[Pending] = pending
        try:
            left = batch = self._batch(pending)
            return await self._flush(batch) if batch else []
        except Exception:  # such as a log filter of the application; a settle can be repeated, a lost one cannot
            with suppress(Exception):
                logger.exception("settling failed, trying again")
            return left

    async def _flush(self, batch: list[Settlement]) -> list[Settlement]:
        """Settle a batch; return what has to be tried again."""
        try:
            async with asyncio.timeout(self._timeout):
                driver = await self._driver()
                now = self._now()
                verdicts = await driver.settle([transition for _, transition in batch], now)
            if len(verdicts) != len(batch):
                raise DriverError(f"the driver answered {len(verdicts)} of {len(batch)} outcomes")
        except StoreGone as error:
            logger.error("store.gone: could not write %s: %s", count(len(batch), "outcome"), error)
            self._keeper.drop(*[run for run, _ in batch])
            return []
        except (DriverUnavailable, DriverClosed, TimeoutError, OSError) as error:
            logger.warning("store.unavailable: %s kept for later: %s", count(len(batch), "outcome"), error)
            return batch
        except Exception:
            if len(batch) > 1:
                return [entry for single in batch for entry in await self._flush([single])]
            logger.exception("the store cannot take the outcome of job %s; it will run again", batch[0][0].job.id)
            self._keeper.drop(batch[0][0])
            return []
        await self._conclude(driver, batch, verdicts, now)
        return []

    async def _conclude(
        self, driver: Driver, batch: list[Settlement], verdicts: Sequence[Verdict], now: datetime
    ) -> None:
        self._keeper.drop(*[run for run, _ in batch])
        if verdicts.count("ok") == len(batch):  # nearly always
            self.publish(batch, now)
            return
        accepted: list[Settlement] = []
        refused: list[tuple[JobRun, Transition, LeaseError]] = []
        for (run, to), verdict in zip(batch, verdicts, strict=True):
            if isinstance(verdict, LeaseError):
                refused.append((run, to, verdict))
            else:
                accepted.append((run, to))
        self.publish(accepted, now)
        stored = await self._stored(driver, [run.job.id for run, _, _ in refused])
        for (run, to, why), record in zip(refused, stored, strict=True):
            self._refused(run, to, why, record)

    async def _stored(self, driver: Driver, ids: list[str]) -> Sequence[JobRecord | None]:
        """The records of refused outcomes, for the log; None where the store does not answer."""
        with suppress(Exception):
            if ids and (jobs := offered(driver, Inspect)) is not None:
                async with asyncio.timeout(self._timeout):
                    return await jobs.get(ids)
        return [None] * len(ids)
