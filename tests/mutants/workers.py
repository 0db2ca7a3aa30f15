"""Broken workers: keeper, settler, executor, the reserve loop, the stop, and clients."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from taskharbor.client import clock as clocks
from taskharbor.client.client import Client
from taskharbor.client.clock import EngineClock
from taskharbor.client.enqueue import SingleCall
from taskharbor.client.job_builder import JobBuilder
from taskharbor.core.job import JobRecord
from taskharbor.core.outcome import CancelledByRequest, Failed, Interrupted, NotRegistered, Outcome, Succeeded
from taskharbor.core.transition import Ack
from taskharbor.driver import Extended, Inspect, capability
from taskharbor.errors import LeaseError
from taskharbor.worker import executor as executors
from taskharbor.worker import outcomes
from taskharbor.worker.context import JobContext
from taskharbor.worker.decider import Decider, Settlement
from taskharbor.worker.executor import Executor
from taskharbor.worker.idle import Idle
from taskharbor.worker.keeper import Keeper
from taskharbor.worker.pipeline import Pipeline
from taskharbor.worker.quarantine import Quarantine
from taskharbor.worker.queue_weights import QueueWeights, ToReserve
from taskharbor.worker.reserver import Reserver
from taskharbor.worker.running import NO_EFFECTS, JobRun, Stop
from taskharbor.worker.settler import Settler
from taskharbor.worker.shutdown import Shutdown
from taskharbor.worker.upkeep import Upkeep
from taskharbor.worker.worker import Worker
from taskharbor.workflows import deferred as deferring
from taskharbor.workflows.step import Step

from .mutant import MutantRegistry

Conclude = Callable[[JobRun, Outcome], None]

WORKERS = MutantRegistry("worker")
mutant = WORKERS.mutant


# the keeper


@mutant((Settler, "submit"), by="a_settle_that_does_not_get_through_keeps_its_lease")
def heartbeat_stopped_before_settle(submit: Any, settler: Settler, run: JobRun, transition: Any) -> None:
    """Leases are renewed while the handler runs, and no longer while its outcome is on its way."""
    settler._keeper.drop(run)
    submit(settler, run, transition)


@mutant((Keeper, "_renew"), by="a_put_back_that_does_not_get_through_keeps_its_lease")
async def heartbeat_only_from_the_handlers_start(
    renew: Any, keeper: Keeper, loop: Any, holding: list[JobRun], *rest: Any
) -> Any:
    """A claim whose handler has not started is not renewed."""
    return await renew(keeper, loop, [run for run in holding if run.started_at is not None], *rest)


@mutant((Keeper, "__init__"), by="a_long_run_is_one_run")
def heartbeat_once_per_lease(init: Any, keeper: Keeper, *rest: Any) -> None:
    """The first renewal comes when the lease is over."""
    init(keeper, *rest)
    keeper._period *= 3


@mutant((Keeper, "_renew"), by="a_long_run_is_one_run")
async def no_heartbeat(renew: Any, keeper: Keeper, *rest: Any) -> bool:
    """Leases are never renewed."""
    return True


@mutant((Keeper, "hurry"), by="a_claim_that_took_long_to_arrive_is_renewed_at_once")
def slow_claim_not_renewed_at_once(hurry: Any, keeper: Keeper) -> None:
    """A lease that lost most of its time on the way waits for the next round."""


@mutant((Keeper, "_in_processes"), by="a_cancelled_run_in_a_process_ends_before_the_heartbeat")
def processes_wait_for_the_heartbeat(in_processes: Any, keeper: Keeper) -> list[JobRun]:
    """A run that could be killed at once learns of its cancellation with the heartbeat."""
    return []


@mutant((Keeper, "_in_processes"), by="a_cancelled_run_in_a_process_ends_before_the_heartbeat")
def every_run_asked_about(in_processes: Any, keeper: Keeper) -> list[JobRun]:
    """Leases of runs that nothing can end by force are renewed twice a second."""
    return list(keeper._held.values())


@mutant((Keeper, "_renewed_at"), by="a_cancelled_run_in_a_process_ends_before_the_heartbeat")
def short_runs_asked_about(renewed_at: Any, keeper: Keeper, run: JobRun) -> float:
    """Every job in a process costs a renewal, however short it is."""
    return -math.inf


@mutant((Keeper, "_take"), by="a_stolen_lease_ends_the_run")
def keeper_ignores_a_refusal(take: Any, keeper: Keeper, run: JobRun, answer: Any, sent: float) -> None:
    """A refused renewal changes nothing: the run goes on until its lease is over by the local clock."""
    if not isinstance(answer, LeaseError):
        take(keeper, run, answer, sent)


@mutant((Keeper, "_lose"), by="a_stolen_lease_ends_the_run")
def lost_lease_not_reported(lose: Any, keeper: Keeper, run: JobRun, why: str) -> None:
    """The handler runs on after its lease is lost."""
    keeper.drop(run)


@mutant((Keeper, "_lose_overdue"), by="a_worker_cut_off_after_a_heartbeat_stops_in_time")
def overdue_lease_kept(lose: Any, keeper: Keeper, time: float) -> None:
    """A worker that cannot reach the store believes in its leases for ever."""
    for run in keeper._held.values():
        run.lease.deadline = max(run.lease.deadline, time + 1)


@mutant((Keeper, "_take"), by="a_worker_cut_off_after_a_heartbeat_stops_in_time")
def renewal_counts_from_its_reply(take: Any, keeper: Keeper, run: JobRun, answer: Any, sent: float) -> None:
    """A lease is believed to last longer than the store has granted."""
    take(keeper, run, answer, asyncio.get_running_loop().time())


@mutant((Pipeline, "take"), by="a_worker_cut_off_before_its_first_heartbeat_stops_in_time")
async def claim_counts_from_its_reply(
    take: Any, pipeline: Pipeline, jobs: Sequence[JobRecord], deadline: float
) -> None:
    """A claim is believed to last longer than the store has granted."""
    await take(pipeline, jobs, pipeline._loop.time() + pipeline.keeper._lease_for.total_seconds())


@mutant((Keeper, "_take"), by="a_cancelled_job_stops_at_the_next_heartbeat")
def cancel_request_ignored(take: Any, keeper: Keeper, run: JobRun, answer: Any, sent: float) -> None:
    """A running job cannot be cancelled."""
    take(keeper, run, replace(answer, cancel_requested=False) if isinstance(answer, Extended) else answer, sent)


@mutant((Keeper, "_renew"), by="the_heartbeat_reports_that_the_handler_runs")
async def heartbeat_without_news(renew: Any, keeper: Keeper, *rest: Any) -> Any:
    """Start and progress are never reported."""
    for run in keeper._held.values():
        run.started_at, run.effects = None, NO_EFFECTS
    return await renew(keeper, *rest)


@mutant((JobRun, "has_news"), by="a_run_is_shown_within_a_second")
def news_wait_for_the_heartbeat(has_news: Any, run: JobRun) -> bool:
    """Start and progress are reported with the next renewal only."""
    return False


@mutant((Keeper, "_take"), by="a_job_dead_lettered_by_hand_stops_at_the_next_heartbeat")
def dead_letter_request_ignored(take: Any, keeper: Keeper, run: JobRun, answer: Any, sent: float) -> None:
    """A running job cannot be dead-lettered."""
    take(keeper, run, replace(answer, dead_letter_requested=False) if isinstance(answer, Extended) else answer, sent)


# overruns


@mutant((executors, "_timer"), by="a_result_that_comes_after_the_timeout_is_discarded")
def late_result_accepted(timer: Any, run: JobRun, timeout: float) -> Any:
    """A handler that blocked the loop past its timeout succeeds."""
    handle = timer(run, timeout)
    run.ends_by = float("inf")
    return handle


@mutant((outcomes, "is_late"), by="a_stop_counts_the_timeout_of_a_run_that_ignores_it")
def overrun_handed_back(is_late: Any, run: JobRun, time: float) -> bool:
    """A stop gives a job back whose run is past its timeout, as if nothing had happened."""
    return False


@mutant((Keeper, "_notice"), by="an_overrun_is_reported_at_once")
def overrun_not_reported(notice: Any, keeper: Keeper, time: float) -> list[JobRun]:
    """A worker reports an overrun with its next regular report only, which its own loop may be too busy for."""
    news: list[JobRun] = notice(keeper, time)
    keeper._overran = False
    return news


# the settler


@mutant((Settler, "_flush"), by="a_lost_reply_of_a_settle_is_asked_for_again")
async def settle_not_retried(flush: Any, settler: Settler, batch: list[Settlement]) -> list[Settlement]:
    """An outcome whose reply was lost is taken for written."""
    await flush(settler, batch)
    return []


@mutant((Settler, "_flush"), by="a_lost_request_of_a_settle_changes_no_decision")
async def settle_repeated_with_a_fresh_decision(
    flush: Any, settler: Settler, batch: list[Settlement]
) -> list[Settlement]:
    """An outcome that has to be sent again counts its failure again."""
    left: list[Settlement] = await flush(settler, batch)
    return [(run, replace(to, attempts=to.attempts + 1) if to.failures else to) for run, to in left]


@mutant((Settler, "_batch"), by="an_outcome_that_comes_too_late_is_not_sent")
def late_outcome_sent(make_batch: Any, settler: Settler, pending: list[Any]) -> list[Settlement]:
    """Outcomes are sent however late it is."""
    for run, _ in pending:
        run.lease.lost, run.lease.deadline = False, float("inf")
    batch: list[Settlement] = make_batch(settler, pending)
    return batch


@mutant((Settler, "_flush"), by="one_outcome_that_cannot_be_stored_delays_no_other")
async def one_bad_outcome_drops_its_batch(flush: Any, settler: Settler, batch: list[Settlement]) -> list[Settlement]:
    """When one outcome cannot be stored, its neighbours are dropped with it."""
    if len(batch) > 1 and any(isinstance(to, Ack) and to.result == b"13" for _, to in batch):
        return []
    left: list[Settlement] = await flush(settler, batch)
    return left


@mutant((Settler, "_flush"), by="a_lost_reply_of_a_settle_is_asked_for_again")
async def repeated_settle_counted_twice(flush: Any, settler: Settler, batch: list[Settlement]) -> list[Settlement]:
    """A run whose outcome was sent twice is two runs in the totals."""
    left: list[Settlement] = await flush(settler, batch)
    settler.publish(left, settler._now())
    return left


@mutant((Settler, "_conclude"), by="a_failure_after_the_ack_is_not_believed")
async def refused_settle_taken_for_accepted(
    conclude: Any, settler: Settler, driver: Any, batch: list[Settlement], verdicts: Sequence[Any], now: datetime
) -> None:
    """An outcome that the store refused is logged and reported as if it had happened."""
    await conclude(settler, driver, batch, ["ok"] * len(verdicts), now)


# the executor


@mutant((Executor, "run"), by="a_failing_job_is_retried_and_dead_lettered")
async def failure_swallowed(run_job: Any, executor: Executor, run: JobRun, conclude: Conclude) -> None:
    """Whatever a handler raises, its job is done."""
    await run_job(executor, run, lambda run, it: conclude(run, Succeeded(None) if isinstance(it, Failed) else it))


@mutant((Executor, "run"), by="an_unknown_task_waits_for_a_deploy")
async def unknown_task_straight_to_the_dlq(run_job: Any, executor: Executor, run: JobRun, conclude: Conclude) -> None:
    """A worker with older code dead-letters jobs of newer code."""
    dead = Failed("UnknownTask", run.job.type, final="unknown_task")
    await run_job(executor, run, lambda run, it: conclude(run, dead if isinstance(it, NotRegistered) else it))


@mutant((Executor, "run"), by="a_timeout_ends_the_run_and_counts")
async def timeout_not_applied(run_job: Any, executor: Executor, run: JobRun, conclude: Conclude) -> None:
    """A handler may run for ever."""
    run.job = replace(run.job, timeout=None)
    await run_job(executor, run, conclude)


@mutant((outcomes, "_after_stop"), by="a_timeout_ends_the_run_and_counts")
def timeout_counts_no_attempt(after_stop: Any, stop: Stop, job: JobRecord, task: Any) -> Outcome:
    """A job that times out is put back for ever."""
    outcome: Outcome = after_stop(stop, job, task)
    return Interrupted() if stop == "timeout" else outcome


@mutant((outcomes, "_after_stop"), by="a_cancelled_job_stops_at_the_next_heartbeat")
def cancel_counts_as_a_failure(after_stop: Any, stop: Stop, job: JobRecord, task: Any) -> Outcome:
    """A cancelled job counts as failed."""
    return Failed("Cancelled", "") if stop == "cancel" else after_stop(stop, job, task)


@mutant((outcomes, "_after_stop"), by="a_stop_gives_back_what_it_interrupts")
def graceful_stop_counts_an_attempt(after_stop: Any, stop: Stop, job: JobRecord, task: Any) -> Outcome:
    """Every deploy costs the jobs it interrupts an attempt."""
    return Failed("Interrupted", "") if stop == "shutdown" else after_stop(stop, job, task)


@mutant((outcomes, "_after_stop"), by="a_stop_gives_back_what_it_interrupts")
def graceful_stop_cancels_jobs(after_stop: Any, stop: Stop, job: JobRecord, task: Any) -> Outcome:
    """Every deploy loses the jobs it interrupts."""
    return CancelledByRequest() if stop == "shutdown" else after_stop(stop, job, task)


@mutant((outcomes, "from_error"), by="a_stray_cancellation_is_a_failure")
def stray_cancellation_is_a_release(from_error: Any, error: BaseException, *rest: Any) -> Outcome:
    """A handler that raises CancelledError is run again for ever."""
    outcome: Outcome = from_error(error, *rest)
    return Interrupted() if isinstance(error, asyncio.CancelledError) else outcome


@mutant((outcomes, "raised"), by="a_payload_that_does_not_fit_is_dead_lettered_at_once")
def bad_payload_retried(raised: Any, *given: Any) -> Outcome:
    """Bytes that no retry will make readable are retried."""
    outcome: Outcome = raised(*given)
    return replace(outcome, final=None) if isinstance(outcome, Failed) and outcome.final == "undecodable" else outcome


@mutant((outcomes, "success"), by="a_child_comes_with_its_parents_success")
def children_forgotten(success: Any, *given: Any) -> Outcome:
    """Jobs that a handler enqueued with its success are lost."""
    outcome: Outcome = success(*given)
    return replace(outcome, new_jobs=()) if isinstance(outcome, Succeeded) else outcome


@mutant((deferring, "deferred"), by="a_child_comes_with_its_parents_success")
def children_enqueued_at_once(deferred: Any, client: Client, step: Step[Any]) -> Any:
    """Jobs that a handler enqueued with its success are stored even if it fails."""
    _, job = deferred(client, step)
    asyncio.get_running_loop().create_task(client.submit(SingleCall(client, step)))
    return (), job


@mutant((JobContext, "lease_version"), by="the_fencing_number_grows_with_every_claim")
def fencing_number_is_the_attempt(lease_version: Any, context: JobContext) -> int:
    """After a crash the second run carries the number of the first."""
    return context.attempt


# the worker


@mutant((Reserver, "_room"), by="a_worker_takes_no_more_than_it_can_run")
def reserves_more_than_it_has_slots(room: Any, reserver: Reserver) -> Any:
    """A worker takes one job more than it can run."""
    claim, ids = room(reserver)
    return claim._replace(limit=claim.limit + 1 if claim.limit > 0 else 0), ids


@mutant((QueueWeights, "claim"), by="a_queue_that_hangs_leaves_a_slot_to_the_others")
def one_queue_takes_all_slots(claim: Any, lines: QueueWeights, free: int, running: Iterable[str]) -> ToReserve:
    """A queue whose jobs hang stops the others."""
    return ToReserve(lines.shares(), free)


@mutant((QueueWeights, "claim"), by="a_queue_that_hangs_leaves_a_slot_to_the_others")
def kept_slots_stay_empty(claim: Any, lines: QueueWeights, free: int, running: Iterable[str]) -> Any:
    """The slot kept for a queue is never used, not even by that queue."""
    found: ToReserve = claim(lines, free, running)
    return found._replace(limit=0) if found.only_own else found


@mutant((Pipeline, "conclude"), by="a_full_worker_goes_on_when_a_slot_is_free")
def freed_slot_unnoticed(conclude: Any, pipeline: Pipeline, run: JobRun, outcome: Outcome) -> None:
    """A full worker does not notice that a slot is free."""
    freed, pipeline.freed = pipeline.freed, asyncio.Event()
    conclude(pipeline, run, outcome)
    pipeline.freed = freed


@mutant((Pipeline, "_admit"), by="a_clock_that_jumps_does_not_make_two_runs_meet")
def two_runs_of_one_id_side_by_side(admit: Any, pipeline: Pipeline, run: JobRun, stopping: bool) -> bool:
    """A worker that takes its own job over has forgotten that it runs it."""
    pipeline.running.pop(run.job.id, None)
    admitted: bool = admit(pipeline, run, stopping)
    return admitted


@mutant((Pipeline, "take"), by="a_claim_that_arrives_after_its_lease_is_not_run")
async def late_claim_run(take: Any, pipeline: Pipeline, jobs: Sequence[JobRecord], deadline: float) -> None:
    """Jobs are run however late the reply to the claim is."""
    await take(pipeline, jobs, max(deadline, pipeline._loop.time() + 1))


@mutant((Pipeline, "take"), by="jobs_that_arrive_during_a_stop_are_given_back_unrun")
async def jobs_reserved_while_stopping_dropped(take: Any, pipeline: Pipeline, *rest: Any) -> None:
    """Jobs that arrive during a stop are left to their leases."""
    if not pipeline.stopping.is_set():
        await take(pipeline, *rest)


@mutant((Pipeline, "take"), by="jobs_that_arrive_during_a_stop_are_given_back_unrun")
async def jobs_reserved_while_stopping_run(take: Any, pipeline: Pipeline, *rest: Any) -> None:
    """Jobs that arrive during a stop are begun."""
    stopping, pipeline.stopping = pipeline.stopping, asyncio.Event()
    await take(pipeline, *rest)
    pipeline.stopping = stopping


@mutant((Shutdown, "_let_finish"), by="a_stop_lets_handlers_finish")
async def stop_without_grace(
    let_finish: Any, shutdown: Shutdown, patience: float, even_in_a_hurry: bool = False
) -> None:
    """A stop interrupts every handler at once."""
    await let_finish(shutdown, patience if even_in_a_hurry else 0.0, even_in_a_hurry)


@mutant((Pipeline, "submit"), by="a_stop_gives_back_what_it_interrupts")
def interrupted_jobs_not_given_back(submit: Any, pipeline: Pipeline, run: JobRun, outcome: Outcome) -> None:
    """After a deploy the interrupted jobs wait for their leases to expire, and count a crash."""
    if isinstance(outcome, Interrupted):
        pipeline.let_go(run)
    else:
        submit(pipeline, run, outcome)


@mutant((Pipeline, "conclude"), by="a_stolen_lease_ends_the_run")
def outcome_written_after_the_lease_was_lost(conclude: Any, pipeline: Pipeline, run: JobRun, outcome: Outcome) -> None:
    """A run that has lost its lease still sends its outcome."""
    if run.lease.lost:
        run.lease.lost, run.stop_request = False, "shutdown"
    conclude(pipeline, run, outcome)


@mutant((Pipeline, "end_run"), by="a_handler_that_ignores_its_timeout_is_waited_for")
def timeout_settled_while_the_handler_runs(end_run: Any, pipeline: Pipeline, run: JobRun, stop: Stop) -> None:
    """A timed-out job is given back at once, although its handler may still run."""
    end_run(pipeline, run, stop)
    if stop == "timeout" and not run.settling:
        run.abandoned = True
        pipeline.submit(run, Failed("TimeoutError", ""))


@mutant((Worker, "stop"), by="an_abandoned_run_is_not_given_back")
async def abandoned_run_given_back(stop: Any, worker: Worker, **options: Any) -> None:
    """A run that ignores its cancellation is given back while it goes on."""
    await stop(worker, hold_abandoned=True)
    await worker.give_back_abandoned()


@mutant((Decider, "__init__"), by="a_failing_job_is_retried_and_dead_lettered")
def policy_of_the_task_ignored(init: Any, decider: Decider, *rest: Any) -> None:
    """Every task is retried by the harbor's policy."""
    init(decider, *rest)
    decider._tasks = {}


@mutant((Reserver, "__init__"), by="a_long_run_is_one_run")
def asks_for_short_leases(init: Any, reserver: Reserver, *rest: Any) -> None:
    """The store is asked for a fraction of the lease that the keeper renews."""
    init(reserver, *rest)
    reserver._lease_for /= 40


@mutant((Idle, "back_off"), by="a_store_that_was_away_finds_its_workers_again")
async def outage_ends_the_worker(back_off: Any, idle: Idle, failures: int) -> None:
    """A worker that met an outage never asks again."""
    await idle._stopping.wait()


@mutant((Idle, "until_work"), by="a_delayed_job_runs_on_time")
async def polls_in_the_dark(until_work: Any, idle: Idle, **rest: Any) -> None:
    """A worker sleeps through due times."""
    await idle._first_of(asyncio.sleep(5))


@mutant((Upkeep, "sweep"), by="an_expired_job_is_cancelled")
async def no_worker_sweeps(sweep: Any, upkeep: Upkeep) -> None:
    """Expired jobs are never cancelled."""


@mutant((Upkeep, "prune"), by="a_record_outlives_its_key")
async def no_worker_prunes(prune: Any, upkeep: Upkeep) -> None:
    """The store grows for ever."""


# quarantine


@mutant((Quarantine, "sort"), by="a_suspect_runs_alone")
def suspects_run_beside_others(sort: Any, quarantine: Quarantine, jobs: Sequence[JobRecord], empty: bool) -> Any:
    """A job that may kill its worker takes its neighbours along."""
    return list(jobs), {}


@mutant((Quarantine, "ask"), by="a_suspect_runs_alone")
def others_join_a_suspect(ask: Any, quarantine: Quarantine, free: int, empty: bool) -> Any:
    """Other jobs join one that must run alone."""
    quarantine._running_alone = False
    return ask(quarantine, free, empty)


@mutant((Quarantine, "sort"), by="a_suspect_runs_alone")
def suspects_never_run(sort: Any, quarantine: Quarantine, jobs: Sequence[JobRecord], empty: bool) -> Any:
    """A job under suspicion is given back for ever."""
    suspects = sort(quarantine, jobs, False)
    quarantine._wanted, quarantine._rest_until = None, quarantine._time() + 5
    return suspects


@mutant((Quarantine, "ask"), by="slots_do_not_stay_empty_for_a_suspect")
def suspects_keep_slots_empty(ask: Any, quarantine: Quarantine, free: int, empty: bool) -> Any:
    """One long handler and one suspect bring a whole worker to a halt."""
    quarantine._empty_by = quarantine._time() + 10
    return ask(quarantine, free, empty)


# clients and clocks


@mutant((Client, "submit"), by="many_submitters_of_one_key_create_one_job")
async def key_check_then_put_in_the_client(submit: Any, client: Client, what: SingleCall) -> Any:
    """The client looks for a key, and leaves it out of the enqueue if it is free."""
    async with client.store() as driver:
        call = what.call
        key = call.options.get("idempotency_key")
        if key is not None and await capability(driver, Inspect).find_key(key, client.session.now()) is None:
            call.options = {**call.options}
            del call.options["idempotency_key"]
    return await submit(client, what)


@mutant((EngineClock, "__call__"), by="the_engines_clock_rules")
def host_clock_used(call: Any, clock: EngineClock) -> datetime:
    """Workers go by their host's clock although the engine has one."""
    return clocks.host_clock()


@mutant((EngineClock, "stale"), by="a_change_of_the_engines_clock_is_followed")
def engine_clock_asked_once(stale: Any, clock: EngineClock) -> bool:
    """A change of the engine's clock is never noticed."""
    return clock._last is None


# what the jobs of a task have in common


@mutant((JobBuilder, "_pattern"), by="jobs_share_only_what_their_task_says")
def usual_jobs_of_other_settings(pattern: Any, builder: JobBuilder, call: Any, workflow_id: Any) -> Any:
    """A harbor that stands in for another builds jobs with the limits of the first."""
    job = pattern(builder, call, workflow_id)
    if call.task.usual is not None and job is call.task.usual[1]:
        return _first_patterns.setdefault(call.task, job)
    return job


_first_patterns: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


@mutant((JobBuilder, "_pattern"), by="jobs_share_only_what_their_task_says")
def usual_jobs_without_their_options(pattern: Any, builder: JobBuilder, call: Any, workflow_id: Any) -> Any:
    """`using` has no effect once the task has been enqueued without it."""
    usual = call.task.usual
    return pattern(builder, call, workflow_id) if usual is None or workflow_id else usual[1]


@mutant((JobBuilder, "_pattern"), by="jobs_share_only_what_their_task_says")
def usual_jobs_without_their_lineage(pattern: Any, builder: JobBuilder, call: Any, workflow_id: Any) -> Any:
    """Jobs of a handler do not name their parent."""
    builder._lineage = {}
    return pattern(builder, call, workflow_id)


@mutant((JobBuilder, "_pattern"), by="jobs_share_only_what_their_task_says")
def unusual_jobs_kept_as_usual(pattern: Any, builder: JobBuilder, call: Any, workflow_id: Any) -> Any:
    """The options of one job reach all later ones."""
    job = pattern(builder, call, workflow_id)
    call.task.usual = builder._settings, job
    return job
