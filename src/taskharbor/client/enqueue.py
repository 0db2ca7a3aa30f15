"""Calls of tasks on their way to the store, and the handles on their jobs that callers get back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from taskharbor.client.client import Client
from taskharbor.client.handle import Job
from taskharbor.client.job_builder import Call, JobBuilder
from taskharbor.client.session import Session
from taskharbor.driver import Enqueued, Group
from taskharbor.errors import InvalidJob

C = TypeVar("C", bound=Call)
OF_ANOTHER = "a step belongs to another harbor than the one that was to enqueue it"


class CallGroup:
    """Calls that are stored together, all or none."""

    batched = False

    def __init__(self, client: Client, *calls: Call) -> None:
        self.calls = calls
        self.tx = _transaction_of(client, calls)

    def group(self, session: Session, now: datetime) -> Group:
        builder = JobBuilder(session, now)
        return Group(jobs=builder.checked(builder.jobs(self.calls)))

    def handle(self, group: Group, stored: Sequence[Enqueued]) -> list[Job[Any]]:
        return [_job(call, each) for call, each in zip(self.calls, stored, strict=True)]


class SingleCall:
    """A call that is stored by itself: in one commit with those of other callers, or in the caller's transaction."""

    __slots__ = "call", "tx"
    batched = True

    def __init__(self, client: Client, call: Call) -> None:
        if call.client is not client:
            raise InvalidJob(OF_ANOTHER)
        self.call = call
        self.tx = call.options.get("tx")

    def group(self, session: Session, now: datetime) -> Group:
        return Group(jobs=(JobBuilder(session, now).job(self.call),))

    def handle(self, group: Group, stored: Sequence[Enqueued]) -> Job[Any]:
        return _job(self.call, stored[0])


def _job(call: Call, stored: Enqueued) -> Job[Any]:
    return Job(call.client, stored.id, call.task.signature.returns, stored.created, stored.same_payload)


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
            raise InvalidJob(OF_ANOTHER)
        tx = call.options.get("tx")
        if number and tx is not handle:
            raise InvalidJob("steps that are enqueued together must have the same tx=, or none of them any")
        handle = tx
    return handle
