"""Workflows for operators: `harbor.admin.workflows` (K5)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime

from msgspec import Struct

from taskharbor.admin.base import LIMIT, AdminPart
from taskharbor.admin.bulk import in_bites
from taskharbor.admin.endings import resolve
from taskharbor.client.client import PAGE
from taskharbor.client.portal import blocking
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.shown import shown
from taskharbor.core.states import State
from taskharbor.driver import Inspect, Parent, WorkflowCounts, WorkflowStore, capability
from taskharbor.workflows import stored


class Workflow(Struct, frozen=True, kw_only=True):
    """A workflow: running, held, done, failed or cancelled, and the number of its jobs per state."""

    id: str
    state: str
    created_at: datetime
    jobs: int
    counts: dict[str, int]


class GraphNode(Struct, frozen=True, kw_only=True):
    """A job of a workflow with its parents: ids, policies, and whether each is satisfied."""

    id: str
    task: str
    state: str
    error: str | None
    parents: list[tuple[str, str, bool]]


class Workflows(AdminPart):
    """Jobs that were enqueued as one flow."""

    async def alist(self, *, limit: int = LIMIT, after: str | None = None) -> list[Workflow]:
        """The newest first."""
        async with self._client.store() as driver:
            found = await capability(driver, WorkflowStore).workflows(limit, after)
        return [await self._at_a_glance(counts) for counts in found]

    async def aget(self, id: str) -> Workflow:
        """One workflow, or `JobNotFound`."""
        return await self._at_a_glance(await stored.counts_of(self._client, id))

    async def aresolve(self, text: str) -> str:
        """The id of the workflow that this text is, or is the ending of; else the text, as `jobs.resolve` does it."""
        if await self._client.workflow(text) is not None:
            return text
        return (await resolve([text], self._id_pages(), "workflow")).get(text, text)

    async def _id_pages(self) -> AsyncIterator[list[str]]:
        after = None
        while True:
            async with self._client.store() as driver:
                page = await capability(driver, WorkflowStore).workflows(PAGE, after)
            yield [found.id for found in page]
            if len(page) < PAGE:
                return
            after = page[-1].id

    async def afind(self, key: str) -> Workflow | None:
        """The workflow of a living idempotency key (I3)."""
        async with self._client.store() as driver:
            id = await capability(driver, Inspect).find_key(key, self._now())
            found = [] if id is None else await capability(driver, WorkflowStore).workflows(1, None, [id])
        return await self._at_a_glance(found[0]) if found else None

    async def agraph(self, id: str) -> list[GraphNode]:
        """Its jobs in the order they were stored, with their states and edges; `JobNotFound` if there are none."""
        nodes: list[GraphNode] = []
        now = self._now()
        async for page in self._client.pages(Filter(workflow_id=id)):
            nodes += [
                GraphNode(
                    id=job.id,
                    task=job.type,
                    state=shown(job, now).value,
                    error=job.last_error,
                    parents=[(parent.id, parent.policy, parent.satisfied) for parent in edges],
                )
                for job, edges in zip(page, await self._edges(page), strict=True)
            ]
        if not nodes:
            await self.aget(id)
        return nodes[::-1]

    async def acancel(self, id: str) -> int:
        """Cancel what has not ended, and return the number of jobs. Its key is free again (I2)."""
        return await stored.cancel(self._client, id)

    async def areplay(self, id: str) -> list[str]:
        """Replay the dead and cancelled jobs, so that the workflow goes on; return their ids.

        A failure that was collected by jobs that are done is left out. Jobs go before their dependants, which have to
        wait for them.
        """
        dead: list[str] = []
        served, missed = set[str](), set[str]()
        async for page in self._client.pages(Filter(workflow_id=id)):
            for job, edges in zip(page, await self._edges(page), strict=True):
                is_dead = job.state in (State.DLQ, State.CANCELLED)
                left_out = is_dead and job.id in served and job.id not in missed  # those behind it came before it
                (served if left_out or job.state is State.DONE else missed).update(edge.id for edge in edges)
                if is_dead and not left_out:
                    dead.append(job.id)
        left = dead[::-1]
        answers = await in_bites(left, self._replay, None)
        return [id for id, answer in zip(left, answers, strict=True) if answer.startswith("replayed")]

    async def _edges(self, jobs: Sequence[JobRecord]) -> Sequence[Sequence[Parent]]:
        async with self._client.store() as driver:
            return await capability(driver, WorkflowStore).parents([job.id for job in jobs], 0)

    async def _at_a_glance(self, found: WorkflowCounts) -> Workflow:
        return Workflow(
            id=found.id,
            state=str(await stored.standing_of(self._client, found)),
            created_at=found.created_at,
            jobs=sum(found.states.values()),
            counts={str(state): found.states[state] for state in State if state in found.states},
        )

    list = blocking(alist)
    get = blocking(aget)
    resolve = blocking(aresolve)
    find = blocking(afind)
    graph = blocking(agraph)
    cancel = blocking(acancel)
    replay = blocking(areplay)
