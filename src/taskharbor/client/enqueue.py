"""Calls of tasks on their way to the store, and the handles on their jobs that callers get back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from taskharbor.client.client import Client
from taskharbor.client.handle import Job
from taskharbor.client.job_builder import Call, JobBuilder
from taskharbor.client.session import Session
from taskharbor.driver import Enqueued, Group
from taskharbor.errors import InvalidJob

C = TypeVar("C", bound=Call)


class _Calls:
    def __init__(self, client: Client, *calls: Call) -> None:
        self._client = client
        self.calls = calls
        self.tx = _transaction_of(client, calls)

    def group(self, session: Session) -> Group:
        builder = JobBuilder(session)
        return Group(jobs=builder.checked(builder.jobs(self.calls)))

    def _job(self, call: Call, stored: Enqueued) -> Job[Any]:
        return Job(self._client, stored.id, call.returns, stored.created, stored.same_payload)


class CallGroup(_Calls):
    """Calls that are stored together, all or none."""

    batched = False

    def handle(self, group: Group, stored: Sequence[Enqueued]) -> list[Job[Any]]:
        return [self._job(call, each) for call, each in zip(self.calls, stored, strict=True)]


class SingleCall(_Calls):
    """A call that is stored by itself: in one commit with those of other callers, or in the caller's transaction."""

    batched = True

    def handle(self, group: Group, stored: Sequence[Enqueued]) -> Job[Any]:
        return self._job(self.calls[0], stored[0])


def listed(calls: Iterable[C]) -> list[C]:
    """The steps as a list; `InvalidJob` for one step alone, or something else."""
    if not isinstance(calls, Iterable):
        raise InvalidJob(f"give a list of steps, such as [task.step(1), task.step(2)], not {calls!r}")
    return list(calls)


def _transaction_of(client: Client, calls: Sequence[Call]) -> object | None:
    """The transaction that these steps of one harbor share (`tx=`), None if they have none."""
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
