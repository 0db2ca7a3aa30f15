"""Broken drivers: what reserve hands out, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from taskharbor.core.job import JobRecord
from taskharbor.core.line import SINCE_EVER
from taskharbor.core.states import State
from taskharbor.core.transition import PutBack, Transition
from taskharbor.driver import Reschedule
from taskharbor.drivers.memory import store as stores
from taskharbor.drivers.memory.driver import MemoryDriver
from taskharbor.drivers.memory.line import Line, is_held
from taskharbor.drivers.memory.store import Store

from .mutant import MutantRegistry

LINES = MutantRegistry("driver")
mutant = LINES.mutant

MILLISECOND = timedelta(milliseconds=1)


def in_state(store: Store, state: State) -> list[JobRecord]:
    """The jobs in one state."""
    return [job for job in store.jobs.values() if job.state is state]


@mutant((Store, "reserve"), by="test_D3_never_a_job_that_has_ended[ack]")
def reserve_returns_done_jobs(reserve: Any, store: Store, queues: Any, now: datetime, *rest: Any) -> Any:
    """A finished job is handed out again some time later."""
    lease_for, limit, worker, _ = rest
    claimed = reserve(store, queues, now, *rest)
    done = [job for job in in_state(store, State.DONE) if job.queue in queues and len(claimed) < limit]
    again = [replace(job, state=State.READY, completed_at=None, keep_until=None) for job in done[:1]]
    return claimed + [store._claim(job, now, now + lease_for, worker) for job in again]


@mutant((Store, "_is_due"), by="test_D2_ids_choose_only_among_claimable_jobs")
def reserve_by_id_returns_future_jobs(is_due: Any, store: Store, job: JobRecord, now: datetime) -> Any:
    """A claim by id ignores the due time."""
    return is_due(store, job, now) or job.state is State.READY


@mutant((stores, "is_free"), by="test_D3_never_an_expired_job")
def reserve_ignores_expires_at(is_free: Any, job: JobRecord, now: datetime) -> bool:
    """A job is handed out although its time is over."""
    return not is_held(job, now) and job.stop_requested_at is None


@mutant((stores, "is_free"), by="test_T3_Q4_left_behind_after_the_request_the_job_ends[cancel]")
def reserve_ignores_the_cancel_request(is_free: Any, job: JobRecord, now: datetime) -> bool:
    """A cancelled job whose worker died runs again."""
    return not is_held(job, now) and (job.expires_at is None or job.expires_at > now)


@mutant((Store, "_is_due"), by="test_D3_never_from_a_paused_queue")
def reserve_by_id_ignores_the_pause(is_due: Any, store: Store, job: JobRecord, now: datetime) -> Any:
    """A paused queue still gives its jobs out by id."""
    paused, store.paused = store.paused, set()
    try:
        return is_due(store, job, now)
    finally:
        store.paused = paused


@mutant((Store, "reserve"), by="test_D3_never_from_a_paused_queue")
def reserve_ignores_the_pause(reserve: Any, store: Store, *rest: Any) -> Any:
    """A paused queue goes on."""
    paused, store.paused = store.paused, set()
    try:
        return reserve(store, *rest)
    finally:
        store.paused = paused


@mutant((Store, "reserve"), by="test_D3_never_a_job_that_is_not_due")
def future_job_early(reserve: Any, store: Store, queues: Any, now: datetime, *rest: Any) -> Any:
    """A job is handed out a millisecond before its time."""
    for job in in_state(store, State.READY):
        if now < job.due_at <= now + MILLISECOND:
            store._line.put(job.id, job.queue, job.priority, now, store._seq[job.id])
    return reserve(store, queues, now, *rest)


@mutant((Line, "put"), by="test_D11_higher_priority_first[100]")
def priority_ignored(put: Any, line: Line, id: str, queue: str, priority: int, due: datetime, seq: int) -> None:
    """All jobs rank alike."""
    put(line, id, queue, 0, due, seq)


@mutant((Line, "put"), by="test_D11_higher_priority_first[100]")
def lowest_priority_first(put: Any, line: Line, id: str, queue: str, priority: int, due: datetime, seq: int) -> None:
    """The order of ranks is upside down."""
    put(line, id, queue, -priority, due, seq)


@mutant((Line, "put"), by="test_D11_equal_jobs_are_first_in_first_out")
def last_in_first_out(put: Any, line: Line, id: str, queue: str, priority: int, due: datetime, seq: int) -> None:
    """The newest job goes first."""
    put(line, id, queue, priority, due, -seq)


@mutant((Line, "put"), by="test_D11_earlier_due_first")
def enqueue_order_before_due_time(
    put: Any, line: Line, id: str, queue: str, priority: int, due: datetime, seq: int
) -> None:
    """Jobs are ordered by enqueue, not by due time."""
    put(line, id, queue, priority, min(due, SINCE_EVER + timedelta(days=365 * 2020)), seq)


@mutant((Store, "settle"), by="test_D11_a_retry_at_the_same_time_keeps_its_enqueue_order")
def retry_loses_its_place(settle: Any, store: Store, to: Transition, now: datetime) -> Any:
    """A retry counts as a new enqueue."""
    if isinstance(to, PutBack) and to.id in store._seq:
        store._seq[to.id] = next(store._numbers)
    return settle(store, to, now)


@mutant((stores, "effective_due"), by="test_D11_a_second_reclaim_queues_by_its_last_expiry")
def poison_job_always_in_front(effective_due: Any, job: JobRecord) -> datetime:
    """A job that crashes its workers goes to the front every time."""
    return SINCE_EVER


@mutant((stores, "effective_due"), by="test_D11_a_first_reclaim_goes_to_the_front[0]")
def reclaimed_job_never_in_front(effective_due: Any, job: JobRecord) -> datetime:
    """A job whose worker died goes to the end of the line."""
    return job.due_at


@mutant((stores, "shares"), by="test_D11_several_queues_share_the_limit")
def first_queue_takes_all(shares: Any, queues: Sequence[str], limit: int) -> dict[str, int]:
    """A full queue starves the others."""
    return dict.fromkeys(queues[:1], limit)


@mutant((stores, "shares"), by="test_D11_a_queue_named_more_often_has_more_shares")
def weights_ignored(shares: Any, queues: Sequence[str], limit: int) -> Any:
    """A queue named three times has one share."""
    return shares(list(dict.fromkeys(queues)), limit)


@mutant((MemoryDriver, "reserve"), by="test_D2_never_more_than_the_limit[3]")
async def limit_exceeded(
    reserve: Any, driver: MemoryDriver, queues: Any, now: datetime, lease_for: timedelta, limit: int, *rest: Any
) -> Any:
    """A worker gets one job more than it asked for."""
    return await reserve(driver, queues, now, lease_for, limit + 1 if limit else 0, *rest)


@mutant((MemoryDriver, "reserve"), by="test_D12_concurrent_claims_of_one_loop_never_meet")
async def reserve_check_then_claim(
    reserve: Any, driver: MemoryDriver, queues: Any, now: datetime, lease_for: timedelta, limit: int, *rest: Any
) -> Any:
    """Between the choice of the jobs and their claim others get a turn."""
    store, (worker, *_) = driver._store, rest
    chosen = [job for job in in_state(store, State.READY) if job.queue in queues and store._is_due(job, now)]
    await asyncio.sleep(0)
    with driver._step():
        return [store._claim(job, now, now + lease_for, worker) for job in chosen[:limit]]


@mutant((MemoryDriver, "reserve"), by="test_D4_it_is_refused_even_when_nothing_is_due")
async def zero_lease_reserved(
    reserve: Any, driver: MemoryDriver, queues: Any, now: datetime, lease_for: timedelta, *rest: Any
) -> Any:
    """A lease of no time is granted without a word."""
    return await reserve(driver, queues, now, max(lease_for, timedelta(microseconds=1)), *rest)


@mutant((Store, "reschedule"), by="test_D11_rescheduling_moves_a_job_in_line")
def reschedule_without_effect(reschedule: Any, store: Store, change: Reschedule) -> Any:
    """A moved job stands where it stood."""
    before = store.jobs.get(change.id)
    moved = reschedule(store, change)
    if moved and before is not None:
        store._line.put(before.id, before.queue, before.priority, before.due_at, store._seq[before.id])
    return moved


@mutant((Store, "next_due"), by="test_D13_next_due_sees_leases_run_out")
def next_due_forgets_leases(next_due: Any, store: Store, queues: Sequence[str]) -> datetime | None:
    """No worker wakes up when a lease runs out."""
    times = [due for queue in queues if queue not in store.paused and (due := store._line.next_due(queue))]
    return min(times, default=None)


@mutant((MemoryDriver, "enqueue"), by="test_D13_a_waiter_is_woken_by_an_enqueue")
async def enqueue_wakes_no_worker(enqueue: Any, driver: MemoryDriver, groups: Any, now: datetime) -> Any:
    """Workers notice a new job at their next poll only."""
    with driver._step() as store:
        return [store.enqueue(group, now) for group in groups]
