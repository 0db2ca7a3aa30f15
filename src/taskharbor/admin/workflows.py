"""Workflows as an operator sees them: `harbor.admin.workflows` (K5)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from taskharbor.admin.base import LIMIT, PAGE, Part
from taskharbor.admin.endings import resolve
from taskharbor.client.portal import blocking
from taskharbor.core.evolve import Replay
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.states import Shown, State, shown
from taskharbor.core.wiring import wiring_of
from taskharbor.core.workflow import Nested, Path, assembled, standing
from taskharbor.driver import Inspect, Manage, Parent, WorkflowCounts, WorkflowStore, capability
from taskharbor.errors import JobNotFound

if TYPE_CHECKING:
    from taskharbor.client.client import Client

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
            found = await capability(driver, WorkflowStore).workflows(limit, after)
        return [await self._at_a_glance(counts) for counts in found]

    async def aget(self, id: str) -> Workflow:
        """One workflow, or `JobNotFound`."""
        found = await self._client.workflow(id)
        if found is not None:
            return await self._at_a_glance(found)
        if await self._client.record(id) is not None:
            raise JobNotFound(
                f"{id} is a job, not a workflow: take it by harbor.job({id!r}), or give the flow a key that no job has"
            )
        raise JobNotFound(f"there is no workflow {id}: the id is wrong, or its retention has run out")

    async def aresolve(self, text: str) -> str:
        """The id of the workflow that this is, or is the ending of; else the text, as `jobs.resolve` does it."""
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
        """The workflow that a living idempotency key stands for (I3)."""
        async with self._client.store() as driver:
            id = await capability(driver, Inspect).find_key(key, self._now())
            found = [] if id is None else await capability(driver, WorkflowStore).workflows(1, None, [id])
        return await self._at_a_glance(found[0]) if found else None

    async def agraph(self, id: str) -> list[GraphNode]:
        """Its jobs in the order they were stored, with their states and edges; `JobNotFound` if there are none."""
        nodes: list[GraphNode] = []
        now = self._now()
        async for page in _pages(self._client, Filter(workflow_id=id)):
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
        """Cancel what has not ended, and ask what runs to stop; how many jobs that were. Its key is free again (I2).

        The last ones first: a job must not be released because those that it waits for are cancelled.
        """
        stopped = 0
        async for page in _pages(self._client, Filter(workflow_id=id, states=_UNFINISHED)):
            async with self._client.store() as driver:
                await capability(driver, WorkflowStore).free_workflow_key(id)
            answers = await self._client.cancel([job.id for job in page])
            stopped += sum(answer in ("cancelled", "requested") for answer in answers)
        return stopped

    async def areplay(self, id: str) -> list[str]:
        """Run what died or was cancelled again, so that the workflow goes on; the ids of those jobs.

        Not what nobody waits for any more: a failure that was collected by jobs that are done. The first ones first, so
        that those behind them wait for them.
        """
        dead: list[str] = []
        served, missed = set[str](), set[str]()
        async for page in _pages(self._client, Filter(workflow_id=id)):
            for job, edges in zip(page, await self._edges(page), strict=True):
                is_dead = job.state in (State.DLQ, State.CANCELLED)
                left_out = is_dead and job.id in served and job.id not in missed  # those behind it came before it
                (served if left_out or job.state is State.DONE else missed).update(edge.id for edge in edges)
                if is_dead and not left_out:
                    dead.append(job.id)
        left = dead[::-1]
        replayed: list[str] = []
        for some in (left[at : at + PAGE] for at in range(0, len(left), PAGE)):
            async with self._client.store() as driver:
                answers = await capability(driver, Manage).replay([Replay(id=each) for each in some], self._now())
            replayed += [each for each, answer in zip(some, answers, strict=True) if answer.startswith("replayed")]
        return replayed

    async def _edges(self, jobs: Sequence[JobRecord]) -> Sequence[Sequence[Parent]]:
        async with self._client.store() as driver:
            return await capability(driver, WorkflowStore).parents([job.id for job in jobs], 0)

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
        """Of the jobs that the result is made of; a failure that is collected is as good as a result (K4)."""
        found: list[State] = []
        async for page in _pages(self._client, Filter(workflow_id=id)):
            for job in page:
                wiring = wiring_of(job.payload)
                if wiring.out is not None:
                    found.append(State.DONE if wiring.collects and job.state is State.DLQ else job.state)
        return found

    list = blocking(alist)
    get = blocking(aget)
    resolve = blocking(aresolve)
    find = blocking(afind)
    graph = blocking(agraph)
    cancel = blocking(acancel)
    replay = blocking(areplay)


async def results_of(client: Client, id: str) -> Nested[JobRecord]:
    """The jobs that the result is made of, nested as that is; `JobNotFound` if not all of them are left."""
    found: list[tuple[Path, JobRecord]] = []
    outs: int | None = None
    async for page in _pages(client, Filter(workflow_id=id)):
        for job in page:
            wiring = wiring_of(job.payload)
            if wiring.outs is not None:
                outs = wiring.outs
            if wiring.out is not None:
                found.append((wiring.out, job))
    if len(found) != outs:
        raise JobNotFound(
            f"workflow {id} has no result any more: records of its result are gone, deleted or past their retention"
        )
    return assembled(found)


async def cause_of(client: Client, id: str) -> str | None:
    """Which job has failed, and why; None if none is dead."""
    async with client.store() as driver:
        dead = await capability(driver, Inspect).query(
            Filter(workflow_id=id, states=(Shown.DLQ,)), client.session.now(), 1
        )
    return f"job {dead[0].id} ({dead[0].type}) is dead: {dead[0].last_error}" if dead else None


async def _pages(client: Client, where: Filter) -> AsyncIterator[list[JobRecord]]:
    """Matching jobs, the newest first. What is done with a page may change what matches: the next begins behind."""
    after = None
    while True:
        async with client.store() as driver:
            page = await capability(driver, Inspect).query(where, client.session.now(), PAGE, after)
        if page:
            yield page
        if len(page) < PAGE:
            return
        after = page[-1].id
