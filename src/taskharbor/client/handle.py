"""The handle on a job that an enqueue returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from msgspec import Struct

from taskharbor.client.client import MISSING, Client
from taskharbor.client.options import Duration, wait_limit
from taskharbor.client.other_names import JOB_NAMES, hinting
from taskharbor.client.portal import Portal, blocking
from taskharbor.core.codec import decode_value
from taskharbor.core.collecting import FailedStep
from taskharbor.core.job import JobRecord
from taskharbor.core.shown import shown
from taskharbor.core.states import State
from taskharbor.errors import JobCancelled, JobFailed, JobNotFound

R = TypeVar("R", covariant=True)


class Job(Struct, Generic[R], frozen=True, eq=False, gc=False):
    """A durable request to run a task. `created` is False if its idempotency key already belonged to this job."""

    _client: Client
    id: str
    _returns: Any = Any
    created: bool = True
    same_payload: bool = True

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    if not TYPE_CHECKING:
        __getattr__ = hinting(JOB_NAMES, lambda _: "job")

    @property
    def portal(self) -> Portal:
        return self._client.portal

    async def arecord(self) -> JobRecord:
        """Everything the store knows about the job."""
        record = await self._client.record(self.id)
        if record is None:
            raise await self._why_gone()
        return self._client.seen(record)

    async def astate(self) -> str:
        """scheduled, ready, waiting, claimed, running, done, dlq or cancelled."""
        return shown(await self.arecord(), self._client.session.now()).value

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Wait for the end and return the result; `TimeoutError` after `timeout`, seconds or a `timedelta`.

        Raises `JobFailed`, `JobCancelled` or `JobNotFound` when there is none.
        """
        record = await self._client.finished(self.id, wait_limit(timeout))
        if record is None:
            raise await self._why_gone()
        return self.outcome(record)

    def outcome(self, record: JobRecord | None) -> R:
        """The result as the ended job's record has it, or the reason why there is none."""
        if record is None:
            raise _gone(self.id)
        if record.state is State.DLQ:
            raise JobFailed(f"job {self.id} is dead-lettered ({record.dlq_reason}): {record.last_error}")
        if record.state is State.CANCELLED:
            raise JobCancelled(f"job {self.id} was cancelled")
        return cast(R, None if record.result is None else decode_value(record.result, self._returns))

    async def acancel(self) -> bool:
        """Cancel it: at once if it waits, through the heartbeat if it runs. False if it had ended or is gone.

        A run in a process of its own is killed within a second.
        """
        (answer,) = await self._client.cancel([self.id])
        if answer == "missing" and await self._client.workflow(self.id) is not None:
            raise _is_workflow(self.id)
        return answer in ("cancelled", "requested")

    async def _why_gone(self) -> JobNotFound:
        return _gone(self.id) if await self._client.workflow(self.id) is None else _is_workflow(self.id)

    record = blocking(arecord)
    state = blocking(astate)
    result = blocking(aresult)
    cancel = blocking(acancel)


class Collected(Job[R], frozen=True, eq=False, gc=False):
    """A job whose failure is a result as well (K4)."""

    def outcome(self, record: JobRecord | None) -> Any:
        if record is not None and record.state in (State.DLQ, State.CANCELLED):
            return FailedStep(record.id, record.state.value, record.last_error)
        return super().outcome(record)


def _gone(id: str) -> JobNotFound:
    return JobNotFound(f"there is no job {id}: {MISSING}")


def _is_workflow(id: str) -> JobNotFound:
    return JobNotFound(
        f"{id} is a workflow, not a job: take it by harbor.workflow({id!r}), or give the job a key that no flow has"
    )
