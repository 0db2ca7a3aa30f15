"""Broken workers: flows on their way into the store, and what their steps are given."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from unittest import mock

from msgspec.structs import replace

from taskharbor.admin.workflows import Workflows
from taskharbor.client.client import Client
from taskharbor.core.evolve import Replay
from taskharbor.core.filter import Filter
from taskharbor.core.outcome import Failed, Outcome
from taskharbor.core.states import Shown
from taskharbor.core.workflow import Outs, Shape, flat
from taskharbor.driver import Group, Manage, Parent, capability
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.worker import executor as executors
from taskharbor.worker import outcomes
from taskharbor.workflows import deferred as deferring
from taskharbor.workflows import flow as flows
from taskharbor.workflows import plan as plans
from taskharbor.workflows import stored
from taskharbor.workflows.flow import Flow
from taskharbor.workflows.parent_results import ParentResults
from taskharbor.workflows.plan import Edges, Plan, Steps

from .mutant import MutantRegistry

WEAVING = MutantRegistry("worker")
mutant = WEAVING.mutant

NESTED = "results_come_in_order_and_nested_as_the_flow_is"


@mutant((flows, "shape"), by=NESTED)
def nesting_flattened(shape: Any, outs: Outs) -> Shape:
    """A finalizer of nested groups is given one long list."""
    length = len(list(flat(outs)))
    return length if isinstance(outs, tuple) else 0


@mutant((flows, "shape"), by=NESTED)
def single_result_in_a_list(shape: Any, outs: Outs) -> Shape:
    """A step of a chain is given a list of one."""
    found: Shape = shape(outs)
    return found or 1


@mutant((executors, "filled"), by=NESTED)
def results_in_the_wrong_order(filled: Any, payload: bytes, parameter: str, given: Sequence[Parent]) -> Any:
    """The results of a group come backwards."""
    return filled(payload, parameter, given[::-1])


@mutant((ParentResults, "of"), by="results_are_read_when_a_step_starts")
async def results_read_before_their_time(of: Any, parents: Any, id: str) -> list[Parent]:
    """The parents' results before a replay are taken for the new ones."""
    known: dict[str, list[Parent]] = vars(parents).setdefault("_known", {})
    if id not in known:
        known[id] = await of(parents, id)
    return known[id]


@mutant((outcomes, "raised"), by="a_store_that_is_away_when_results_are_read_costs_nothing")
def unread_results_are_a_failure(raised: Any, error: BaseException, *rest: Any) -> Outcome:
    """A step dies because the store was away when it was to begin."""
    outcome: Outcome = raised(error, *rest)
    return Failed("NotNow", "") if isinstance(error, outcomes.StoreAway) else outcome


@mutant((flows, "with_default_policy"), by="a_failed_step_stands_in_for_its_result")
def policy_of_a_flow_dropped(with_default_policy: Any, outs: Outs, policy: str) -> Outs:
    """The failure policy of a flow is dropped: failures hold everything up."""
    return outs


@mutant((flows, "joined"), by="between_many_and_many_stands_one_step")
def join_skipped(joined: Any, flow: Flow[Any], layout: Steps, edges: Edges) -> Edges:
    """Each of many waits for each of many: edges grow as the square of the steps."""
    return edges


@mutant((flows, "joined"), by="between_many_and_many_stands_one_step")
def join_waits_for_nothing(joined: Any, flow: Flow[Any], layout: Steps, edges: Edges) -> Any:
    """The step between two groups waits for the first of a group only."""
    return joined(flow, layout, edges[:1])


@mutant((plans, "paths"), by="a_flow_under_a_known_key_is_the_first_one")
def result_of_a_flow_unnested(paths: Any, outs: Outs) -> Any:
    """The run of a flow found by its key returns its results in another form."""
    numbers = list(flat(outs))
    return ((number, [(place, len(numbers))]) for place, number in enumerate(numbers))


@mutant((Plan, "group"), by="a_flow_under_a_known_key_is_the_first_one")
def key_of_a_flow_ignored(group: Any, plan: Plan[Any], session: Any, now: datetime) -> Group:
    """A flow enqueued twice under one key is stored twice."""
    made: Group = group(plan, session, now)
    return replace(made, key=None, key_expires_at=None)


@mutant((deferring, "deferred"), by="a_flow_comes_with_its_handlers_success")
def flow_of_a_handler_unordered(deferred: Any, client: Client, flow: Flow[Any]) -> Any:
    """The steps of a flow that a handler enqueued do not wait for each other."""
    jobs, run = deferred(client, flow)
    return tuple(replace(job, depends_on=()) for job in jobs), run


@mutant((stored, "cancel"), by="a_cancelled_workflow_releases_no_job")
async def workflow_cancelled_oldest_first(cancel: Any, client: Client, id: str) -> int:
    """Steps that collect failures are released by the very cancellation, and run."""
    pages = [page async for page in client.pages(Filter(workflow_id=id, states=stored.UNFINISHED))]
    oldest_first = [job.id for page in pages for job in page][::-1]
    for first in range(0, len(oldest_first), len(pages[0])):
        await client.cancel(oldest_first[first : first + len(pages[0])])
    return len(oldest_first)


@mutant((Workflows, "areplay"), by="a_replayed_workflow_goes_on_from_where_it_failed")
async def workflow_replay_forgets_the_cancelled(areplay: Any, workflows: Workflows, id: str) -> list[str]:
    """Steps that were cancelled because of a failure stay so."""
    where = Filter(workflow_id=id, states=(Shown.DLQ,))
    ids = [job.id async for page in workflows._client.pages(where) for job in page]
    async with workflows._client.store() as driver:
        await capability(driver, Manage).replay([Replay(id=each) for each in ids], workflows._now())
    return ids


@mutant((stored, "cancel"), by="a_cancelled_workflow_that_collects_can_be_replayed")
async def cancelled_workflow_keeps_its_key(cancel: Any, client: Client, id: str) -> int:
    """A cancelled flow cannot be enqueued again."""
    with mock.patch.object(MemoryDriver, "free_workflow_key", mock.AsyncMock()):
        stopped: int = await cancel(client, id)
        return stopped


@mutant((Workflows, "areplay"), by="a_cancelled_workflow_that_collects_can_be_replayed")
async def workflow_replayed_newest_first(areplay: Any, workflows: Workflows, id: str) -> list[str]:
    """The last step of a workflow runs before the others, on their failures."""
    ids = [job.id async for page in workflows._client.pages(Filter(workflow_id=id)) for job in page]
    for each in ids:
        async with workflows._client.store() as driver:
            await capability(driver, Manage).replay([Replay(id=each)], workflows._now())
    return ids


@mutant((Workflows, "areplay"), by="a_replay_leaves_out_what_no_job_waits_for")
async def workflow_replay_takes_what_was_collected(areplay: Any, workflows: Workflows, id: str) -> list[str]:
    """A failure that was already collected is run again."""
    where = Filter(workflow_id=id, states=(Shown.DLQ, Shown.CANCELLED))
    ids = [job.id async for page in workflows._client.pages(where) for job in page][::-1]
    async with workflows._client.store() as driver:
        await capability(driver, Manage).replay([Replay(id=each) for each in ids], workflows._now())
    return ids
