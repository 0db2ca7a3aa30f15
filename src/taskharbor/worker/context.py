"""The running job as its handler sees it: `current()`."""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from msgspec import Struct

from taskharbor.client.job_builder import current_run
from taskharbor.core.codec import checked_size, encode_value
from taskharbor.core.job import JobRecord, Progress
from taskharbor.core.text import bounded
from taskharbor.errors import LeaseLost, NoCurrentJob

if TYPE_CHECKING:
    from taskharbor.client.blocks import Managed
    from taskharbor.client.handle import Job
    from taskharbor.worker.running import JobRun
    from taskharbor.workflows.flow import Flow
    from taskharbor.workflows.run import Run
    from taskharbor.workflows.step import Step

R = TypeVar("R")
NOTE_LIMIT = 500
_current = cast("ContextVar[JobRun | None]", current_run)


class JobContext(Struct, frozen=True):
    """The job that is running here. `lease_version` grows with every claim: hand it to outside systems as a fence."""

    _run: JobRun

    def __repr__(self) -> str:
        return f"<JobContext {self.id}>"

    @property
    def id(self) -> str:
        """The job's id."""
        return self._run.job.id

    @property
    def task(self) -> str:
        """The task's name."""
        return self._run.job.type

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self._run.job.queue

    @property
    def attempt(self) -> int:
        """1 for the first run, one more after each recorded failure."""
        return self._run.job.attempts + 1

    @property
    def max_attempts(self) -> int | None:
        """The number of failures after which the job is dead-lettered; None means no limit."""
        return self._run.job.max_attempts

    @property
    def lease_version(self) -> int:
        """The number of claims of this job, including this one: the fencing number (L5)."""
        return self._run.job.version

    @property
    def headers(self) -> dict[str, str]:
        """The headers that were given at the enqueue."""
        return dict(self._run.job.headers)

    @property
    def tags(self) -> tuple[str, ...]:
        """Labels given at the enqueue."""
        return self._run.job.tags

    @property
    def slot(self) -> datetime | None:
        """The tick of a recurring task that this job is for, None for other jobs."""
        if "schedule" not in self._run.job.headers:
            return None
        with suppress(KeyError, ValueError):  # headers of the user's own
            return datetime.fromisoformat(self._run.job.headers["slot"])
        return None

    @property
    def cancelled(self) -> bool:
        """Whether this run should end: cancelled, timed out, lease lost or worker stopping. For `def` handlers."""
        return self._run.stop is not None

    def check(self) -> None:
        """Raise `LeaseLost` or `InterruptedError` if this run should end."""
        if self._run.stop == "lost":
            raise LeaseLost(f"job {self.id} is no longer held by this worker")
        if self._run.stop is not None:
            raise InterruptedError(f"job {self.id} should end: {self._run.stop}")

    def progress(self, fraction: float, note: str = "") -> None:
        """Report the progress of the work, from 0 to 1; stored within about a second, unless the run ends before."""
        self._run.own_effects().progress = Progress(max(0.0, min(float(fraction), 1.0)), bounded(note, NOTE_LIMIT))
        self._run.host.noted(self._run)

    @overload
    def enqueue(self, step: Step[R]) -> Job[R]: ...  # type: ignore[overload-overlap]  # a step is a flow, of one job
    @overload
    def enqueue(self, step: Flow[R]) -> Run[R]: ...
    def enqueue(self, step: Step[R] | Flow[R]) -> Job[R] | Run[R]:
        """Enqueue a step or a flow in the same atomic step as this job's Ack: only if this run succeeds (D9)."""
        self._must_go_on("nothing can be enqueued with it any more")
        from taskharbor.workflows.deferred import deferred

        jobs, handle = deferred(self._run.host.client, step)
        self._run.own_effects().new_jobs += jobs
        return handle

    def transaction(self) -> Managed[Any]:
        """A transaction that ends with this job's Ack: its writes are committed if and only if the job is done.

        `async with current().transaction() as tx:`, or `with` in a `def` handler; `tx` is a connection to the store's
        database. If the lease was lost, all of it is rolled back and `LeaseLost` raised. After the block the job is
        done, whatever the handler still does: give its result inside, by `set_result`.
        """
        from taskharbor.worker.transaction import transaction  # seldom needed

        self._must_go_on("it can have no further transaction")
        return transaction(self._run)

    def set_result(self, value: object) -> None:
        """Set the job's result, for a handler that ends in a `transaction`: its return value would come too late."""
        if not self._run.effects.in_transaction:
            raise NoCurrentJob("set_result works inside `current().transaction()` only; otherwise return the result")
        result = None if value is None else encode_value(value, "the result")
        if result is not None:
            checked_size(result, self._run.host.client.session.payload_limit, f"the result of {self.task}")
        self._run.own_effects().result = result

    def _must_go_on(self, otherwise: str) -> None:
        if self._run.effects.settled is not None:
            raise NoCurrentJob(f"job {self.id} is done, by its transaction: {otherwise}")
        if self._run.ended:
            raise NoCurrentJob(f"the run of job {self.id} has ended: {otherwise}")

    @property
    def record(self) -> JobRecord:
        """The record as it was claimed."""
        return self._run.host.client.seen(self._run.job)


def current() -> JobContext:
    """The job that is running here."""
    run = _current.get()
    if run is None:
        raise NoCurrentJob("current() works inside a running handler only")
    return JobContext(run)


enter = _current.set
"""Make this the current run of the calling task. Every run has a context of its own, so nothing has to undo it."""


def running() -> JobContext | None:
    """The current job, if any."""
    run = _current.get()
    return None if run is None else JobContext(run)


def lose() -> None:
    """Let the current run end as if its worker had died: nothing is settled, and its lease expires."""
    if (run := _current.get()) is not None:
        run.lease.lose()
