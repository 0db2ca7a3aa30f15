"""Broken steps: rules left out or bent. Played on the key-value store of tests/drivers/kv."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from taskharbor.core import evolve
from taskharbor.core.dependency import Effect, Policy
from taskharbor.core.evolve import DeadLetter, Replay
from taskharbor.core.group import Group
from taskharbor.core.job import JobRecord, NewJob
from taskharbor.core.keys import KeyRecord
from taskharbor.core.lease import Report
from taskharbor.core.schedule import Swap
from taskharbor.core.states import CANCELLED, DLQ, DONE, INFLIGHT, READY, TERMINAL, WAITING, State
from taskharbor.core.steps import dependants, enqueue, forget, lease, replay, settle, stop, swap
from taskharbor.core.steps.draft import Draft
from taskharbor.core.steps.needs import StoredEdge, VerbStep
from taskharbor.core.transition import Transition

from .mutant import MutantRegistry

STEPS = MutantRegistry("step")
mutant = STEPS.mutant

INTERLEAVINGS = "interleaved_steps_are_serial"
Right = Callable[..., Any]


def nothing() -> Generator[Any]:
    """A step that does nothing."""
    yield from ()


# A parent's end


@mutant((Draft, "below"), by=("test_K2_a_collected_parent_that_dies_again_counts_nothing", INTERLEAVINGS))
def step_satisfies_an_edge_twice(below: Right, draft: Draft, id: str) -> list[StoredEdge]:
    """A parent that ends twice counts twice, and releases a child that waits for another."""
    return [replace(edge, satisfied=False) for edge in below(draft, id)]


@mutant((dependants, "_affected"), by="test_K4_cancel_cancels_the_rest[fail]")
def step_cascades_one_level_only(affected: Right, draft: Draft, id: str, now: datetime) -> list[str]:
    """A cancelled dependant does not cancel its own dependants."""
    before = draft.jobs.before.get(id)
    lost: list[str] = affected(draft, id, now)
    return [] if before is not None and before.state is WAITING else lost


@mutant((stop, "apply_ends"), by="test_K4_Q4_dependants_of_a_held_job_are_affected_at_its_end[left behind-cancel]")
def dependants_ignore_a_cancel(
    apply_ends: Right, draft: Draft, ended: Sequence[JobRecord], now: datetime
) -> VerbStep[None]:
    """Dependants of a cancelled job wait for ever."""
    yield from apply_ends(draft, [job for job in ended if job.state is not CANCELLED], now)


@mutant((stop, "apply_ends"), by="test_Q4_dependants_are_affected_as_by_any_failure")
def dependants_ignore_a_dead_letter(apply_ends: Right, draft: Draft, ended: Any, now: datetime) -> VerbStep[None]:
    """Dependants of a job that was dead-lettered by hand wait for ever."""
    yield from apply_ends(draft, [job for job in ended if job.state is not DLQ], now)


@mutant((settle, "apply_ends"), by="test_D9_a_flow_is_stored_with_a_settle")
def dependants_ignore_an_outcome(apply_ends: Right, draft: Draft, ended: Any, now: datetime) -> VerbStep[None]:
    """Dependants of a settled job wait for ever."""
    return nothing()


@mutant((dependants, "_affected"), by="test_K1_a_waiting_job_counts_its_unmet_dependencies")
def released_by_the_first_parent(affected: Right, draft: Draft, id: str, now: datetime) -> list[str]:
    """A dependant of several is released when one of them is done."""
    lost: list[str] = affected(draft, id, now)
    for edge in draft.below(id):
        child = draft.existing(edge.child)
        if child.state is WAITING and edge.satisfied:
            draft.put(evolve.released(child, now))
    return lost


@mutant((dependants, "effect"), by=INTERLEAVINGS)
def collected_failure_holds(effect: Right, policy: str, state: State) -> Effect:
    """A child that collects failures waits for a dead parent."""
    return Effect.HOLD if policy == Policy.COLLECT and state is not DONE else effect(policy, state)


@mutant((dependants, "effect"), by=INTERLEAVINGS)
def held_dependant_cancelled(effect: Right, policy: str, state: State) -> Effect:
    """A child that was to wait for a replay is cancelled."""
    return Effect.CANCEL if policy == Policy.HOLD and state in (DLQ, CANCELLED) else effect(policy, state)


@mutant((dependants, "put_end"), by=INTERLEAVINGS)
def cascade_keeps_its_keys(put_end: Right, draft: Draft, before: JobRecord, after: JobRecord) -> None:
    """A dependant that was cancelled with its parent holds its key."""
    draft.put(after)


@mutant((stop, "put_end"), (settle, "put_end"), by="test_I2_entering_cancelled_frees_the_key[ready]")
def cancelled_job_keeps_its_key(put_end: Right, draft: Draft, before: JobRecord, after: JobRecord) -> None:
    """A cancelled flow cannot be enqueued again."""
    draft.put(after)


@mutant((stop, "put_end"), by="test_T3_a_kept_job_keeps_its_key_and_its_record_when_cancelled[ready]")
def kept_job_gives_its_key_up(put_end: Right, draft: Draft, before: JobRecord, after: JobRecord) -> None:
    """A cancelled task of an agent can be submitted a second time."""
    draft.free_key(before.idempotency_key, before.id)
    draft.put(after)


# Enqueue


@mutant((enqueue, "_store"), by="test_I1_a_known_key_returns_the_existing_id_and_stores_nothing")
def key_not_looked_at(store: Right, draft: Draft, job: NewJob, together: set[str], now: datetime) -> Any:
    """A key that is known is taken over."""
    if job.idempotency_key is not None:
        draft.keys.put(job.idempotency_key, None)
    return store(draft, job, together, now)


@mutant((Draft, "living_key"), by=("test_I2_a_key_lives_until_its_job_has_ended[ready]", INTERLEAVINGS))
def key_free_before_its_owner_has_ended(living_key: Right, draft: Draft, key: str | None, now: datetime) -> Any:
    """A key is free when its time is over, whatever its job is doing."""
    known: KeyRecord | None = living_key(draft, key, now)
    return known if known is not None and known.alive(now, owner_ended=True) else None


@mutant((Draft, "living_key"), by="test_D1_a_group_key_ends_with_its_time")
def key_never_free(living_key: Right, draft: Draft, key: str | None, now: datetime) -> KeyRecord | None:
    """A key holds its place after its time."""
    return None if key is None else draft.keys.known[key]


@mutant((Draft, "_count"), by="test_Q2_of_two_that_had_one_key_the_first_replayed_has_it")
def own_ends_not_counted(count: Right, draft: Draft, job: JobRecord | None, number: int) -> None:
    """A step does not see that it has ended the owner of a key, or stored one."""


@mutant((enqueue, "refusal"), by="test_D1_a_child_comes_after_its_parents[itself-None]")
def group_not_checked(refusal: Right, jobs: Sequence[NewJob], is_taken: Any) -> None:
    """A group with a taken id replaces the job that has it."""


@mutant((enqueue, "refusal"), by="test_D1_half_a_group_is_never_stored")
def group_checked_without_its_keys(refusal: Right, jobs: Sequence[NewJob], is_taken: Any) -> Any:
    """A group whose ids are taken is checked for its dependencies only."""
    return refusal(jobs, lambda job: False)


@mutant((settle, "store_new"), by="test_D9_a_new_job_whose_id_is_known_is_skipped")
def new_jobs_replace_what_is_known(store_new: Right, draft: Draft, jobs: Sequence[NewJob], now: datetime) -> None:
    """A new job whose id is taken replaces the other one."""
    enqueue.store(draft, jobs, now)


@mutant((settle, "store_new"), by=("test_D9_a_flow_is_stored_with_a_settle", INTERLEAVINGS))
def new_jobs_forgotten(store_new: Right, draft: Draft, jobs: Sequence[NewJob], now: datetime) -> None:
    """Jobs that a handler enqueued with its success are lost."""


@mutant((enqueue, "_edge"), by=INTERLEAVINGS)
def new_edge_to_an_ended_parent_is_open(edge: Right, *args: Any) -> StoredEdge:
    """A new job waits for a parent that has already ended."""
    new: StoredEdge = edge(*args)
    return replace(new, satisfied=False)


@mutant((enqueue, "enqueue"), by=INTERLEAVINGS)
def flow_without_its_key(right: Right, draft: Draft, group: Group, now: datetime) -> VerbStep[Any]:
    """A flow that is enqueued twice under one key is stored twice."""
    answer = yield from right(draft, replace(group, key=None), now)
    return answer


# Leases and outcomes


@mutant((lease, "held_until"), by=INTERLEAVINGS)
def claim_takes_what_is_held(held_until: Right, job: JobRecord, now: datetime) -> datetime:
    """A job is claimed while another worker holds it."""
    return now


@mutant((lease, "is_unwanted"), by="test_D3_never_an_expired_job")
def claim_takes_what_shall_stop(is_unwanted: Right, job: JobRecord, now: datetime) -> bool:
    """A job that expired or was cancelled is run."""
    return False


@mutant((lease, "refusal"), by="test_D8_why_an_extension_is_refused[held, foreign token]")
def heartbeat_of_another_worker(refusal: Right, job: JobRecord | None, id: str, token: str, now: datetime) -> Any:
    """A lease is renewed under a token that is not its own."""
    own = token if job is None or job.lease is None else job.lease.token
    return refusal(job, id, own, now)


@mutant((lease, "_extend"), by="test_D6_the_answer_shows_a_cancel_request")
def stop_request_not_reported(extend: Right, draft: Draft, report: Report, *times: datetime) -> Any:
    """A worker never receives the cancel request."""
    answer = extend(draft, report, *times)
    return answer if isinstance(answer, Exception) else replace(answer, cancel_requested=False)


@mutant((settle, "settle_verdict"), by=("test_D5_identity_is_the_token_not_the_worker", INTERLEAVINGS))
def unfenced_step(verdict: Right, job: JobRecord | None, to: Transition, now: datetime) -> Any:
    """Any token can settle an inflight job."""
    return "ok" if job is not None and job.state is INFLIGHT else verdict(job, to, now)


# Stops


@mutant((stop, "_cancel"), by=("test_D6_the_answer_shows_a_cancel_request", INTERLEAVINGS))
def stop_request_lost(cancel: Right, draft: Draft, id: str, now: datetime, keep_until: datetime) -> Any:
    """The cancel of a running job is acknowledged and forgotten."""
    job = draft.job(id)
    return "requested" if job is not None and job.state is INFLIGHT else cancel(draft, id, now, keep_until)


@mutant((stop, "_dead_letter"), by="test_T3_Q4_under_a_lease_only_the_request_is_recorded[dead_letter]")
def dead_letter_over_a_cancel(dead_letter: Right, draft: Draft, death: DeadLetter, now: datetime) -> Any:
    """A job that was cancelled while it runs ends dead."""
    job = draft.job(death.id)
    if job is not None and job.state is INFLIGHT:
        draft.put(replace(job, stop_requested_at=None))
    return dead_letter(draft, death, now)


@mutant((stop, "held_until"), by="test_N1_a_running_job_may_finish_after_its_expiry")
def sweep_ends_what_is_held(held_until: Right, job: JobRecord, now: datetime) -> datetime:
    """A job that was asked to stop is ended under its worker."""
    return now


@mutant((stop, "is_unwanted"), by="test_K4_Q4_dependants_of_a_held_job_are_affected_at_its_end[left behind-cancel]")
def sweep_forgets_stop_requests(is_unwanted: Right, job: JobRecord, now: datetime) -> bool:
    """A job whose worker died after a cancel stays inflight."""
    return job.stop_requested_at is None and is_unwanted(job, now)


@mutant((stop, "cancel"), by="test_K5_a_cancel_of_several_is_one_step[cancel]")
def cancelled_one_after_the_other(
    cancel: Right, draft: Draft, ids: Any, now: datetime, until: datetime
) -> VerbStep[Any]:
    """A job that collects failures is released by the cancellation that was to end it."""
    answers: list[Any] = []
    for id in ids:
        answers += yield from cancel(draft, [id], now, until)
    return answers


# Replay


@mutant((replay, "_reopen"), by="test_Q3_a_collector_waits_for_parents_that_are_replayed_with_it[abz]")
def replay_forgets_edges(reopen: Right, draft: Draft, id: str, again: Any) -> None:
    """A replayed job runs before its replayed parents, on their old failures."""


@mutant((replay, "_reopen"), by="test_Q3_a_collector_waits_for_a_parent_that_runs_again[fail]")
def replay_waits_for_its_batch_only(reopen: Right, draft: Draft, id: str, again: Any) -> None:
    """A job replayed after its parent does not wait for it."""
    running = [edge for edge in draft.above(id) if draft.existing(edge.parent).state not in TERMINAL]
    reopen(draft, id, again)
    for edge in running:
        if edge.satisfied:
            job = draft.existing(id)
            draft.put_edge(edge)
            draft.put(replace(job, unmet=job.unmet - 1))


@mutant((replay, "_take_key"), by=("test_Q2_a_new_key_that_is_taken_is_dropped", INTERLEAVINGS))
def replay_takes_a_living_key(take_key: Right, draft: Draft, wanted: Replay, job: JobRecord, now: datetime) -> bool:
    """A replayed job takes the key that another job holds."""
    if wanted.idempotency_key is not None and not draft.owns_key(wanted.idempotency_key, job.id):
        draft.keys.put(wanted.idempotency_key, None)
    taken: bool = take_key(draft, wanted, job, now)
    return taken


@mutant((replay, "_take_key"), by="test_Q2_a_living_key_stays_with_its_job")
def replay_drops_its_key(take_key: Right, draft: Draft, wanted: Replay, job: JobRecord, now: datetime) -> bool:
    """A replayed job is without its key although that is free."""
    return wanted.idempotency_key is None


@mutant((replay, "_is_dead"), by="test_Q2_several_replays_are_answered_one_by_one")
def replay_of_a_waiting_job(is_dead: Right, job: JobRecord | None) -> bool:
    """A replay is tried on a job that has not ended."""
    return job is not None and (job.state is READY or is_dead(job))


# Delete and prune


@mutant((forget, "is_needed"), by=INTERLEAVINGS)
def needed_parent_deleted(is_needed: Right, draft: Draft, id: str) -> bool:
    """The result that a dependant waits for is gone."""
    return False


@mutant((forget, "is_needed"), by="test_K3_a_dead_child_keeps_the_results_for_its_replay[fail]")
def parent_of_a_dead_job_deleted(is_needed: Right, draft: Draft, id: str) -> bool:
    """A dead job cannot be replayed: the results of its parents are gone."""
    return any(not edge.satisfied for edge in draft.below(id))


@mutant((forget, "_free_keys"), by="test_I2_a_key_without_end_lives_as_long_as_the_record")
def key_outlives_its_record(free_keys: Right, draft: Draft, gone: Sequence[JobRecord]) -> VerbStep[None]:
    """A deleted job holds its key for ever."""
    return nothing()


@mutant((forget, "_free_keys"), by="test_I2_an_old_owner_cannot_free_the_key_of_a_new_one")
def key_of_another_freed(free_keys: Right, draft: Draft, gone: Sequence[JobRecord]) -> VerbStep[None]:
    """A deleted job takes the key along that another job has by now."""
    yield from free_keys(draft, gone)
    for job in gone:
        if job.idempotency_key is not None:
            draft.keys.put(job.idempotency_key, None)


@mutant((forget, "_free_keys"), by=INTERLEAVINGS)
def workflow_key_freed_with_its_first_record(
    free_keys: Right, draft: Draft, gone: Sequence[JobRecord]
) -> VerbStep[None]:
    """A flow of which one record was deleted can be enqueued again."""
    yield from free_keys(draft, gone)
    for key in draft.owned([job.workflow_id for job in gone if job.workflow_id is not None]):
        draft.free_key(key.key, key.owner)


@mutant((forget, "_stays"), by=INTERLEAVINGS)
def unfinished_workflow_pruned(stays: Right, draft: Draft, workflow: str, now: datetime) -> bool:
    """The first jobs of a workflow are forgotten while the last ones run."""
    return False


@mutant((forget, "_members"), by="test_K5_a_pruned_workflow_is_gone")
def prune_splits_a_workflow(members: Right, draft: Draft, workflow: str, now: datetime, most: int) -> VerbStep[Any]:
    """Of a workflow that may go, one record goes at a time."""
    going: dict[str, JobRecord] = yield from members(draft, workflow, now, most)
    return dict(list(going.items())[:1])


@mutant((Draft, "owned"), by="test_I3_the_records_of_a_workflow_stay_while_its_key_lives")
def workflow_pruned_before_its_key(owned: Right, draft: Draft, workflows: Iterable[str]) -> list[KeyRecord]:
    """A workflow is forgotten while its key still holds its place."""
    return []


@mutant((forget, "_stays"), by=INTERLEAVINGS)
def workflow_not_kept_longer(stays: Right, draft: Draft, workflow: str, now: datetime) -> bool:
    """Records that outstay their time for their workflow are looked at by every prune."""
    answer: bool = stays(draft, workflow, now)
    draft.keep.clear()
    return answer


# Schedules


@mutant((swap, "_swap"), by=INTERLEAVINGS)
def schedule_swapped_unseen(right: Right, draft: Draft, each: Swap, now: datetime) -> VerbStep[Any]:
    """A schedule is moved on by a scheduler that saw an older one: its job is enqueued twice."""
    answer = yield from right(draft, replace(each, seen=draft.schedules.known[each.name]), now)
    return answer


@mutant((swap, "enqueue"), by=INTERLEAVINGS)
def schedule_moves_without_its_job(right: Right, draft: Draft, group: Group, now: datetime) -> VerbStep[Any]:
    """A tick is counted and its job is not stored."""
    yield from draft.look(job.id for job in group.jobs)
    return ()
