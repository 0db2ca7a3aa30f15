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
    """Calls that are stored as one group; a single one may be `batched` with those of other callers."""

    def __init__(self, client: Client, calls: Sequence[Call], *, batched: bool = False) -> None:
        self._client = client
        self._calls = calls
        self.tx = _transaction_of(client, calls)
        self.batched = batched

    def group(self, session: Session) -> Group:
        """Their jobs."""
        builder = JobBuilder(session)
        return Group(jobs=builder.checked(builder.jobs(self._calls)))

    def handle(self, group: Group, stored: Sequence[Enqueued]) -> list[Job[Any]]:
        """A handle for each job, in their order."""
        return [
            Job(self._client, each.id, call.returns, each.created, each.same_payload)
            for call, each in zip(self._calls, stored, strict=True)
        ]


async def enqueue_one(client: Client, call: Call) -> Job[Any]:
    """Store one call, together with others that are enqueued at this moment; but in a transaction, alone."""
    (job,) = await client.submit(Calls(client, [call], batched=True))
    return job


def enqueue_one_blocking(client: Client, call: Call) -> Job[Any]:
    """The blocking twin of `enqueue_one`."""
    (job,) = client.submit_blocking("aenqueue", Calls(client, [call], batched=True))
    return job


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
