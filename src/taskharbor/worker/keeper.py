"""The keeper: renews leases from the claim until the settle is durable (L2-L4), and reports long runs (T2).

Leases of runs in processes are renewed with every look: the answer says whether the job was cancelled or the lease
lost, and only these runs can be killed for it (F5, T3). That is one call for all of them, and none for runs that end
between two looks.

It is a coroutine in its own thread, so that a handler that blocks the worker's loop does not lose its lease. When a
lease is lost (refused, or expired by the monotonic clock), it asks the worker to end the run: see `_lose`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from taskharbor.client.session import Session
from taskharbor.core.durations import count
from taskharbor.core.text import described
from taskharbor.driver import Extended, Report
from taskharbor.errors import LeaseError
from taskharbor.worker.idle import set_within
from taskharbor.worker.job_log import log_job
from taskharbor.worker.running import JobRun
from taskharbor.worker.stacks import stack_of

logger = logging.getLogger("taskharbor.keeper")
TICK = 0.45  # between two looks at the runs; news is reported when one to two ticks old
REPORT_EVERY = 1.0
MOMENT = 1e-6  # a shorter wait may be rounded to nothing by the loop and repeat for ever
OVERRUN_AFTER = 0.25  # how long a handler may take to end once its timeout has cancelled it


class Keeper:
    """Renews every held lease three times per lease, and reports news of runs in between.

    `hold`, `drop` and `hurry` may be called from any thread. `on_look` is called with each look at the runs. `report`
    reports the worker; it is awaited when a run passes its timeout, as that run may block the worker's own loop.
    """

    def __init__(
        self,
        session: Session,
        lease_for: timedelta,
        report: Callable[[], Coroutine[Any, Any, None]],
        on_look: Callable[[], None] | None = None,
    ) -> None:
        self._session = session
        self._lease_for = lease_for
        self._report = report
        self._on_look = on_look or (lambda: None)
        self._period = lease_for.total_seconds() / 3
        self._held: dict[str, JobRun] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._hurried = False
        self._idle = False
        self._patience: asyncio.Timeout | None = None  # of the call that is under way
        self._is_look = False  # it only reports or asks
        self._reported = self._asked = -math.inf
        self._overran = False  # since the worker was last reported for it

    def hold(self, runs: Iterable[JobRun]) -> None:
        """Start renewing the leases of these runs."""
        self._held.update({run.lease.token: run for run in runs})
        if self._idle:
            self._idle = False
            self._wake()

    def drop(self, *runs: JobRun) -> None:
        """Stop renewing these: their jobs are settled or lost."""
        for run in runs:
            self._held.pop(run.lease.token, None)

    def hurry(self) -> None:
        """Renew now: a lease has arrived that lost much of its time on the way."""
        self._hurried = True
        self._wake()

    def _wake(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the keeper has ended
                self._loop.call_soon_threadsafe(self._wake_up, self._loop)

    def _wake_up(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the wait. A call may be older than a lease with little time left, and must not outlast that lease."""
        self._woken.set()
        if self._hurried and self._patience is not None:
            until = loop.time() if self._is_look else loop.time() + self._left(loop)
            with suppress(RuntimeError):  # it has timed out already
                self._patience.reschedule(min(until, self._patience.when() or until))

    async def run(self) -> None:
        """Renew for ever; after a failure try again sooner. No wait here outlasts the first lease to expire."""
        loop = self._loop = asyncio.get_running_loop()
        renew_at = loop.time() + self._period
        while True:
            if await self._pause(loop, renew_at) and not self._hurried:
                continue  # woken up by the first lease to hold: it needs nothing yet
            self._lose_overdue(loop.time())
            self._on_look()
            if self._hurried or loop.time() >= renew_at:
                self._hurried = False
                renewed = await self._renew(loop, list(self._held.values()))
                renew_at = loop.time() + (self._period if renewed else self._period / 4)
                self._notice(loop.time())  # leases may be so short that no look fits between two renewals
            else:
                await self._look(loop, renew_at)
            if self._overran and not self._hurried:
                self._overran = False
                with suppress(Exception):  # the worker reports itself again within ten seconds
                    async with asyncio.timeout(min(TICK, self._left(loop), renew_at - loop.time())) as patience:
                        self._patience, self._is_look = patience, True
                        await self._report()
                self._patience = None

    async def _pause(self, loop: asyncio.AbstractEventLoop, renew_at: float) -> bool:
        """Wait for the next renewal, or the next look at the runs if there are any. Return whether it was woken up."""
        wait = min(renew_at - loop.time(), self._left(loop))
        self._idle = not self._held
        if self._held:
            wait = min(wait, TICK, self._next_report - loop.time(), self._next_question - loop.time())
        woken = await set_within(self._woken, max(wait, MOMENT))
        self._idle = False
        self._woken.clear()
        return woken

    @property
    def _next_report(self) -> float:
        """When the oldest news of a run must be reported."""
        oldest = min(
            (run.lease.news_since for run in list(self._held.values()) if run.lease.news_since is not None),
            default=math.inf,
        )
        return max(oldest + TICK, self._reported + REPORT_EVERY)

    @property
    def _next_question(self) -> float:
        """When to ask whether runs in processes may go on."""
        oldest = min(map(self._renewed_at, self._in_processes()), default=math.inf)
        return max(oldest, self._asked) + TICK

    def _in_processes(self) -> list[JobRun]:
        return [run for run in list(self._held.values()) if run.in_process and not run.ended]

    def _renewed_at(self, run: JobRun) -> float:
        return run.lease.deadline - self._lease_for.total_seconds()

    async def _look(self, loop: asyncio.AbstractEventLoop, renew_at: float) -> None:
        """Report news that is due, and ask about runs in processes."""
        time = loop.time()
        due: list[JobRun] = []
        if (news := self._notice(time)) and self._next_report <= time:
            self._reported, due = time, news
        if self._next_question <= time:
            self._asked = time
            younger = time - TICK / 2  # these have their turn with the others the next time, or end before
            due += [run for run in self._in_processes() if self._renewed_at(run) <= younger and run not in due]
        if due:
            await self._renew(loop, due, renew_at - time)

    def _notice(self, time: float) -> list[JobRun]:
        """Log overruns; return the runs that have news. Those that ended meanwhile have none."""
        news: list[JobRun] = []
        for run in list(self._held.values()):
            lease = run.lease
            if run.has_news:
                news.append(run)
                lease.news_since = time if lease.news_since is None else lease.news_since
            else:
                lease.news_since = None
            if run.ends_by + OVERRUN_AFTER <= time < run.returned_at and not (lease.overrun or run.ended):
                lease.overrun = self._overran = True
                limit = f"{run.job.timeout or 0:g} s"
                detail = f"still runs after its timeout of {limit}; it keeps its slot and lease until it ends"
                log_job(logger, logging.WARNING, "job.overrun", run.job, detail, traceback=stack_of(run))
        return news

    def _left(self, loop: asyncio.AbstractEventLoop) -> float:
        """Seconds until the first held lease expires."""
        return min((run.lease.deadline for run in list(self._held.values())), default=float("inf")) - loop.time()

    def _lose_overdue(self, time: float) -> None:
        for run in list(self._held.values()):
            if run.lease.deadline <= time:
                self._lose(run, "it could not be renewed in time")

    async def _renew(self, loop: asyncio.AbstractEventLoop, runs: list[JobRun], within: float = math.inf) -> bool:
        if not runs:
            return True
        reports = [Report(run.job.id, run.lease.token, run.started_at, run.effects.progress) for run in runs]
        sent = loop.time()
        try:
            async with asyncio.timeout(min(self._period, self._left(loop), within)) as patience:
                self._patience, self._is_look = patience, within < math.inf
                driver = await self._session.driver()
                answers = await driver.extend_lease(reports, self._session.now(), self._lease_for)
            for run, report, answer in zip(runs, reports, answers, strict=True):
                lease = run.lease
                lease.reported_start, lease.reported_progress = report.started_at, report.progress
                lease.news_since = None
                self._take(run, answer, sent)
        except Exception as error:
            if within < math.inf:  # news can wait; the next renewal logs that the store is away
                return False
            leases = count(len(runs), "lease")
            logger.warning("store.unavailable: %s not renewed, trying again: %s", leases, described(error))
            return False
        finally:
            self._patience = None
        return True

    def _take(self, run: JobRun, answer: Extended | LeaseError, sent: float) -> None:
        if isinstance(answer, LeaseError):
            if run.settling:  # it may be settled already: the verdict of the settle decides
                self.drop(run)
            elif run.lease.token in self._held:
                self._lose(run, described(answer))
            return
        run.lease.deadline = sent + self._lease_for.total_seconds()
        if run.stop is None and (answer.cancel_requested or answer.dead_letter_requested):
            run.host.request_stop(run, "cancel" if answer.cancel_requested else "dead_letter")

    def _lose(self, run: JobRun, why: str) -> None:
        self.drop(run)
        run.lease.lose()
        run.host.request_stop(run, "lost")
        log_job(logger, logging.WARNING, "lease.lost", run.job, why)
