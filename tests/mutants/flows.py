"""Broken drivers: dependencies."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from unittest import mock

from msgspec.structs import replace

from taskharbor.core import evolve
from taskharbor.core.dependency import Effect
from taskharbor.core.evolve import Replay
from taskharbor.core.job import JobRecord
from taskharbor.core.states import TERMINAL, State
from taskharbor.core.transition import Transition
from taskharbor.driver import Parent
from taskharbor.drivers.memory import store as stores
from taskharbor.drivers.memory.driver import MemoryDriver
from taskharbor.drivers.memory.edges import EdgeIndex, MemoryEdge
from taskharbor.drivers.memory.store import Store

from .mutant import MutantRegistry

FLOWS = MutantRegistry("driver")
mutant = FLOWS.mutant


def count_down(store: Store, id: str, now: datetime) -> None:
    """One dependency less for a job."""
    child = store.jobs[id]
    if child.unmet:
        child = store._write(replace(child, unmet=child.unmet - 1))
        if not child.unmet and child.state is State.WAITING:
            store._write(evolve.released(child, now))


@mutant((Store, "settle"), by="test_K2_a_repeated_settle_satisfies_no_edge_twice")
def dependants_released_twice(settle: Any, store: Store, to: Transition, now: datetime) -> Any:
    """A repeated settle counts the dependants down once more."""
    verdict = settle(store, to, now)
    if verdict == "replayed":
        for edge in store.edges.children.get(to.id, ()):
            count_down(store, edge.child, now)
    return verdict


@mutant((Store, "_apply_end"), by="test_K2_replaying_a_collected_parent_leaves_the_child_alone")
def edge_satisfied_twice(tell: Any, store: Store, id: str, now: datetime) -> None:
    """A parent that was replayed counts a second time."""
    met = [edge for edge in store.edges.children.get(id, ()) if edge.satisfied]
    tell(store, id, now)
    for edge in met:
        count_down(store, edge.child, now)


@mutant((Store, "_apply_end"), by="test_K2_a_child_that_went_on_is_left_alone[done]")
def finished_child_released_again(tell: Any, store: Store, id: str, now: datetime) -> None:
    """A second end of a parent runs the child once more."""
    tell(store, id, now)
    for edge in store.edges.children.get(id, ()):
        child = store.jobs[edge.child]
        if child.state is State.DONE:
            store._write(replace(child, state=State.READY, completed_at=None, keep_until=None, result=None))


@mutant((Store, "_apply_end"), by="test_K1_a_chain_runs_one_after_the_other")
def dependants_never_released(tell: Any, store: Store, id: str, now: datetime) -> None:
    """An end is not passed on: flows stop after their first step."""


@mutant((Store, "_apply_end"), by="test_K1_a_waiting_job_counts_its_unmet_dependencies")
def child_released_by_its_first_parent(tell: Any, store: Store, id: str, now: datetime) -> None:
    """A join waits for one arm only."""
    tell(store, id, now)
    for edge in store.edges.children.get(id, ()):
        child = store.jobs[edge.child]
        if child.state is State.WAITING and edge.satisfied:
            store._write(evolve.released(replace(child, unmet=0), now))


@mutant((Store, "_apply_end"), by="test_K4_cancel_cancels_the_rest[fail]")
def cascade_of_one_level(tell: Any, store: Store, id: str, now: datetime) -> None:
    """Children of a dead job are cancelled, their own children wait for ever."""
    children = {edge.child for edge in store.edges.children.get(id, ())}
    edges = {child: store.edges.children.pop(child) for child in children if child in store.edges.children}
    tell(store, id, now)
    store.edges.children.update(edges)


@mutant((Store, "sweep"), by="test_K4_Q4_dependants_of_a_held_job_are_affected_at_its_end[left behind-cancel]")
def sweep_ignores_dependants(sweep: Any, store: Store, *rest: Any) -> Any:
    """Dependants of an expired job wait for ever."""
    with mock.patch.object(store, "_apply_end"):
        return sweep(store, *rest)


@mutant((Store, "cancel"), by="test_K4_cancel_cancels_the_rest[withdraw]")
def cancel_ignores_dependants(cancel: Any, store: Store, *rest: Any) -> Any:
    """Dependants of a job cancelled by hand wait for ever."""
    with mock.patch.object(store, "_apply_end"):
        return cancel(store, *rest)


@mutant((stores, "effect"), by="test_K4_hold_waits_for_a_replay[fail]")
def hold_runs_after_a_failure(effect: Any, policy: str, parent: State) -> Any:
    """A child whose parent died runs as if it had not."""
    return Effect.SATISFY if parent in TERMINAL else effect(policy, parent)


@mutant((stores, "effect"), by="test_K4_a_mixed_family_follows_each_edge")
def collect_is_taken_for_hold(effect: Any, policy: str, parent: State) -> Any:
    """A finalizer that should run with the failures waits for ever."""
    return effect("hold" if policy == "collect" else policy, parent)


@mutant((Store, "_write"), by="test_K2_a_released_job_is_due_now_or_at_its_own_time")
def released_child_runs_before_its_time(write: Any, store: Store, job: JobRecord) -> Any:
    """A child with a run_at in the future runs as soon as its parents are done."""
    before = store.jobs.get(job.id)
    if before is not None and before.state is State.WAITING and job.state is State.READY:
        job = replace(job, due_at=before.due_at if before.run_at is None else before.created_at)
    return write(store, job)


@mutant((EdgeIndex, "connect"), by="test_K1_a_waiting_job_counts_its_unmet_dependencies")
def child_does_not_wait(connect: Any, edges: EdgeIndex, edge: MemoryEdge) -> None:
    """Dependencies are stored and not waited for."""
    connect(edges, edge)
    edge.satisfied = True


@mutant((MemoryDriver, "parents"), by="test_K3_parents_come_in_the_order_given_with_their_results")
async def parents_sorted_by_id(parents: Any, driver: MemoryDriver, ids: Sequence[str], most: int) -> list[list[Parent]]:
    """A chord's results come in another order than asked for."""
    return [sorted(each, key=lambda parent: parent.id) for each in await parents(driver, ids, most)]


@mutant((EdgeIndex, "connect"), by="test_K2_two_edges_to_one_parent_are_satisfied_at_once")
def second_edge_to_a_parent_dropped(connect: Any, edges: EdgeIndex, edge: MemoryEdge) -> None:
    """A child that names a parent twice is given its result once."""
    if all(each.parent != edge.parent for each in edges.parents.get(edge.child, ())):
        connect(edges, edge)


@mutant((MemoryDriver, "parents"), by="test_K3_parents_of_many_jobs_come_in_the_order_requested")
async def childless_answers_left_out(
    parents: Any, driver: MemoryDriver, ids: Sequence[str], most: int
) -> list[list[Parent]]:
    """A job without edges shifts the answers of all that were asked for after it."""
    return [each for each in await parents(driver, ids, most) if each]


@mutant((EdgeIndex, "parents_of"), by="test_K3_results_are_given_up_to_so_many_bytes_in_all[7]")
def results_without_a_limit(parents_of: Any, edges: EdgeIndex, id: str, most: int) -> Any:
    """A group of large results fills the memory of the reader."""
    return parents_of(edges, id, 2**40)


@mutant((EdgeIndex, "parents_of"), by="test_K3_results_are_given_up_to_so_many_bytes_in_all[8]")
def results_below_the_limit_only(parents_of: Any, edges: EdgeIndex, id: str, most: int) -> Any:
    """Results that just fit are left out."""
    return parents_of(edges, id, most - 1)


@mutant((MemoryDriver, "parents"), by="test_K3_the_limit_is_each_jobs_own")
async def limit_of_results_shared(
    parents: Any, driver: MemoryDriver, ids: Sequence[str], most: int
) -> list[list[Parent]]:
    """One job with large parents keeps others from their results."""
    found: list[list[Parent]] = await parents(driver, ids, most)
    too_much = sum(parent.size for each in found for parent in each) > most
    return [[replace(parent, result=None) for parent in each] for each in found] if too_much else found


@mutant((Store, "settle"), by="test_D9_a_flow_is_stored_with_a_settle")
def flow_of_a_settle_does_not_wait(settle: Any, store: Store, to: Transition, now: datetime) -> Any:
    """Jobs that come with a settle are all ready at once."""
    return settle(store, replace(to, new_jobs=tuple(replace(job, depends_on=()) for job in to.new_jobs)), now)


@mutant((Store, "settle"), by="test_D9_a_flow_is_stored_with_a_settle")
def flow_of_a_settle_has_no_name(settle: Any, store: Store, to: Transition, now: datetime) -> Any:
    """Jobs that come with a settle belong to no workflow."""
    return settle(store, replace(to, new_jobs=tuple(replace(job, workflow_id=None) for job in to.new_jobs)), now)


@mutant((Store, "prune"), by="test_K3_needed_parents_can_be_neither_deleted_nor_pruned[ready]")
def prune_takes_needed_parents(prune: Any, store: Store, *rest: Any) -> Any:
    """The results that a child has yet to read are forgotten."""
    with mock.patch.object(store.edges, "is_needed", return_value=False):
        return prune(store, *rest)


@mutant((EdgeIndex, "is_needed"), by="test_K3_a_dead_child_keeps_the_results_for_its_replay[fail]")
def dead_children_need_no_results(is_needed: Any, edges: EdgeIndex, id: str) -> bool:
    """A finalizer that is replayed later than the retention of its members finds nothing."""
    return any(
        not edge.satisfied or edges.jobs[edge.child].state not in TERMINAL for edge in edges.children.get(id, ())
    )


@mutant((Store, "delete"), by="test_K3_needed_parents_can_be_neither_deleted_nor_pruned[ready]")
def delete_takes_needed_parents(delete: Any, store: Store, id: str) -> Any:
    """A parent can be deleted while a child needs it."""
    with mock.patch.object(store.edges, "is_needed", return_value=False):
        return delete(store, id)


@mutant((EdgeIndex, "is_needed"), by="test_K3_needed_parents_can_be_neither_deleted_nor_pruned[inflight]")
def running_children_need_no_parents(is_needed: Any, edges: EdgeIndex, id: str) -> bool:
    """A parent is kept only until its child has begun."""
    return any(edges.jobs[edge.child].state is State.WAITING for edge in edges.children.get(id, ()))


@mutant((Store, "_is_kept"), by="test_X8_members_of_an_unfinished_workflow_are_kept")
def prune_breaks_workflows_up(is_kept: Any, store: Store, workflow: str, now: datetime) -> bool:
    """Members of a flow are forgotten while others still run."""
    is_over = all(store.jobs[id].keep_until is not None for id in store.keys.members[workflow])
    return is_over and bool(is_kept(store, workflow, now))


@mutant((Store, "_is_kept"), by="test_X8_members_of_a_workflow_are_kept_as_long_as_its_last")
def members_are_kept_by_their_own_end(is_kept: Any, store: Store, workflow: str, now: datetime) -> bool:
    """The first results of a long workflow are gone before the whole result can be read."""
    is_over = all(store.jobs[id].keep_until is not None for id in store.keys.members[workflow])
    return not is_over and bool(is_kept(store, workflow, now))


@mutant((Store, "_last_members"), by="test_X8_a_cancelled_chain_is_pruned_at_once")
def workflows_go_first_ones_first(last_members: Any, store: Store, workflow: str, limit: int) -> Any:
    """A job replayed while its workflow is pruned waits for a parent that is gone."""
    ids = sorted(store.keys.members[workflow], key=store._seq.__getitem__)
    return {id: store.jobs[id] for id in ids[:limit]}


@mutant((Store, "prune"), by="test_I3_the_records_of_a_workflow_stay_while_its_key_lives")
def workflow_goes_before_its_key(prune: Any, store: Store, now: datetime, limit: int) -> Any:
    """A key refers to a workflow that has been pruned."""
    keys = store.keys.copy()
    store.keys.clear()
    try:
        return prune(store, now, limit)
    finally:
        store.keys.update({key: known for key, known in keys.items() if known.alive(now, True)})


@mutant((Store, "_reopen"), by="test_Q3_a_collector_waits_for_parents_that_are_replayed_with_it[abz]")
def replayed_collector_runs_at_once(reopen: Any, store: Store, id: str, again: Any) -> None:
    """After a replay the finalizer runs beside its members and receives their failures."""


@mutant((Store, "_reopen"), by="test_Q3_a_collector_waits_for_a_parent_that_runs_again[fail]")
def replayed_collector_waits_for_the_dead(reopen: Any, store: Store, id: str, again: Any) -> None:
    """After a replay the finalizer waits for members that stay dead."""
    reopen(store, id, {edge.parent for edge in store.edges.parents.get(id, ())})


@mutant((Store, "cancel"), by="test_K5_a_cancel_of_several_is_one_step[cancel]")
def cancel_goes_one_by_one(cancel: Any, store: Store, ids: Sequence[str], *rest: Any) -> Any:
    """Of a flow that is cancelled, some are reported as ended before."""
    return [answer for id in ids for answer in cancel(store, [id], *rest)]


@mutant((Store, "_replay"), by="test_Q3_replaying_a_cancelled_child_waits_for_its_parent")
def replayed_child_does_not_wait(replay: Any, store: Store, asked: Replay, now: datetime) -> Any:
    """A replayed child runs before its parents are done."""
    answer = replay(store, asked, now)
    if answer == "replayed" and store.jobs[asked.id].state is State.WAITING:
        store._write(replace(store.jobs[asked.id], state=State.READY))
    return answer
