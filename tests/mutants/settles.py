"""Broken drivers: outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from taskharbor.core import evolve
from taskharbor.core.job import JobRecord
from taskharbor.core.lease import Verdict, refusal, settle_verdict
from taskharbor.core.states import State
from taskharbor.core.transition import Ack, Cancel, PutBack, Transition
from taskharbor.drivers.memory import store as stores
from taskharbor.drivers.memory.driver import MemoryDriver
from taskharbor.drivers.memory.store import Store
from taskharbor.errors import LeaseError, LeaseExpired, LeaseMismatch

from .leases import with_lease
from .mutant import MutantRegistry

SETTLES = MutantRegistry("driver")
mutant = SETTLES.mutant

Settle = Callable[..., Verdict]
Judge = Callable[..., Verdict]
MICROSECOND = timedelta(microseconds=1)


def holder_of(store: Store, to: Transition) -> JobRecord | None:
    """The job of a transition while it is under any lease."""
    job = store.jobs.get(to.id)
    return job if job is not None and job.lease is not None else None


@mutant((Store, "settle"), by="test_L5_a_late_settle_never_overwrites_a_newer_claim")
def unfenced_ack(settle: Settle, store: Store, to: Transition, now: datetime) -> Verdict:
    """Any token can ack, no matter which worker holds the lease."""
    if isinstance(to, Ack) and (job := holder_of(store, to)) is not None and job.lease is not None:
        to = replace(to, token=job.lease.token)
    return settle(store, to, now)


@mutant((Store, "settle"), by="test_L5_a_late_settle_never_overwrites_a_newer_claim")
def unfenced_put_back(settle: Settle, store: Store, to: Transition, now: datetime) -> Verdict:
    """Any token can put a running job back."""
    if isinstance(to, PutBack) and (job := holder_of(store, to)) is not None and job.lease is not None:
        to = replace(to, token=job.lease.token)
    return settle(store, to, now)


@mutant((Store, "settle"), by="test_D7_at_the_expiry_a_settle_is_refused[ack]")
def ack_ignores_expiry(settle: Settle, store: Store, to: Transition, now: datetime) -> Verdict:
    """A late Ack is accepted unless the job was reclaimed."""
    job = holder_of(store, to)
    if isinstance(to, Ack) and job is not None and job.lease is not None and job.lease.token == to.token:
        store._write(with_lease(job, expires_at=max(job.lease.expires_at, now + MICROSECOND)))
    return settle(store, to, now)


@mutant((Store, "settle"), by="test_D7_at_the_expiry_a_settle_is_refused[put_back]")
def settle_at_the_very_expiry(settle: Settle, store: Store, to: Transition, now: datetime) -> Verdict:
    """A lease still counts at the very moment of its end."""
    job = holder_of(store, to)
    if job is not None and job.lease is not None and job.lease.expires_at == now:
        store._write(with_lease(job, expires_at=now + MICROSECOND))
    return settle(store, to, now)


@mutant((stores, "settle_verdict"), by="test_D8_repeating_a_settle_is_replayed[ack]")
def settle_replay_not_recognised(judge: Judge, job: JobRecord | None, to: Transition, now: datetime) -> Verdict:
    """Repeating a settle whose reply was lost is refused."""
    return refusal(job, to.id, to.token, now) or "ok"


@mutant((stores, "settle_verdict"), by="test_D8_a_repeat_is_replayed_while_another_worker_holds_the_job")
def replay_forgotten_with_the_next_claim(judge: Judge, job: JobRecord | None, to: Transition, now: datetime) -> Verdict:
    """A repeat is recognised until the next claim."""
    if job is not None and job.state is State.INFLIGHT:
        return refusal(job, to.id, to.token, now) or "ok"
    return judge(job, to, now)


@mutant((stores, "settle_verdict"), by="test_D8_only_the_last_settle_is_remembered")
def any_settle_of_a_finished_job_is_a_replay(
    judge: Judge, job: JobRecord | None, to: Transition, now: datetime
) -> Verdict:
    """A settle of a finished job under any token is `replayed`."""
    verdict = judge(job, to, now)
    return "replayed" if job is not None and job.state is State.DONE else verdict


@mutant((stores, "settle_verdict"), by="test_D8_another_kind_under_the_settled_token_is_refused[ack]")
def any_kind_is_a_replay(judge: Judge, job: JobRecord | None, to: Transition, now: datetime) -> Verdict:
    """A Fail after an Ack under the same token is `replayed`."""
    return "replayed" if job is not None and job.settled_token == to.token else judge(job, to, now)


@mutant((stores, "settle_verdict"), by="test_D8_another_kind_is_refused_while_another_worker_holds_the_job")
def any_kind_is_a_replay_under_another_lease(
    judge: Judge, job: JobRecord | None, to: Transition, now: datetime
) -> Verdict:
    """The same, after the next claim."""
    verdict = judge(job, to, now)
    held = job is not None and job.lease is not None and job.settled_token == to.token
    return "replayed" if held and isinstance(verdict, LeaseError) else verdict


@mutant((evolve, "settle_kind"), by="test_D8_a_put_back_that_landed_elsewhere_is_repeated_as_a_put_back")
def kind_by_its_end(kind: Any, to: Transition) -> Any:
    """A put-back is remembered by the state that it was thought to lead to."""
    return "cancel" if isinstance(to, PutBack) else kind(to)


@mutant((evolve, "_noted"), by="test_R1_every_settle_leaves_the_trace_of_its_run[True-put_back]")
def start_not_written(noted: Any, *args: Any) -> Any:
    """A settle says nothing of when its run began."""
    return replace(noted(*args), started_at=None)


@mutant((evolve, "_noted"), by="test_R1_every_settle_leaves_the_trace_of_its_run[False-ack]")
def worker_forgotten(noted: Any, *args: Any) -> Any:
    """With its lease, a job forgets who ran it."""
    return replace(noted(*args), worker=None, claimed_at=None)


@mutant((evolve, "_noted"), by="test_R1_every_settle_leaves_the_trace_of_its_run[False-fail]")
def end_of_the_run_not_written(noted: Any, *args: Any) -> Any:
    """The time of the settle is not stored."""
    return replace(noted(*args), settled_at=None)


@mutant((stores, "settle_verdict"), by="test_D8_why_a_settle_is_refused[lapsed, foreign token-ack]")
def mismatch_before_expiry(judge: Judge, job: JobRecord | None, to: Transition, now: datetime) -> Verdict:
    """The refusals come in the wrong precedence."""
    verdict = judge(job, to, now)
    foreign = job is not None and job.lease is not None and job.lease.token != to.token
    return LeaseMismatch(to.id) if isinstance(verdict, LeaseExpired) and foreign else verdict


@mutant((Store, "settle"), by="test_D7_a_refused_settle_brings_no_new_jobs_and_moves_no_child[ack]")
def refused_settle_stores_new_jobs(settle: Settle, store: Store, to: Transition, now: datetime) -> Verdict:
    """New jobs are stored although the settle that brought them was refused."""
    verdict = settle(store, to, now)
    if isinstance(verdict, LeaseError):
        store._store([new for new in to.new_jobs if new.id not in store.jobs], now)
    return verdict


@mutant((Store, "settle"), by="test_D8_repeating_a_settle_is_replayed[ack]")
def replayed_settle_stores_new_jobs(settle: Settle, store: Store, to: Transition, now: datetime) -> Verdict:
    """A repeated settle enqueues its new jobs once more."""
    verdict = settle(store, to, now)
    if verdict == "replayed":
        store._store([replace(new, id=f"{new.id} again") for new in to.new_jobs], now)
    return verdict


@mutant((Store, "settle"), by="test_D9_new_jobs_are_stored_in_the_same_step[put_back]")
def new_jobs_dropped_on_put_back(settle: Settle, store: Store, to: Transition, now: datetime) -> Verdict:
    """Only an Ack may bring new jobs."""
    return settle(store, replace(to, new_jobs=()) if isinstance(to, PutBack) else to, now)


@mutant((Store, "settle"), by="test_D9_a_new_job_whose_id_is_known_is_skipped")
def known_new_job_refuses_the_settle(settle: Settle, store: Store, to: Transition, now: datetime) -> Verdict:
    """A new job whose id is taken keeps the whole settle out."""
    job = holder_of(store, to)
    if job is not None and any(new.id in store.jobs for new in to.new_jobs):
        return LeaseError("a new job exists")
    return settle(store, to, now)


@mutant((Store, "settle"), by="test_D9_a_new_job_whose_id_is_known_is_skipped")
def known_new_job_overwrites(settle: Settle, store: Store, to: Transition, now: datetime) -> Verdict:
    """A new job whose id is taken changes the job that has it."""
    verdict = settle(store, to, now)
    for new in to.new_jobs if verdict == "ok" else ():
        store._write(replace(store.jobs[new.id], payload=new.payload)) if new.id in store.jobs else None
    return verdict


@mutant((MemoryDriver, "settle"), by="test_D7_items_of_a_batch_are_independent")
async def batch_refused_whole(
    settle: Any, driver: MemoryDriver, transitions: Sequence[Transition], now: datetime
) -> list[Verdict]:
    """One refused item refuses all of its batch."""
    jobs = driver._store.jobs
    verdicts = [settle_verdict(jobs.get(to.id), to, now) for to in transitions]
    if any(isinstance(verdict, LeaseError) for verdict in verdicts):
        return [LeaseError("another one was refused")] * len(verdicts)
    written: list[Verdict] = await settle(driver, transitions, now)
    return written


@mutant((MemoryDriver, "settle"), by="test_D7_a_large_flush_is_settled_whole")
async def large_flush_cut(
    settle: Any, driver: MemoryDriver, transitions: Sequence[Transition], now: datetime
) -> list[Verdict]:
    """Only the first hundred outcomes of a flush are written; the rest is waved through."""
    verdicts: list[Verdict] = await settle(driver, transitions[:100], now)
    return [*verdicts, *["ok"] * len(transitions[100:])]  # type: ignore[list-item]


@mutant((Store, "settle"), by="test_D3_a_retry_is_not_handed_out_before_its_time")
def retry_drops_run_at(settle: Settle, store: Store, to: Transition, now: datetime) -> Verdict:
    """A job that is put back runs again at once, whatever its delay."""
    return settle(store, replace(to, run_at=now) if isinstance(to, PutBack) else to, now)


@mutant((Store, "settle"), by="test_D9_the_settle_writes_exactly_the_fields_it_carries[put_back]")
def put_back_forgets_attempts(settle: Settle, store: Store, to: Transition, now: datetime) -> Verdict:
    """A retry restarts the counters."""
    return settle(store, replace(to, attempts=0) if isinstance(to, PutBack) else to, now)


@mutant((Store, "settle"), by="test_D9_fields_at_zero_are_written_too[put_back]")
def settle_never_counts_down(settle: Settle, store: Store, to: Transition, now: datetime) -> Verdict:
    """Crashes are never reset by a recorded outcome."""
    job = store.jobs.get(to.id)
    return settle(store, to if job is None else replace(to, crashes=max(to.crashes, job.crashes)), now)


@mutant((Store, "settle"), by="test_T3_Q4_a_put_back_after_the_request_ends_the_job[cancel-put_back]")
def put_back_ignores_the_cancel_request(settle: Settle, store: Store, to: Transition, now: datetime) -> Verdict:
    """A cancelled job that is put back runs again."""
    job = holder_of(store, to)
    if isinstance(to, PutBack) and job is not None:
        store._write(replace(job, stop_requested_at=None))
    return settle(store, to, now)


@mutant((Store, "settle"), by="test_T3_Q4_the_settle_of_the_holder_wins[cancel-ack]")
def ack_after_cancel_request_lost(settle: Settle, store: Store, to: Transition, now: datetime) -> Verdict:
    """An Ack after a cancel request ends cancelled."""
    job = holder_of(store, to)
    if isinstance(to, Ack) and job is not None and job.stop_requested_at is not None:
        to = Cancel(id=to.id, token=to.token, keep_until=to.keep_until)
    return settle(store, to, now)


@mutant((Store, "settle"), by="test_R1_the_failure_history_comes_back_exactly")
def failures_cut(settle: Settle, store: Store, to: Transition, now: datetime) -> Verdict:
    """Half of the failure history is lost."""
    return settle(store, replace(to, failures=to.failures[:10]), now)


@mutant((Store, "settle"), by="test_R1_no_result_is_not_an_empty_result")
def empty_result_is_none(settle: Settle, store: Store, to: Transition, now: datetime) -> Verdict:
    """An empty result is stored as None."""
    return settle(store, replace(to, result=to.result or None) if isinstance(to, Ack) else to, now)


@mutant((Store, "settle"), by="test_D9_the_settle_writes_exactly_the_fields_it_carries[ack]")
def settle_not_stored(settle: Settle, store: Store, to: Transition, now: datetime) -> Verdict:
    """An Ack is acknowledged and forgotten: the job runs again when its lease is over."""
    job = holder_of(store, to)
    verdict = settle(store, to, now)
    if job is not None and isinstance(to, Ack):
        store._write(job)
    return verdict


@mutant((MemoryDriver, "settle"), by="test_D7_concurrent_settles_of_one_loop_count_once")
async def settle_check_then_write(
    settle: Any, driver: MemoryDriver, transitions: Sequence[Transition], now: datetime
) -> list[Verdict]:
    """Between the look at the lease and the write others get a turn."""
    store = driver._store
    held = {to.id: job for to in transitions if (job := holder_of(store, to)) is not None}
    await asyncio.sleep(0)
    for to in transitions:
        job = held.get(to.id)
        if job is not None and job.lease is not None and job.lease.token == to.token:
            store._write(job)
    verdicts: list[Verdict] = await settle(driver, transitions, now)
    return verdicts


@mutant((Store, "settle"), by="test_D9_new_jobs_are_stored_in_the_same_step[ack]")
def new_jobs_take_no_key(settle: Settle, store: Store, to: Transition, now: datetime) -> Verdict:
    """Jobs that are born with an Ack leave their keys free."""
    new_jobs = tuple(replace(new, idempotency_key=None) for new in to.new_jobs)
    return settle(store, replace(to, new_jobs=new_jobs), now)
