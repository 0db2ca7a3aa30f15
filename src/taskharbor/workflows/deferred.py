"""`current().enqueue`: steps and flows that are built now and stored with the Ack of the running job (D9)."""

from __future__ import annotations

from typing import Any, TypeVar

from taskharbor.client.client import Client, Submission
from taskharbor.client.enqueue import SingleCall
from taskharbor.client.handle import Job
from taskharbor.core.job import NewJob
from taskharbor.driver import Enqueued
from taskharbor.errors import InvalidJob
from taskharbor.workflows.flow import Flow, planned
from taskharbor.workflows.run import Run
from taskharbor.workflows.step import Step

R = TypeVar("R")
T = TypeVar("T")


def deferred(client: Client, flow: Flow[R]) -> tuple[tuple[NewJob, ...], Job[R] | Run[R]]:
    """The jobs to store with the Ack of the running job, and the handle on them."""
    if not isinstance(flow, Flow):
        raise InvalidJob(f"only steps and flows can be enqueued, such as task.step(…), not {flow!r}")
    if isinstance(flow, Step):
        single = SingleCall(client, flow)
        if single.tx is not None:
            raise InvalidJob("current().enqueue stores with the job's own Ack, in no other transaction: leave tx= out")
        return _built(client, single)
    plan = planned(flow, {})
    if plan.client is None:
        return (), plan.nothing()
    if plan.client is not client:
        raise InvalidJob("this flow belongs to another harbor than the running job: enqueue it by itself")
    return _built(client, plan)


def _built(client: Client, what: Submission[T]) -> tuple[tuple[NewJob, ...], T]:
    session = client.session
    group = what.group(session, session.now())
    jobs: tuple[Any, ...] = tuple(group.jobs)
    return jobs, what.handle(group, tuple(Enqueued(job.id, True) for job in jobs))
