"""Keeping leases alive, from the claim until the settle is durable (L2-L4), and the store informed about long runs.

That a run has started, and its progress, is reported within a second (T2): all news of a worker in one call, one call
a second at most, and nothing for runs that are over by then. A run past its timeout is logged (F5).

The keeper is a coroutine that a thread of its own hosts, so that a handler which blocks the workers' loop does not lose
its lease; on virtual time it runs on the one loop there is. When a lease is refused, or has run out by the monotonic
clock, whoever runs the job is told.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from taskharbor.core.job import JobRecord, NewJob, Progress
from taskharbor.core.transition import Ack
from taskharbor.driver import Driver, Extended, Report
from taskharbor.errors import LeaseError
from taskharbor.worker.events import tell

if TYPE_CHECKING:
    from taskharbor.client.client import Client

logger = logging.getLogger("taskharbor.keeper")
TICK = 0.45  # between two looks at the runs; news are reported when they are between one and two of these old
REPORT_EVERY = 1.0
MOMENT = 1e-6  # a shorter wait may be lost in the rounding of the loop's time, and would be waited again for ever
TO_OBEY = 0.25  # how long a handler may take to end once its timeout has cancelled it

Stop = Literal["lost", "timeout", "cancel", "dead_letter", "shutdown"]


class Held(Struct, eq=False, gc=False):
    """A lease in hand. `task` runs the job, from `begun` to `ended`; `stop` says why the run should end, `abandoned`
    that nobody waits for it any more, `settling` that its outcome is on its way. On the loop's monotonic clock are
    `deadline`, `ends_by`, when the timeout passes, and `returned_at`, when a thread ended whose result the loop has not
    taken yet. `overrun` says that the log has it. A handler's own transaction is open while `in_transaction`; once it
    is committed, `settled` is its Ack."""

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
    ends_by: float = math.inf
    returned_at: float = math.inf
    overrun: bool = False
    told_start: datetime | None = None
    told_progress: Progress | None = None
    news_since: float | None = None

    @property
    def has_news(self) -> bool:
        """Whether the store does not know yet that the run has started, or how far it is."""
        return not self.ended and (self.started_at is not self.told_start or self.progress is not self.told_progress)


class Keeper:
    """Renews every lease in hand three times per lease, and reports news of runs in between.

    `hold`, `drop` and `hurry` may be called from any thread.
    """

    def __init__(
        self, driver: Callable[[], Awaitable[Driver]], now: Callable[[], datetime], lease_for: timedelta
    ) -> None:
        self._driver = driver
        self._now = now
        self._lease_for = lease_for
        self._period = lease_for.total_seconds() / 3
        self._held: dict[str, Held] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._hurried = False
        self._dozing = False
        self._reported = -math.inf

    def hold(self, leases: Iterable[Held]) -> None:
        """Start to renew these."""
        self._held.update({held.token: held for held in leases})
        if self._dozing:
            self._dozing = False
            self._wake()

    def drop(self, *leases: Held) -> None:
        """Stop to renew these: their jobs are settled, or lost."""
        for held in leases:
            self._held.pop(held.token, None)

    def hurry(self) -> None:
        """Renew now: a lease came in that has lost much of its time on the way."""
        self._hurried = True
        self._wake()

    def _wake(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the keeper has ended
                self._loop.call_soon_threadsafe(self._woken.set)

    async def run(self) -> None:
        """Renew for ever; after a failure try again sooner. Nothing here outlasts the first lease to run out."""
        loop = self._loop = asyncio.get_running_loop()
        renew_at = loop.time() + self._period
        while True:
            if await self._rest(loop, renew_at) and not self._hurried:
                continue  # woken up by the first lease in hand: nothing has happened to it yet
            self._give_up_overdue(loop.time())
            if self._hurried or loop.time() >= renew_at:
                self._hurried = False
                renewed = await self._renew(loop, list(self._held.values()))
                renew_at = loop.time() + (self._period if renewed else self._period / 4)
                self._notice(loop.time())  # leases may be so short that there is never time for a look between
            else:
                await self._look(loop, renew_at)

    async def _rest(self, loop: asyncio.AbstractEventLoop, renew_at: float) -> bool:
        """Wait for the next renewal, or the next look at the runs if there are any. Whether it was woken up."""
        wait = min(renew_at - loop.time(), self._left(loop))
        self._dozing = not self._held
        if self._held:
            wait = min(wait, TICK, self._next_report - loop.time())
        with suppress(TimeoutError):
            async with asyncio.timeout(max(wait, MOMENT)):
                await self._woken.wait()
        self._dozing = False
        woken = self._woken.is_set()
        self._woken.clear()
        return woken

    @property
    def _next_report(self) -> float:
        """When the oldest news of a run must be reported."""
        oldest = min(
            (held.news_since for held in list(self._held.values()) if held.news_since is not None), default=math.inf
        )
        return max(oldest + TICK, self._reported + REPORT_EVERY)

    async def _look(self, loop: asyncio.AbstractEventLoop, renew_at: float) -> None:
        """Report news that have become old."""
        time = loop.time()
        news = self._notice(time)
        if news and self._next_report <= time:
            self._reported = time
            await self._renew(loop, news, renew_at - time)

    def _notice(self, time: float) -> list[Held]:
        """Log overruns; return the leases whose runs have news. Runs that ended meanwhile have none."""
        news: list[Held] = []
        for held in list(self._held.values()):
            if held.has_news:
                news.append(held)
                held.news_since = time if held.news_since is None else held.news_since
            else:
                held.news_since = None
            if held.ends_by + TO_OBEY <= time < held.returned_at and not (held.overrun or held.ended):
                held.overrun = True
                limit = f"{held.job.timeout or 0:g} s"
                detail = f"still runs after its timeout of {limit}; it keeps its slot and lease until it ends"
                tell(logger, logging.WARNING, "job.overrun", held.job, detail)
        return news

    def _left(self, loop: asyncio.AbstractEventLoop) -> float:
        """Seconds until a lease in hand must be taken for lost."""
        return min((held.deadline for held in list(self._held.values())), default=float("inf")) - loop.time()

    def _give_up_overdue(self, time: float) -> None:
        for held in list(self._held.values()):
            if held.deadline <= time:
                self._lose(held, "it could not be renewed in time")

    async def _renew(self, loop: asyncio.AbstractEventLoop, holding: list[Held], within: float = math.inf) -> bool:
        if not holding:
            return True
        reports = [Report(held.job.id, held.token, held.started_at, held.progress) for held in holding]
        sent = loop.time()
        try:
            async with asyncio.timeout(min(self._period, self._left(loop), within)):
                driver = await self._driver()
                answers = await driver.extend_lease(reports, self._now(), self._lease_for)
            for held, report, answer in zip(holding, reports, answers, strict=True):
                held.told_start, held.told_progress, held.news_since = report.started_at, report.progress, None
                self._take(held, answer, sent)
        except Exception as error:
            if within < math.inf:  # news can wait; the next renewal logs that the store is away
                return False
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
        if held.stop is None and (answer.cancel_requested or answer.dead_letter_requested):
            held.notify(held, "cancel" if answer.cancel_requested else "dead_letter")

    def _lose(self, held: Held, why: str) -> None:
        self.drop(held)
        held.stop = "lost"
        held.notify(held, "lost")
        tell(logger, logging.WARNING, "lease.lost", held.job, why)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
