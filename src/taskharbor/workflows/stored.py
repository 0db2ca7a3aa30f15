"""Stored workflows: their state, their results, why they failed, and how they are cancelled (K5)."""

from __future__ import annotations

from taskharbor.client.client import MISSING, Client
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.states import Shown, State
from taskharbor.core.wiring import wiring_of
from taskharbor.core.workflow import Nested, Path, Standing, assembled, standing
from taskharbor.driver import WorkflowCounts, WorkflowStore, capability
from taskharbor.errors import JobNotFound

_DEAD = (Shown.DLQ, Shown.CANCELLED)
UNFINISHED = tuple(state for state in Shown if state not in (Shown.DONE, *_DEAD))


async def counts_of(client: Client, id: str) -> WorkflowCounts:
    """The states of a workflow's jobs, or `JobNotFound`."""
    found = await client.workflow(id)
    if found is not None:
        return found
    if await client.record(id) is not None:
        raise JobNotFound(
            f"{id} is a job, not a workflow: take it by harbor.job({id!r}), or give the flow a key that no job has"
        )
    raise JobNotFound(f"there is no workflow {id}: {MISSING}")


async def standing_of(client: Client, found: WorkflowCounts) -> Standing:
    """Whether it is running, held, done, failed or cancelled."""
    state = standing(found.states) or standing(found.states, await _result_states(client, found.id))
    assert state is not None
    return state


async def _result_states(client: Client, id: str) -> list[State]:
    """The states of the jobs that the result is made of; a collected failure counts as a result (K4)."""
    found: list[State] = []
    async for page in client.pages(Filter(workflow_id=id)):
        for job in page:
            wiring = wiring_of(job.payload)
            if wiring.out is not None:
                found.append(State.DONE if wiring.collects and job.state is State.DLQ else job.state)
    return found


async def cancel(client: Client, id: str) -> int:
    """Cancel the jobs that have not ended, and return their number. The workflow's key is free again (I2).

    The last ones first: a job must not be released because its parents are cancelled.
    """
    stopped = 0
    async for page in client.pages(Filter(workflow_id=id, states=UNFINISHED)):
        async with client.store() as driver:
            await capability(driver, WorkflowStore).free_workflow_key(id)
        answers = await client.cancel([job.id for job in page])
        stopped += sum(answer in ("cancelled", "requested") for answer in answers)
    return stopped


async def results_of(client: Client, id: str) -> Nested[JobRecord]:
    """The jobs that the result is made of, nested as that is; `JobNotFound` if not all of them are left."""
    found: list[tuple[Path, JobRecord]] = []
    outs: int | None = None
    async for page in client.pages(Filter(workflow_id=id)):
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
    """The job that has failed, and why; None if none is dead."""
    dead = await client.query(Filter(workflow_id=id, states=(Shown.DLQ,)), 1)
    return f"job {dead[0].id} ({dead[0].type}) is dead: {dead[0].last_error}" if dead else None
