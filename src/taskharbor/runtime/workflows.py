"""Workflows as an operator sees them: `harbor.admin.workflows` (K5)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime

from msgspec import Struct

from taskharbor.core.evolve import Replay
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.states import Shown, State, shown
from taskharbor.core.wiring import wiring_of
from taskharbor.core.workflow import Nested, assembled, standing
from taskharbor.driver import Inspect, WorkflowCounts, capability
from taskharbor.errors import JobNotFound
from taskharbor.runtime.part import LIMIT, PAGE, Part
from taskharbor.runtime.portal import blocking

_DEAD = (Shown.DLQ, Shown.CANCELLED)
_UNFINISHED = tuple(state for state in Shown if state not in (Shown.DONE, *_DEAD))


class Workflow(Struct, frozen=True, kw_only=True):
    """A workflow at a glance: running, held, done, failed or cancelled, and how many of its jobs are in which state."""

    id: str
    state: str
    created_at: datetime
    jobs: int
    counts: dict[str, int]


class GraphNode(Struct, frozen=True, kw_only=True):
    """A job of a workflow, and what it waits or waited for: ids, policies, and whether each is satisfied."""

    id: str
    task: str
    state: str
    error: str | None
    parents: list[tuple[str, str, bool]]


class Workflows(Part):
    """Jobs that were enqueued as one flow."""

    async def alist(self, *, limit: int = LIMIT, after: str | None = None) -> list[Workflow]:
        """The latest ones first."""
        async with self._client.store() as driver:
            found = await capability(driver, Inspect).workflows(limit, after)
        return [await self._at_a_glance(counts) for counts in found]

    async def aget(self, id: str) -> Workflow:
        """One workflow, or `JobNotFound`."""
        async with self._client.store() as driver:
            found = await capability(driver, Inspect).workflows(1, None, [id])
        if not found:
            raise JobNotFound(f"there is no workflow {id}: the id is wrong, or its retention has run out")
        return await self._at_a_glance(found[0])

    async def afind(self, key: str) -> Workflow | None:
        """The workflow that a living idempotency key stands for (I3)."""
        async with self._client.store() as driver:
            inspect = capability(driver, Inspect)
            id = await inspect.find_key(key, self._now())
            found = [] if id is None else await inspect.workflows(1, None, [id])
        return await self._at_a_glance(found[0]) if found else None

    async def agraph(self, id: str) -> list[GraphNode]:
        """Its jobs in the order they were stored, with their states and edges; `JobNotFound` if there are none."""
        nodes: list[GraphNode] = []
        now = self._now()
        async for page in self._pages(Filter(workflow_id=id)):
            async with self._client.store() as driver:
                parents = await capability(driver, Inspect).parents([job.id for job in page], 0)
            nodes += [
                GraphNode(
                    id=job.id,
                    task=job.type,
                    state=shown(job, now).value,
                    error=job.last_error,
                    parents=[(parent.id, parent.policy, parent.satisfied) for parent in edges],
                )
                for job, edges in zip(page, parents, strict=True)
            ]
        if not nodes:
            await self.aget(id)
        return nodes[::-1]

    async def acancel(self, id: str) -> int:
        """Cancel what has not ended, and ask what runs to stop; how many jobs that were.

        The last ones first: a job must not be released because those that it waits for are cancelled.
        """
        stopped = 0
        async for page in self._pages(Filter(workflow_id=id, states=_UNFINISHED)):
            answers = await self._client.cancel([job.id for job in page])
            stopped += sum(answer in ("cancelled", "requested") for answer in answers)
        return stopped

    async def areplay(self, id: str) -> list[str]:
        """Run what died or was cancelled again, so that the workflow goes on; the ids of those jobs."""
        replayed: list[str] = []
        async for page in self._pages(Filter(workflow_id=id, states=_DEAD)):
            ids = [job.id for job in page]
            async with self._client.store() as driver:
                answers = await capability(driver, Inspect).replay([Replay(id=each) for each in ids], self._now())
            replayed += [each for each, answer in zip(ids, answers, strict=True) if answer == "replayed"]
        return replayed[::-1]

    async def results(self, id: str) -> Nested[JobRecord]:
        """The jobs that the result is made of, nested as that is."""
        found = [
            (path, job)
            async for page in self._pages(Filter(workflow_id=id))
            for job in page
            if (path := wiring_of(job.payload).out) is not None
        ]
        return assembled(found)

    async def _at_a_glance(self, found: WorkflowCounts) -> Workflow:
        state = standing(found.states)
        if state is None:
            state = standing(found.states, await self._result_states(found.id))
        return Workflow(
            id=found.id,
            state=str(state),
            created_at=found.created_at,
            jobs=sum(found.states.values()),
            counts={str(state): found.states[state] for state in State if state in found.states},
        )

    async def _result_states(self, id: str) -> list[State]:
        return [
            job.state
            async for page in self._pages(Filter(workflow_id=id))
            for job in page
            if wiring_of(job.payload).out is not None
        ]

    async def _pages(self, where: Filter) -> AsyncIterator[list[JobRecord]]:
        """Matching jobs, the newest first. What is done with a page may change what matches: the next begins behind."""
        after = None
        while True:
            async with self._client.store() as driver:
                page = await capability(driver, Inspect).query(where, self._now(), PAGE, after)
            if page:
                yield page
            if len(page) < PAGE:
                return
            after = page[-1].id

    list = blocking(alist)
    get = blocking(aget)
    find = blocking(afind)
    graph = blocking(agraph)
    cancel = blocking(acancel)
    replay = blocking(areplay)
