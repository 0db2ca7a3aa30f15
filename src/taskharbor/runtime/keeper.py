"""Keeping leases alive, from the claim until the settle is durable (L2-L4).

The keeper is a coroutine that a thread of its own hosts, so that a handler which blocks the workers' loop does not lose
its lease; on virtual time it runs on the one loop there is. When a lease is refused, or has run out by the monotonic
clock, whoever runs the job is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from taskharbor.core.job import JobRecord, NewJob, Progress
from taskharbor.core.transition import Ack
from taskharbor.driver import Driver, Extended, Report
from taskharbor.errors import LeaseError
from taskharbor.runtime.events import tell

if TYPE_CHECKING:
    from taskharbor.runtime.client import Client

logger = logging.getLogger("taskharbor.keeper")

Stop = Literal["lost", "timeout", "cancel", "shutdown"]


class Held(Struct, eq=False, gc=False):
    """A lease in hand. `task` runs the job, from `begun` to `ended`; `stop` says why the run should end, `abandoned`
    that nobody waits for it any more, `settling` that its outcome is on its way; `deadline` is on the loop's monotonic
    clock. A handler's own transaction is open while `in_transaction`; once it is committed, `settled` is its Ack."""

    job: JobRecord
    token: str
    deadline: float
    notify: Callable[[Held, Stop], None]
    client: Client
    keeper: Keeper
    task: asyncio.Task[None] | None = None
    begun: bool = False
    ended: bool = False
    new_jobs: tuple[NewJob, ...] = ()
    stop: Stop | None = None
    abandoned: bool = False
    settling: bool = False
    started_at: datetime | None = None
    progress: Progress | None = None
    in_transaction: bool = False
    result: bytes | None = None
    settled: Ack | None = None


class Keeper:
    """Renews every lease in hand three times per lease. `hold`, `drop` and `hurry` may be called from any thread."""

    def __init__(
        self, driver: Callable[[], Awaitable[Driver]], now: Callable[[], datetime], lease_for: timedelta
    ) -> None:
        self._driver = driver
        self._now = now
        self._lease_for = lease_for
        self._period = lease_for.total_seconds() / 3
        self._held: dict[str, Held] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hurried = asyncio.Event()

    def hold(self, leases: Iterable[Held]) -> None:
        """Start to renew these."""
        self._held.update({held.token: held for held in leases})

    def drop(self, *leases: Held) -> None:
        """Stop to renew these: their jobs are settled, or lost."""
        for held in leases:
            self._held.pop(held.token, None)

    def hurry(self) -> None:
        """Renew now: a lease came in that has lost much of its time on the way."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the keeper has ended
                self._loop.call_soon_threadsafe(self._hurried.set)

    async def run(self) -> None:
        """Renew for ever; after a failure try again sooner. Nothing here outlasts the first lease to run out."""
        loop = self._loop = asyncio.get_running_loop()
        pause = self._period
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(pause, self._left(loop))):
                    await self._hurried.wait()
            self._hurried.clear()
            self._give_up_overdue(loop.time())
            pause = self._period if await self._renew(loop) else self._period / 4

    def _left(self, loop: asyncio.AbstractEventLoop) -> float:
        """Seconds until a lease in hand must be taken for lost."""
        return min((held.deadline for held in list(self._held.values())), default=float("inf")) - loop.time()

    def _give_up_overdue(self, time: float) -> None:
        for held in list(self._held.values()):
            if held.deadline <= time:
                self._lose(held, "it could not be renewed in time")

    async def _renew(self, loop: asyncio.AbstractEventLoop) -> bool:
        holding = list(self._held.values())
        if not holding:
            return True
        reports = [Report(held.job.id, held.token, held.started_at, held.progress) for held in holding]
        sent = loop.time()
        try:
            async with asyncio.timeout(min(self._period, self._left(loop))):
                driver = await self._driver()
                answers = await driver.extend_lease(reports, self._now(), self._lease_for)
            for held, answer in zip(holding, answers, strict=True):
                self._take(held, answer, sent)
        except Exception as error:
            logger.warning("store.unavailable: %d leases not renewed, trying again: %s", len(holding), _named(error))
            return False
        return True

    def _take(self, held: Held, answer: Extended | LeaseError, sent: float) -> None:
        if isinstance(answer, LeaseError):
            if held.settling:  # perhaps it is settled already: the verdict on the settle will tell
                self.drop(held)
            elif held.token in self._held:
                self._lose(held, _named(answer))
            return
        held.deadline = sent + self._lease_for.total_seconds()
        if answer.cancel_requested and held.stop is None:
            held.notify(held, "cancel")

    def _lose(self, held: Held, why: str) -> None:
        self.drop(held)
        held.stop = "lost"
        held.notify(held, "lost")
        tell(logger, logging.WARNING, "lease.lost", held.job, why)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
