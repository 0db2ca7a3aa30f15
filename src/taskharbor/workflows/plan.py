"""The plan of a flow: its steps, the edges between them, and the group of jobs that is stored for them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from taskharbor.client.client import Client
from taskharbor.client.handle import Collected, Job
from taskharbor.client.job_builder import Call, JobBuilder, key_expiry
from taskharbor.client.options import KeyOptions
from taskharbor.client.session import Session
from taskharbor.core.job import Dependency, NewJob
from taskharbor.core.wiring import Wiring, wired
from taskharbor.core.workflow import Edge, Layout, Outs, flat, mapped, paths, policies
from taskharbor.driver import Enqueued, Group
from taskharbor.errors import InvalidJob
from taskharbor.workflows.run import Run

R = TypeVar("R", covariant=True)
Steps = Layout[Call]
Edges = Sequence[Edge]


class FlowOptions(KeyOptions, total=False):
    """The options of a flow as a whole."""

    tx: object


class Plan(Generic[R]):
    """The steps of a flow, stored as one group, under its key if it has one (D1)."""

    batched = False

    def __init__(self, layout: Steps, outs: Outs, options: FlowOptions) -> None:
        self._options = options
        self.tx = options.get("tx")
        self.outs = mapped(outs, lambda edge: edge.parent)
        self.collected = {edge.parent for edge in flat(outs) if edge.policy == "collect"}
        self.laid = layout.laid
        self.client = self._client()

    def _client(self) -> Client | None:
        """The harbor that all steps belong to; None if there are none."""
        clients = {id(laid.step.client): laid.step.client for laid in self.laid}
        if len(clients) > 1:
            raise InvalidJob("a flow has steps of two harbors: a workflow lives in one store")
        for laid in self.laid:
            if alone := {"idempotency_key", "tx"} & laid.step.options.keys():
                option = f"{min(alone)}=…"
                raise InvalidJob(
                    f"a step of a flow has {min(alone)} of its own: set it for the whole, flow.using({option}); or for "
                    f"a job by itself, task.using({option}).enqueue(…) or harbor.enqueue(name, {{…}}, {option})"
                )
        return next(iter(clients.values()), None)

    def group(self, session: Session, now: datetime) -> Group:
        builder = JobBuilder(session, now)
        workflow_id = builder.new_id()
        jobs = builder.checked(self._jobs(builder, workflow_id))
        key = self._options.get("idempotency_key")
        expires_at = None if key is None else key_expiry(self._options, session.settings, now)
        return Group(jobs=jobs, key=key, key_expires_at=expires_at, workflow_id=workflow_id)

    def _jobs(self, builder: JobBuilder, workflow_id: str) -> list[NewJob]:
        """The jobs to store; most jobs of a large flow have no parents."""
        places = dict(paths(self.outs))
        has_outs = places.keys() or {len(self.laid) - 1}
        failure_policies = policies(self.laid)
        jobs = builder.jobs((laid.step for laid in self.laid), workflow_id)
        for number, laid in enumerate(self.laid):
            if laid.edges or number in has_outs:
                job = jobs[number]
                parents = zip(laid.edges, failure_policies[number], strict=True)
                edges = tuple(Dependency(jobs[edge.parent].id, policy) for edge, policy in parents)
                taken = 0 if laid.takes is None else len(edges)
                outs = len(places) if number in has_outs else None
                wiring = Wiring(laid.takes, taken, places.get(number), outs, number in self.collected)
                payload = wired(job.payload, wiring)
                jobs[number] = replace(job, depends_on=edges, payload=payload)
        return jobs

    def handle(self, group: Group, stored: Sequence[Enqueued]) -> Run[R]:
        """The run of the flow, or of the workflow that is already stored under its key."""
        client, first = self.client, stored[0]
        assert client is not None

        def returns(number: int) -> Any:
            return self.laid[number].step.returns

        if not first.created:
            known = mapped(self.outs, returns) if first.same_payload else None
            return Run(client, first.id, None, False, first.same_payload, known)

        def handle(number: int) -> Job[Any]:
            return (Collected if number in self.collected else Job)(client, stored[number].id, returns(number))

        return Run(client, group.workflow_id or "", mapped(self.outs, handle))

    def nothing(self) -> Run[R]:
        """The run of a flow without steps, which is done."""
        return Run(None, "", self.outs)  # type: ignore[arg-type]
