"""Broken drivers: what people and upkeep do to jobs, schedules, and the end of a driver."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

from msgspec.structs import replace

from taskharbor.core import evolve, tally
from taskharbor.core import filter as filters
from taskharbor.core.evolve import DeadLetter, Replay
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.states import State
from taskharbor.core.transition import Transition
from taskharbor.driver import Group, Swap
from taskharbor.drivers.memory import driver as memory_driver
from taskharbor.drivers.memory import overview
from taskharbor.drivers.memory import store as stores
from taskharbor.drivers.memory.driver import MemoryDriver
from taskharbor.drivers.memory.keys import KeyTable
from taskharbor.drivers.memory.store import Store
from taskharbor.errors import JobExists, LeaseError

from .mutant import MutantRegistry

MANAGEMENT = MutantRegistry("driver")
mutant = MANAGEMENT.mutant


@mutant((Store, "delete"), by="test_X8_delete_answers_one_by_one")
def delete_takes_live_jobs(delete: Any, store: Store, id: str) -> Any:
    """A job that has yet to run can be deleted."""
    job = store.jobs.get(id)
    if job is None or job.state is not State.READY:
        return delete(store, id)
    store._line.drop(id)
    store._remove(job)
    return "deleted"


@mutant((Store, "_replay"), by="test_Q2_counters_go_back_to_zero_and_the_version_goes_on[fail]")
def replay_keeps_attempts(replay: Any, store: Store, asked: Replay, now: datetime) -> Any:
    """A replayed job dies at its first failure."""
    before = store.jobs.get(asked.id)
    answer = replay(store, asked, now)
    if answer == "replayed" and before is not None:
        store._write(replace(store.jobs[asked.id], attempts=before.attempts))
    return answer


@mutant((Store, "_replay"), by="test_Q2_counters_go_back_to_zero_and_the_version_goes_on[fail]")
def version_reset_on_replay(replay: Any, store: Store, asked: Replay, now: datetime) -> Any:
    """The fencing numbers of a replayed job start over."""
    answer = replay(store, asked, now)
    if answer == "replayed":
        store._write(replace(store.jobs[asked.id], version=0))
    return answer


@mutant((Store, "_replay"), by="test_Q2_fields_of_the_end_are_cleared[cancel]")
def replay_keeps_the_cancel_request(replay: Any, store: Store, asked: Replay, now: datetime) -> Any:
    """A replayed job is cancelled again by the request that ended it."""
    before = store.jobs.get(asked.id)
    answer = replay(store, asked, now)
    if answer == "replayed" and before is not None:
        store._write(replace(store.jobs[asked.id], stop_requested_at=before.stop_requested_at))
    return answer


@mutant((Store, "_replay"), by="test_Q2_several_replays_are_answered_one_by_one")
def replay_of_finished_jobs(replay: Any, store: Store, asked: Replay, now: datetime) -> Any:
    """A job that is done can be run again by hand."""
    job = store.jobs.get(asked.id)
    if job is not None and job.state is State.DONE:
        store._write(replace(job, state=State.DLQ))
    return replay(store, asked, now)


@mutant((Store, "_take_key"), by="test_Q2_a_new_key_that_is_taken_is_dropped")
def replay_steals_a_key(take_key: Any, store: Store, asked: Replay, job: JobRecord, now: datetime) -> Any:
    """A replay takes the key of another job."""
    if asked.idempotency_key is not None:
        store.keys.pop(asked.idempotency_key, None)
    return take_key(store, asked, job, now)


@mutant((Store, "_take_key"), by="test_Q2_a_key_past_its_ttl_lives_again")
def replay_gives_an_old_key_up(take_key: Any, store: Store, asked: Replay, job: JobRecord, now: datetime) -> Any:
    """A job that runs again after its ttl can be enqueued beside itself."""
    past = asked.key_expires_at is not None and asked.key_expires_at <= now
    return not past and take_key(store, asked, job, now)


@mutant((Store, "_replay"), by="test_Q2_a_key_meanwhile_taken_is_dropped_and_the_answer_says_so")
def replay_drops_a_key_in_silence(replay: Any, store: Store, asked: Replay, now: datetime) -> Any:
    """The answer does not say that a replayed job has lost its key."""
    answer = replay(store, asked, now)
    return "replayed" if answer == "replayed_without_key" else answer


@mutant((Store, "_dead_letter"), by="test_T3_Q4_under_a_lease_only_the_request_is_recorded[dead_letter]")
def dead_letter_ends_running_jobs(dead_letter: Any, store: Store, death: DeadLetter, now: datetime) -> Any:
    """A running job is dead-lettered under its handler's feet."""
    job = store.jobs.get(death.id)
    if job is None or job.state is not State.INFLIGHT:
        return dead_letter(store, death, now)
    store._write(evolve.dead_lettered(replace(job, state=State.READY, lease=None), death, now))
    return "dead"


@mutant((Store, "dead_letter"), by="test_Q4_dependants_are_affected_as_by_any_failure")
def dead_letter_ignores_dependants(dead_letter: Any, store: Store, deaths: Sequence[DeadLetter], now: datetime) -> Any:
    """Those that wait for a job dead-lettered by hand wait for ever."""
    return [store._dead_letter(death, now) for death in deaths]


@mutant((evolve, "asked_to_die"), by="test_T3_if_both_were_asked_for_cancelled_wins[put_back-cancel]")
def dead_letter_goes_before_a_cancel(asked: Any, job: JobRecord, death: DeadLetter, now: datetime) -> Any:
    """A job that was asked to be cancelled ends dead."""
    return asked(replace(job, stop_requested_at=None), death, now)


@mutant((evolve, "asked_to_cancel"), by="test_T3_if_both_were_asked_for_cancelled_wins[put_back-dead_letter]")
def cancel_comes_too_late(asked: Any, job: JobRecord, now: datetime) -> Any:
    """A cancel after a dead letter that was asked for changes nothing."""
    return job if job.stop_requested_at is not None else asked(job, now)


@mutant((evolve, "_stopped"), by="test_T3_Q4_a_put_back_after_the_request_ends_the_job[dead_letter-put_back]")
def stop_always_cancels(stopped: Any, job: JobRecord, *rest: Any) -> Any:
    """A dead letter that was asked for ends cancelled."""
    return stopped(replace(job, stop_reason=None), *rest)


@mutant((evolve, "_dead"), by="test_T3_Q4_left_behind_after_the_request_the_job_ends[dead_letter]")
def dead_by_hand_without_its_time(dead: Any, job: JobRecord, reason: str, cause: Any, now: datetime, until: Any) -> Any:
    """A dead letter by hand is kept for as long as a cancelled job."""
    return dead(job, reason, cause, now, now)


@mutant((evolve, "_cancelled"), by="test_T3_a_kept_job_keeps_its_key_and_its_record_when_cancelled[ready]")
def kept_job_loses_its_key(cancelled: Any, job: JobRecord, now: datetime, keep_until: datetime) -> Any:
    """A cancelled task is not found by its key."""
    return replace(cancelled(job, now, keep_until), idempotency_key=None, key_expires_at=None)


@mutant((evolve, "_cancelled"), by="test_T3_a_kept_job_keeps_its_key_and_its_record_when_cancelled[put_back]")
def kept_job_is_pruned(cancelled: Any, job: JobRecord, now: datetime, keep_until: datetime) -> Any:
    """A cancelled task is forgotten with the others."""
    return replace(cancelled(job, now, keep_until), keep_until=keep_until)


@mutant((memory_driver, "due_since"), by="test_T2_lapsed_jobs_are_counted_as_due[True]")
def lapsed_jobs_are_not_due(due_since: Any, job: JobRecord, now: datetime) -> Any:
    """Lapsed jobs are not counted as due."""
    return None if job.lease is not None else due_since(job, now)


@mutant((Store, "_cancel"), by="test_T3_Q4_under_a_lease_only_the_request_is_recorded[cancel]")
def cancel_ends_running_jobs(cancel: Any, store: Store, id: str, now: datetime, keep_until: datetime) -> Any:
    """A running job is cancelled under its handler's feet."""
    job = store.jobs.get(id)
    if job is None or job.state is not State.INFLIGHT:
        return cancel(store, id, now, keep_until)
    store._write(evolve.withdrawn(replace(job, state=State.READY, lease=None), now, keep_until))
    return "cancelled"


@mutant((Store, "_cancel"), by="test_T3_Q4_several_are_answered_one_by_one[cancel]")
def cancel_not_stored(cancel: Any, store: Store, id: str, now: datetime, keep_until: datetime) -> Any:
    """A job is reported as cancelled, and runs."""
    before = store.jobs.get(id)
    answer = cancel(store, id, now, keep_until)
    if answer == "cancelled" and before is not None:
        store._write(before)
    return answer


@mutant((Store, "sweep"), by="test_N1_a_scheduled_or_waiting_job_expires_too")
def sweep_forgets_waiting_jobs(sweep: Any, store: Store, *rest: Any) -> Any:
    """A job that waits for others never expires."""
    waiting = [job for job in store.jobs.values() if job.state is State.WAITING]
    for job in waiting:
        store.jobs[job.id] = replace(job, expires_at=None)
    try:
        return sweep(store, *rest)
    finally:
        store.jobs.update({job.id: job for job in waiting})


@mutant((Store, "sweep"), by="test_N1_a_running_job_may_finish_after_its_expiry")
def sweep_ends_running_jobs(sweep: Any, store: Store, *rest: Any) -> Any:
    """A job is cancelled while its handler runs."""
    with mock.patch.object(stores, "is_held", return_value=False):
        return sweep(store, *rest)


@mutant((Store, "sweep"), by="test_N1_an_expired_job_ends_cancelled")
def sweep_of_nothing(sweep: Any, store: Store, *rest: Any) -> int:
    """Expired jobs stay for ever."""
    return 0


@mutant((Store, "sweep"), by="test_N1_a_sweep_is_limited[3]")
def sweep_ignores_the_limit(sweep: Any, store: Store, now: datetime, keep_until: datetime, limit: int) -> Any:
    """Upkeep takes a bite of any size."""
    return sweep(store, now, keep_until, limit and 10_000)


@mutant((Store, "prune"), by="test_X8_a_record_is_kept_until_its_time_and_then_forgotten[ack]")
def prune_early(prune: Any, store: Store, now: datetime, limit: int) -> Any:
    """Records are forgotten a second too soon."""
    return prune(store, now + timedelta(seconds=1), limit)


@mutant((Store, "prune"), by="test_X8_a_record_is_kept_until_its_time_and_then_forgotten[ack]")
def prune_of_nothing(prune: Any, store: Store, now: datetime, limit: int) -> int:
    """The store grows for ever."""
    return 0


@mutant((Store, "prune"), by="test_X8_a_prune_is_limited")
def prune_ignores_the_limit(prune: Any, store: Store, now: datetime, limit: int) -> Any:
    """Pruning takes a bite of any size."""
    return prune(store, now, limit and 10_000)


def taken_for_seen(driver: MemoryDriver, swap: Swap, *fields: str) -> Swap:
    """The swap of one who does not look at these fields."""
    known = driver._schedules.get(swap.name)
    if known is None or swap.seen is None:
        return swap
    return replace(swap, seen=replace(swap.seen, **{name: getattr(known, name) for name in fields}))


@mutant((MemoryDriver, "_swap"), by="test_N3_only_one_of_many_swaps[tick]")
def swap_without_compare(swap: Any, driver: MemoryDriver, store: Store, asked: Swap, now: datetime) -> Any:
    """Two schedulers both enqueue the same tick."""
    return swap(driver, store, replace(asked, seen=driver._schedules.get(asked.name)), now)


@mutant((MemoryDriver, "_swap"), by="test_N3_only_one_of_many_swaps[redefine]")
def swap_compares_the_slot_only(swap: Any, driver: MemoryDriver, store: Store, asked: Swap, now: datetime) -> Any:
    """Only the slot of a schedule is compared."""
    asked = taken_for_seen(driver, asked, "definition", "paused", "last_job_id", "last_slot")
    return swap(driver, store, asked, now)


@mutant((MemoryDriver, "_swap"), by="test_N3_every_field_is_compared[later slot]")
def swap_forgets_the_slot(swap: Any, driver: MemoryDriver, store: Store, asked: Swap, now: datetime) -> Any:
    """A schedule is moved by one who saw another slot."""
    return swap(driver, store, taken_for_seen(driver, asked, "slot"), now)


@mutant((MemoryDriver, "_swap"), by="test_N3_every_field_is_compared[paused]")
def swap_forgets_the_pause(swap: Any, driver: MemoryDriver, store: Store, asked: Swap, now: datetime) -> Any:
    """A schedule ticks on that an operator has just paused."""
    return swap(driver, store, taken_for_seen(driver, asked, "paused"), now)


@mutant((MemoryDriver, "_swap"), by="test_N3_every_field_is_compared[definition]")
def swap_forgets_the_definition(swap: Any, driver: MemoryDriver, store: Store, asked: Swap, now: datetime) -> Any:
    """A scheduler of the old deploy ticks by a definition that is gone."""
    return swap(driver, store, taken_for_seen(driver, asked, "definition"), now)


@mutant((MemoryDriver, "_swap"), by="test_N3_every_field_is_compared[no last job]")
def swap_forgets_the_last_job(swap: Any, driver: MemoryDriver, store: Store, asked: Swap, now: datetime) -> Any:
    """A run that was made beside the slots is overwritten by one who did not see it."""
    return swap(driver, store, taken_for_seen(driver, asked, "last_job_id"), now)


@mutant((MemoryDriver, "_swap"), by="test_N3_every_field_is_compared[last slot]")
def swap_forgets_the_last_slot(swap: Any, driver: MemoryDriver, store: Store, asked: Swap, now: datetime) -> Any:
    """A slot is run again by one who did not see that it was."""
    return swap(driver, store, taken_for_seen(driver, asked, "last_slot"), now)


@mutant((MemoryDriver, "_swap"), by="test_N3_a_job_that_is_refused_leaves_its_schedule_alone")
def swap_without_its_job(swap: Any, driver: MemoryDriver, store: Store, asked: Swap, now: datetime) -> Any:
    """A tick whose job is refused is skipped."""
    verdict = swap(driver, store, asked, now)
    if isinstance(verdict, JobExists):
        swap(driver, store, replace(asked, job=None), now)
    return verdict


@mutant((MemoryDriver, "_swap"), by="test_N3_every_field_is_compared[earlier slot]")
def swap_that_lost_leaves_its_job(swap: Any, driver: MemoryDriver, store: Store, asked: Swap, now: datetime) -> Any:
    """Every scheduler enqueues the tick, and one moves the schedule."""
    verdict = swap(driver, store, asked, now)
    if verdict is False and asked.job is not None:
        store.enqueue(Group(jobs=(asked.job,)), now)
    return verdict


@mutant((MemoryDriver, "_swap"), by="test_N3_only_one_of_many_swaps[create]")
def creation_overwrites(swap: Any, driver: MemoryDriver, store: Store, asked: Swap, now: datetime) -> Any:
    """Of two who create a schedule, both do."""
    if asked.seen is None:
        asked = replace(asked, seen=driver._schedules.get(asked.name))
    return swap(driver, store, asked, now)


@mutant((MemoryDriver, "_swap"), by="test_N3_every_field_is_compared[last job]")
def removal_of_what_was_not_seen(swap: Any, driver: MemoryDriver, store: Store, asked: Swap, now: datetime) -> Any:
    """A schedule that was just changed is removed."""
    if asked.then is None:
        asked = replace(asked, seen=driver._schedules.get(asked.name))
    return swap(driver, store, asked, now)


@mutant((MemoryDriver, "_swap"), by="test_N3_every_field_is_compared[none at all]")
def removed_schedule_comes_back(swap: Any, driver: MemoryDriver, store: Store, asked: Swap, now: datetime) -> Any:
    """A tick brings a schedule back that was removed."""
    if asked.name not in driver._schedules:
        asked = replace(asked, seen=None)
    return swap(driver, store, asked, now)


@mutant((MemoryDriver, "swap_schedules"), by="test_N3_a_job_that_is_refused_leaves_its_schedule_alone")
async def swaps_end_at_the_first_refused(
    swap_schedules: Any, driver: MemoryDriver, swaps: Sequence[Swap], now: datetime
) -> Any:
    """One job that exists keeps all other schedules from ticking."""
    verdicts: list[Any] = []
    for swap in swaps:
        refused = any(isinstance(it, JobExists) for it in verdicts)
        verdicts += [False] if refused else await swap_schedules(driver, [swap], now)
    return verdicts


@mutant((MemoryDriver, "swap_schedules"), by="test_N3_swaps_of_a_call_are_done_in_turn")
async def swaps_compare_with_the_beginning(
    swap_schedules: Any, driver: MemoryDriver, swaps: Sequence[Swap], now: datetime
) -> Any:
    """A swap does not find what the one before it has done."""
    before = dict(driver._schedules)
    verdicts: list[Any] = []
    for swap in swaps:
        same = swap.seen == before.get(swap.name)
        verdicts += await swap_schedules(driver, [swap], now) if same else [False]
    return verdicts


@mutant((MemoryDriver, "swap_schedules"), by="test_D13_a_waiter_is_woken_by_the_job_of_a_schedule")
async def ticks_wake_no_worker(swap_schedules: Any, driver: MemoryDriver, swaps: Sequence[Swap], now: datetime) -> Any:
    """The job of a tick waits until a worker looks by itself."""
    with mock.patch.object(driver._work, "wake"):
        return await swap_schedules(driver, swaps, now)


@mutant((MemoryDriver, "next_due"), by="test_D10_after_close_every_verb_is_DriverClosed[next_due]")
async def closed_driver_answers(next_due: Any, driver: MemoryDriver, queues: Sequence[str]) -> Any:
    """A verb works on after close."""
    return driver._store.next_due(queues)


@mutant((MemoryDriver, "counts"), by="test_D13_counts_show_every_state_of_every_queue")
async def counts_hide_the_pause(counts: Any, driver: MemoryDriver, now: datetime) -> Any:
    """The counts do not show that a queue is paused."""
    return [replace(each, paused=False) for each in await counts(driver, now)]


@mutant((MemoryDriver, "_count"), by="test_D9_outcomes_of_every_kind_in_one_batch_add_up")
def totals_do_not_add_up(count: Any, driver: MemoryDriver, settled: Sequence[Transition], now: datetime) -> None:
    """A minute counted twice shows its last count only."""
    driver._tallies.clear()
    count(driver, settled, now)


@mutant((MemoryDriver, "settle"), by="test_D7_a_refused_settle_counts_nothing[ack]")
async def refused_runs_count(
    settle: Any, driver: MemoryDriver, transitions: Sequence[Transition], now: datetime
) -> Any:
    """Outcomes that were not written are in the totals."""
    verdicts = await settle(driver, transitions, now)
    refused = [to for to, verdict in zip(transitions, verdicts, strict=True) if isinstance(verdict, LeaseError)]
    driver._count(refused, now)
    return verdicts


@mutant((MemoryDriver, "settle"), by="test_D8_a_repeated_settle_is_not_counted_again[ack]")
async def repeated_runs_count(
    settle: Any, driver: MemoryDriver, transitions: Sequence[Transition], now: datetime
) -> Any:
    """A settle whose reply was lost is in the totals twice."""
    verdicts = await settle(driver, transitions, now)
    driver._count([to for to, verdict in zip(transitions, verdicts, strict=True) if verdict == "replayed"], now)
    return verdicts


@mutant((tally, "key_of"), by="test_D9_jobs_that_did_not_start_are_counted_apart")
def unstarted_jobs_are_runs(key_of: Any, to: Transition) -> Any:
    """Jobs that were put back without a run are runs of no length."""
    key = key_of(to)
    return key and (*key[:2], key[2].removeprefix(tally.NOT_STARTED))


@mutant((filters, "_fits"), by="test_D13_query_chooses_what_the_filter_says[underscore is not a wildcard]")
def underscores_are_wildcards(fits: Any, pattern: str | None, text: str | None) -> Any:
    """Patterns go to the engine as they are."""
    if pattern is None or text is None:
        return fits(pattern, text)
    wild = {"*": ".*", "%": ".*", "_": "."}
    return re.fullmatch("".join(wild.get(letter, re.escape(letter)) for letter in pattern), text) is not None


@mutant((MemoryDriver, "query"), by="test_D13_query_can_be_read_in_pages")
async def pages_repeat_themselves(query: Any, driver: MemoryDriver, where: Any, now: datetime, *rest: Any) -> Any:
    """Every page is the first one."""
    return await query(driver, where, now, rest[0], None)


@mutant((overview, "workflows"), by="test_K5_workflows_come_with_the_greatest_id_first")
def workflows_in_the_order_of_ids(workflows: Any, jobs: Iterable[JobRecord], limit: int, *rest: Any) -> Any:
    """The latest workflow is on the last page."""
    return workflows(jobs, 10_000, *rest)[::-1][:limit]


@mutant((overview, "workflows"), by="test_K5_workflows_can_be_read_in_pages")
def workflow_pages_repeat_themselves(
    workflows: Any, jobs: Iterable[JobRecord], limit: int, after: str | None, ids: Sequence[str] | None
) -> Any:
    """Every page of workflows is the first one."""
    return workflows(jobs, limit, None, ids)


@mutant((overview, "workflows"), by="test_K5_jobs_without_a_workflow_are_not_counted")
def single_jobs_are_workflows(workflows: Any, jobs: Iterable[JobRecord], *rest: Any) -> Any:
    """Jobs that belong to no workflow are shown as one."""
    return workflows([replace(job, workflow_id=job.workflow_id or job.id) for job in jobs], *rest)


@mutant((overview, "dead_groups"), by="test_Q1_dead_groups_choose_what_the_filter_says[task]")
def dead_groups_of_everything(dead_groups: Any, jobs: Iterable[JobRecord], where: Filter, *rest: Any) -> Any:
    """Dead jobs are grouped whatever was asked for."""
    return dead_groups(jobs, Filter(), *rest)


@mutant((overview, "_group"), by="test_Q1_the_last_death_is_by_its_time_not_by_its_age")
def last_death_is_the_youngest(group: Any, fingerprint: str, jobs: list[JobRecord]) -> Any:
    """A group shows the job that was enqueued last, whenever it died."""
    last = jobs[-1]
    return replace(group(fingerprint, jobs), last_id=last.id, error=last.last_error, task=last.type)


@mutant((Filter, "matches"), by="test_Q1_dead_groups_choose_what_the_filter_says[fingerprint]")
def fingerprint_not_looked_at(matches: Any, where: Filter, job: JobRecord, now: datetime) -> Any:
    """A replay by fingerprint replays all dead jobs."""
    return matches(replace(where, fingerprint=None), job, now)


@mutant((KeyTable, "free_workflow"), by="test_I2_the_key_of_a_workflow_can_be_freed")
def workflow_key_is_never_freed(free: Any, keys: KeyTable, workflow: str) -> bool:
    """A cancelled workflow keeps its key."""
    return any(known.owner == workflow for known in keys.values())


@mutant((KeyTable, "free_workflow"), by="test_I2_the_key_of_a_workflow_can_be_freed")
def all_keys_are_freed(free: Any, keys: KeyTable, workflow: str) -> bool:
    """With the key of a workflow, those of others go."""
    freed: bool = free(keys, workflow)
    keys.clear()
    return freed
