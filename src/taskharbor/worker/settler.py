"""Writing outcomes down, in groups without a timer.

Whatever finished while the last flush was under way goes into the next: an idle worker flushes at once, a busy one
amortises. An unknown outcome is repeated until the lease ends; the store recognises a repeat (X3, D8).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from random import Random

from taskharbor.core.decide import later, succeed
from taskharbor.core.job import JobRecord
from taskharbor.core.lease import Verdict
from taskharbor.core.outcome import Succeeded
from taskharbor.core.transition import Transition
from taskharbor.driver import Driver, Inspect, offered
from taskharbor.errors import DriverClosed, DriverError, DriverUnavailable, LeaseError, StoreGone
from taskharbor.worker.events import tell
from taskharbor.worker.keeper import Held, Keeper

logger = logging.getLogger("taskharbor.settler")
MAX_BACKOFF = 2.0

Entry = tuple[Held, Transition]
Pending = tuple[Held, Transition | Succeeded]
Refused = Callable[[Held, Transition, LeaseError, JobRecord | None], None]


def pause(failures: int) -> float:
    """Seconds to wait, before jitter, after so many failures in a row."""
    return min(0.05 * 2.0 ** min(failures, 10), MAX_BACKOFF)


class Settler:
    """Takes outcomes from the worker and settles them.

    `settled` is called with those that the store accepted, `refused` with each other one and what is stored instead.
    Successes are decided here, for a whole flush at one time; everything else comes decided.
    """

    def __init__(
        self,
        driver: Callable[[], Awaitable[Driver]],
        now: Callable[[], datetime],
        keeper: Keeper,
        chance: Random,
        keep_done: timedelta,
        settled: Callable[[Sequence[Entry], datetime], None],
        refused: Refused,
        timeout: float,
    ) -> None:
        self._driver = driver
        self._now = now
        self._keeper = keeper
        self._chance = chance
        self._keep_done = keep_done
        self._settled = settled
        self._refused = refused
        self._timeout = timeout
        self._pending: list[Pending] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, held: Held, outcome: Transition | Succeeded) -> None:
        """Settle this soon."""
        held.settling = True
        self._pending.append((held, outcome))
        if len(self._pending) == 1:
            self._idle.clear()
            self._wake.set()

    async def flushed(self) -> None:
        """Return when nothing is left to write."""
        await self._idle.wait()

    @property
    def idle(self) -> bool:
        """Whether nothing is left to write."""
        return self._idle.is_set()

    async def run(self) -> None:
        """Flush for ever."""
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
                await asyncio.sleep(pause(failures) * (0.5 + self._chance.random()))
            else:
                failures = 0
            if not self._pending:
                self._idle.set()

    def _decided(self, pending: list[Pending]) -> list[Entry]:
        """What is still to be written, decided once: a repeated settle says the same."""
        time, keep_until = asyncio.get_running_loop().time(), later(self._now(), self._keep_done)
        batch: list[Entry] = []
        for held, outcome in pending:
            if held.stop == "lost" or held.deadline <= time:
                self._give_up(held)
            elif isinstance(outcome, Succeeded):
                batch.append((held, succeed(held.job, held.token, outcome, keep_until, held.started_at)))
            else:
                batch.append((held, outcome))
        return batch

    def _give_up(self, held: Held) -> None:
        self._keeper.drop(held)
        tell(logger, logging.WARNING, "lease.lost", held.job, "its outcome was not written")

    async def _flush_safely(self, pending: list[Pending]) -> Sequence[Pending]:
        left: Sequence[Pending] = pending
        try:
            left = batch = self._decided(pending)
            return await self._flush(batch) if batch else []
        except Exception:  # such as a log filter of the application; a settle can be repeated, a lost one cannot
            with suppress(Exception):
                logger.exception("settling went wrong, trying again")
            return left

    async def _flush(self, batch: list[Entry]) -> list[Entry]:
        """Settle a batch; returns what has to be tried again."""
        try:
            async with asyncio.timeout(self._timeout):
                driver = await self._driver()
                now = self._now()
                verdicts = await driver.settle([transition for _, transition in batch], now)
            if len(verdicts) != len(batch):
                raise DriverError(f"the driver answered {len(verdicts)} of {len(batch)} outcomes")
        except StoreGone as error:
            logger.error("store.gone: %d outcomes could not be written: %s", len(batch), error)
            self._keeper.drop(*[held for held, _ in batch])
            return []
        except (DriverUnavailable, DriverClosed, TimeoutError, OSError) as error:
            logger.warning("store.unavailable: %d outcomes kept for later: %s", len(batch), error)
            return batch
        except Exception:
            if len(batch) > 1:
                return [entry for single in batch for entry in await self._flush([single])]
            logger.exception("the store cannot take the outcome of job %s; it will run again", batch[0][0].job.id)
            self._keeper.drop(batch[0][0])
            return []
        await self._conclude(driver, batch, verdicts, now)
        return []

    async def _conclude(self, driver: Driver, batch: list[Entry], verdicts: Sequence[Verdict], now: datetime) -> None:
        self._keeper.drop(*[held for held, _ in batch])
        if verdicts.count("ok") == len(batch):  # nearly always
            self._settled(batch, now)
            return
        accepted: list[Entry] = []
        refused: list[tuple[Entry, LeaseError]] = []
        for entry, verdict in zip(batch, verdicts, strict=True):
            if isinstance(verdict, LeaseError):
                refused.append((entry, verdict))
            else:
                accepted.append(entry)
        self._settled(accepted, now)
        stored = await self._stored(driver, [held.job.id for (held, _), _ in refused])
        for ((held, to), why), record in zip(refused, stored, strict=True):
            self._refused(held, to, why, record)

    async def _stored(self, driver: Driver, ids: list[str]) -> Sequence[JobRecord | None]:
        """The records of refused outcomes, as far as the store tells: they are for the log."""
        with suppress(Exception):
            if ids and (jobs := offered(driver, Inspect)) is not None:
                async with asyncio.timeout(self._timeout):
                    return await jobs.get(ids)
        return [None] * len(ids)
