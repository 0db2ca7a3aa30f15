"""A job from outside: what an enqueue gives back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from msgspec import Struct

from taskharbor.core.codec import decode_value
from taskharbor.core.job import JobRecord
from taskharbor.core.states import State, shown
from taskharbor.errors import JobCancelled, JobFailed, JobNotFound
from taskharbor.runtime.portal import Portal, blocking

if TYPE_CHECKING:
    from taskharbor.runtime.client import Client

R = TypeVar("R", covariant=True)


class Job(Struct, Generic[R], frozen=True, eq=False, gc=False):
    """A durable request to run a task. `created` is False if its idempotency key already stood for this job."""

    _client: Client
    id: str
    _returns: Any = Any
    created: bool = True
    same_payload: bool = True

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    @property
    def portal(self) -> Portal:
        """Where blocking twins run."""
        return self._client.portal

    async def arecord(self) -> JobRecord:
        """Everything the store knows about the job."""
        record = await self._client.record(self.id)
        if record is None:
            raise _gone(self.id)
        return record

    async def astate(self) -> str:
        """scheduled, ready, waiting, claimed, running, done, dlq or cancelled."""
        return shown(await self.arecord(), self._client.session.now()).value

    async def aresult(self, timeout: float | None = None) -> R:
        """Wait for the end and return the result; `TimeoutError` after `timeout` seconds.

        Raises `JobFailed`, `JobCancelled` or `JobNotFound` when there is none.
        """
        return self.outcome(await self._client.finished(self.id, timeout))

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
        """Cancel it: at once if it waits, through the heartbeat if it runs. False if it had ended or is gone."""
        return (await self._client.cancel([self.id]))[0] in ("cancelled", "requested")

    record = blocking(arecord)
    state = blocking(astate)
    result = blocking(aresult)
    cancel = blocking(acancel)


def _gone(id: str) -> JobNotFound:
    return JobNotFound(f"there is no job {id}: the id is wrong, or its retention has run out")
