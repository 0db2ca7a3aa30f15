"""A workflow from outside: by its key, by its id, and when parts of it are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from random import Random
from typing import Any

import pytest

from taskharbor import Flow, Run, chain, group
from taskharbor.core.decide import succeed, token_of
from taskharbor.core.outcome import Succeeded
from taskharbor.errors import JobFailed, JobNotFound
from world import World, virtual

from .test_flows import Sums

DAY = date(2026, 1, 2)


async def again(flow: Any) -> Run[Any]:
    """The run behind the key of a flow that another caller has enqueued."""
    keyed = flow.using(idempotency_key="k")
    assert (await keyed.aenqueue()).created
    run: Run[Any] = await keyed.aenqueue()
    assert (run.created, run.same_payload) == (False, True)
    return run


@pytest.mark.parametrize("gone", [0, 1, 2])
@virtual
async def test_a_result_with_gone_records_is_none(gone: int) -> None:
    """I3, K5: whichever it is, nothing stands in its place; while all are there, nothing is missed."""
    w = Sums()
    run = await again(group(group(w.number.step(1), w.number.step(2)), w.number.step(3)))
    await w.drain()
    assert await run.aresult() == [[1, 2], 3]
    nodes = await w.harbor.admin.workflows.agraph(run.id)
    assert await w.harbor.admin.jobs.adelete([nodes[gone].id]) == ["deleted"]
    for each in (run, w.harbor.workflow(run.id)):
        with pytest.raises(JobNotFound, match=f"workflow {run.id} has no result any more: records of its result"):
            await each.aresult(timeout=0)


@virtual
async def test_jobs_outside_of_the_result_may_be_gone() -> None:
    """I3, K5: but if the step with the result is, what is left says so."""
    w = Sums()
    run = await again(chain(w.number.step(1), w.add))
    await w.drain()
    first, last = await w.harbor.admin.workflows.agraph(run.id)
    await w.harbor.admin.jobs.adelete([first.id])
    assert await run.aresult() == 2
    other = await chain(w.number.step(1), w.add).aenqueue()
    await w.drain()
    first, last = await w.harbor.admin.workflows.agraph(other.id)
    await w.harbor.admin.jobs.adelete([last.id])
    with pytest.raises(JobNotFound, match="records of its result are gone"):
        await w.harbor.workflow(other.id).aresult(timeout=0)


@virtual
async def test_an_empty_result_differs_from_one_that_is_gone() -> None:
    """I3, K1, K5: a flow may end in an empty group."""
    w = Sums()
    run = await again(chain(w.number.step(1), w.add, group(group(), group())))
    await w.drain()
    last = (await w.harbor.admin.workflows.agraph(run.id))[-1]
    assert await run.aresult() == [[], []]
    await w.harbor.admin.jobs.adelete([last.id])
    with pytest.raises(JobNotFound, match="records of its result are gone"):
        await run.aresult(timeout=0)


@virtual
async def test_a_known_key_gives_results_in_their_types() -> None:
    """I3, P3: if it asks for the same; else, and by the id, they are what JSON makes of them."""
    w = World()

    @w.harbor.task
    async def day(number: int) -> date:
        return DAY + timedelta(days=number)

    @w.harbor.task
    async def text(number: int) -> str:
        return str(number)

    run = await again(group(day.step(0), group(text.step(1), day.step(1))))
    other = await group(day.step(0)).using(idempotency_key="k").aenqueue()
    await w.drain()
    assert await run.aresult() == [DAY, ["1", DAY + timedelta(days=1)]]
    assert (other.id, other.same_payload) == (run.id, False)
    plain: list[object] = [await other.aresult(), await w.harbor.workflow(run.id).aresult()]
    assert plain == [["2026-01-02", ["1", "2026-01-03"]]] * 2


@virtual
async def test_a_workflow_is_found_by_its_id() -> None:
    """K5: its state, its result, its cancellation."""
    w = Sums()
    done = await chain(w.number.step(1), w.add).aenqueue()
    await w.drain()
    run = w.harbor.workflow(done.id)
    assert (await run.astate(), await run.aresult(), await run.acancel()) == ("done", 2, 0)
    late = await group(w.number.using(delay=60).step(n) for n in range(3)).aenqueue()
    run = w.harbor.workflow(late.id)
    with pytest.raises(TimeoutError, match="is running and has no result yet"):
        await run.aresult(timeout=0)
    assert (await run.acancel(), await late.astate()) == (3, "cancelled")
    dead = await chain(w.die.step(), w.add).aenqueue()
    await w.drain()
    with pytest.raises(JobFailed, match="is held"):
        await w.harbor.workflow(dead.id).aresult()
    for use in (Run[Any].astate, Run[Any].aresult, Run[Any].acancel):
        with pytest.raises(JobNotFound, match="there is no workflow nowhere: the id is wrong"):
            await use(w.harbor.workflow("nowhere"))


@virtual
async def test_a_key_of_a_job_gives_no_workflow_and_says_so() -> None:
    """I1, I3, X5: also where the flow's one step asks for just that."""
    w = Sums()
    job = await w.number.using(idempotency_key="k").aenqueue(1)
    flows: list[Flow[Any]] = [group(w.number.step(1)), chain(w.number.step(1), group()), w.number.step(1)]
    for flow in flows:
        run: Run[Any] = await flow.using(idempotency_key="k").aenqueue()
        assert (run.id, run.created, run.same_payload) == (job.id, False, False)
        for use in (Run[Any].astate, Run[Any].aresult, Run[Any].acancel):
            with pytest.raises(JobNotFound, match=rf"{job.id} is a job, not a workflow: .*harbor\.job\('{job.id}'\)"):
                await use(run)


@virtual
async def test_a_key_of_a_flow_gives_no_job_and_says_so() -> None:
    """I1, I3, X5: for callers that read it, wait for it or cancel it."""
    w = Sums()
    run = await w.number.step(1).using(idempotency_key="k").aenqueue()
    job = await w.number.using(idempotency_key="k").aenqueue(1)
    assert (job.id, job.created, job.same_payload) == (run.id, False, False)
    for use in (job.arecord, job.astate, job.aresult, job.acancel):
        with pytest.raises(JobNotFound, match=rf"{run.id} is a workflow, not a job: .*harbor\.workflow\('{run.id}'\)"):
            await use()


def shuffled(ids: Sequence[str]) -> list[str]:
    """In no order."""
    return Random(1).sample(ids, len(ids))


def interleaved(ids: Sequence[str]) -> list[str]:
    """Every tenth, and then the others."""
    return [id for place in range(10) for id in ids[place::10]]


@pytest.mark.parametrize(
    ("order", "members", "at_once", "most"),
    [
        (list, 1000, 1, 3.1),
        (shuffled, 1000, 1, 3.1),
        (list, 10_000, 16, 2.1),
        (list, 10_000, 10_000, 1.1),
        (reversed, 10_000, 100, 1.1),
        (interleaved, 10_000, 100, 1.1),
        (shuffled, 10_000, 100, 1.1),
    ],
)
@virtual
async def test_a_large_result_is_read_without_looking_at_all_of_it_again_and_again(
    order: Callable[[Sequence[str]], Iterable[str]], members: int, at_once: int, most: float
) -> None:
    """K2, K5: in whatever order and company its members end, about as many records are read as there are."""
    w = Sums()
    run = await group(w.number.step(n) for n in range(members)).aenqueue()
    result = asyncio.create_task(run.aresult())
    jobs = await w.memory.reserve(["default"], w.clock(), timedelta(hours=1), members, "w")
    ends = {job.id: succeed(job, token_of(job), Succeeded(b"%d" % n), w.clock(), None) for n, job in enumerate(jobs)}
    line = list(order(list(ends)))
    for place in range(0, members, at_once):
        await asyncio.sleep(0.01)
        await w.memory.settle([ends[id] for id in line[place : place + at_once]], w.clock())
    assert await result == list(range(members))
    assert sum(len(call["ids"]) for call in w.log.calls("get")) < most * members
