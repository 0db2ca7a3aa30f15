"""Calls of tasks on their way into the store, and handles on their jobs on the way back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from taskharbor.client.call import Call
from taskharbor.client.client import Client
from taskharbor.client.handle import Job
from taskharbor.client.job_builder import JobBuilder
from taskharbor.client.session import Session
from taskharbor.driver import Enqueued, Group
from taskharbor.errors import InvalidJob

C = TypeVar("C", bound=Call)


class Calls:
    """Calls that are stored as one group."""

    batched = False

    def __init__(self, client: Client, calls: Sequence[Call]) -> None:
        self._client = client
        self._calls = calls
        self.tx = _transaction_of(client, calls)

    def group(self, session: Session) -> Group:
        """Their jobs."""
        return _group(session, self._calls)

    def handle(self, group: Group, stored: Sequence[Enqueued]) -> list[Job[Any]]:
        """A handle for each job, in their order."""
        return [_job(self._client, call, each) for call, each in zip(self._calls, stored, strict=True)]


class SingleCall:
    """A call that is stored by itself, in one commit with those of other callers; but in a transaction, alone."""

    batched = True

    def __init__(self, client: Client, call: Call) -> None:
        self._client = client
        self.call = call
        self.tx = _transaction_of(client, (call,))

    def group(self, session: Session) -> Group:
        """Its job."""
        return _group(session, (self.call,))

    def handle(self, group: Group, stored: Sequence[Enqueued]) -> Job[Any]:
        """A handle on the job."""
        return _job(self._client, self.call, stored[0])


def _group(session: Session, calls: Sequence[Call]) -> Group:
    builder = JobBuilder(session)
    return Group(jobs=builder.checked(builder.jobs(calls)))


def _job(client: Client, call: Call, stored: Enqueued) -> Job[Any]:
    return Job(client, stored.id, call.returns, stored.created, stored.same_payload)


def listed(calls: Iterable[C]) -> list[C]:
    """The steps as a list; `InvalidJob` for one step alone, or something else."""
    if not isinstance(calls, Iterable):
        raise InvalidJob(f"give a list of steps, such as [task.step(1), task.step(2)], not {calls!r}")
    return list(calls)


def _transaction_of(client: Client, calls: Sequence[Call]) -> object | None:
    """The handle that these steps of one harbor go with (`tx=`), None if they go with none; all of them or none."""
    handle: object | None = None
    for number, call in enumerate(calls):
        if not isinstance(call, Call):
            raise InvalidJob(f"only steps can be enqueued, such as task.step(…), not {call!r}")
        if call.client is not client:
            raise InvalidJob("a step belongs to another harbor than the one that was to enqueue it")
        tx = call.options.get("tx")
        if number and tx is not handle:
            raise InvalidJob("steps that are enqueued together must have the same tx=, or none of them any")
        handle = tx
    return handle
