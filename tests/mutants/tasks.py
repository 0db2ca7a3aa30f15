"""Broken TaskManagers, and broken drivers that hand tasks to workers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from taskharbor.client.job_builder import JobBuilder
from taskharbor.core.decide import Retention, token_of
from taskharbor.core.job import JobRecord, NewJob
from taskharbor.core.reserved import TASKS
from taskharbor.core.states import DLQ, DONE, INFLIGHT
from taskharbor.driver import Inspect, capability
from taskharbor.drivers.memory import store as stores
from taskharbor.drivers.memory.store import Store
from taskharbor.drivers.sqlite import inspection as sqlite_inspection
from taskharbor.drivers.sqlite import reserve as sqlite_reserve
from taskharbor.errors import LeaseError, TaskNotClaimed
from taskharbor.manager import Task, TaskManager, checks, rules
from taskharbor.manager import manager as managers
from taskharbor.manager import task as tasks
from taskharbor.manager.checks import Caller
from taskharbor.manager.claimer import Claimer
from taskharbor.manager.claims import Claims
from taskharbor.manager.task_store import TaskStore
from taskharbor.worker import launcher

from .mutant import MutantRegistry

DRIVERS, SQLITE, MANAGERS = MutantRegistry("driver"), MutantRegistry("sqlite"), MutantRegistry("manager")
mutant = MANAGERS.mutant


# drivers


@DRIVERS.mutant((stores, "in_line"), by="test_D2_M1_tasks_are_handed_out_by_id_only")
def tasks_handed_to_workers(in_line: Any, queues: Sequence[str]) -> Sequence[str]:
    """A worker that names the queue of tasks is served from it."""
    return queues


@DRIVERS.mutant((Store, "_line_up_lapsed"), by="test_D2_M1_a_lapsed_task_is_taken_over_by_id_only")
def lapsed_tasks_handed_to_workers(line_up: Any, store: Store, now: datetime) -> None:
    """A lapsed task is handed out by reserve."""
    line_up(store, now)
    for job in store.jobs.values():
        if job.queue == TASKS and job.state is INFLIGHT and job.lease and job.lease.expires_at <= now:
            store._line.put(job.id, "q", job.priority, job.due_at, store._seq[job.id])


@DRIVERS.mutant((Store, "reserve"), by="test_D2_M1_the_queue_of_tasks_takes_no_share")
def tasks_claimed_and_dropped(reserve: Any, store: Store, queues: Sequence[str], *rest: Any) -> Any:
    """Tasks are left out of the answer, but not out of the claim."""
    now, lease_for, limit, worker, ids = rest
    if ids is not None or TASKS not in queues:
        return reserve(store, queues, *rest)
    taken = store._line.take(TASKS, now, limit // len(queues), lambda id: True)
    for id in taken:
        store._claim(store.jobs[id], now, now + lease_for, worker)
    return reserve(store, queues, now, lease_for, limit - len(taken), worker, ids)


@DRIVERS.mutant((Store, "next_due"), by="test_D13_M1_a_worker_is_not_woken_for_tasks")
def tasks_wake_workers(next_due: Any, store: Store, queues: Sequence[str]) -> Any:
    """The next due time may be that of a task."""
    due = [] if TASKS not in queues else [store._line.next_due(TASKS)]
    return min((time for time in (*due, next_due(store, queues)) if time is not None), default=None)


@SQLITE.mutant((sqlite_reserve, "in_line"), by="test_D2_M1_tasks_are_handed_out_by_id_only")
def sql_tasks_handed_to_workers(in_line: Any, queues: Sequence[str]) -> Sequence[str]:
    """A worker that names the queue of tasks is served from it."""
    return queues


@SQLITE.mutant((sqlite_inspection, "in_line"), by="test_D13_M1_a_worker_is_not_woken_for_tasks")
def sql_tasks_wake_workers(in_line: Any, queues: Sequence[str]) -> Sequence[str]:
    """The next due time may be that of a task."""
    return queues


# managers


@mutant((TaskManager, "acomplete"), by="a_namesake_owns_nothing")
async def token_taken_from_the_record(
    acomplete: Any, manager: TaskManager, id: str, worker: str, result: bytes | None = None
) -> Task:
    """The worker id alone may complete a task."""
    async with manager._lifecycle.store() as store:
        job = await store.find(id)
        if job.lease is not None and job.lease.worker == worker:
            manager._claims.take(job, store.now)
    done: Task = await acomplete(manager, id, worker, result)
    return done


@mutant((managers, "task_of"), by="attempts_are_claims")
def attempts_counted_at_fail(task_of: Any, job: JobRecord, now: datetime) -> Task:
    """The attempts shown are failures."""
    task: Task = task_of(job, now)
    return replace(task, attempts=job.attempts)


@mutant((rules, "decide"), by="lapsed_claims_use_attempts_up")
def only_failures_use_attempts_up(decide: Any, job: JobRecord, *rest: Any) -> Any:
    """A claim that ran out costs nothing."""
    return decide(replace(job, attempts=len(job.failures)), *rest)


@mutant((Claimer, "_taken"), by="lapsed_claims_use_attempts_up")
async def claimed_beyond_the_last_attempt(taken: Any, claimer: Claimer, store: TaskStore, job: JobRecord) -> Task:
    """A task that keeps killing its agents is handed out for ever."""
    done: Task = await taken(claimer, store, replace(job, max_attempts=None))
    return done


@mutant((managers, "is_spent"), by="no_retry_beyond_the_last_attempt")
def retried_beyond_the_last_attempt(is_spent: Any, job: JobRecord) -> bool:
    """A retry is granted when no attempts are left."""
    return False


@mutant((rules, "succeed"), by="ended_tasks_are_kept")
def completed_tasks_have_a_retention(
    succeed: Any, job: JobRecord, token: str, outcome: Any, until: datetime, *rest: Any
) -> Any:
    """A completed task is pruned some day."""
    return succeed(job, token, outcome, job.created_at + timedelta(days=365), *rest)


@mutant((rules, "decide"), by="ended_tasks_are_kept")
def failed_tasks_have_a_retention(decide: Any, job: JobRecord, outcome: Any, retry: Any, _: Any, *rest: Any) -> Any:
    """A failed task is pruned as any dead job."""
    return decide(job, outcome, retry, Retention(), *rest)


@mutant((checks, "stored_key"), by="keys_of_tasks_and_jobs_do_not_meet")
def keys_of_tasks_unmarked(stored_key: Any, key: str) -> str:
    """A job that has the key already is taken for the task."""
    return key


@mutant((tasks, "is_held"), by="a_lapsed_claim_is_pending")
def lapsed_claims_shown_as_claimed(is_held: Any, job: JobRecord, now: datetime) -> bool:
    """A claim never expires."""
    return job.state is INFLIGHT


@mutant((Claimer, "_extend"), by="a_claim_again_extends")
async def second_claim_counts_as_another_worker(extend: Any, claimer: Claimer, *rest: Any) -> bool:
    """A second claim by the same worker is refused."""
    return False


@mutant((Claims, "of"), by="a_complete_without_an_answer_can_be_repeated")
def claim_forgotten_before_its_end_is_known(of: Any, claims: Claims, id: str, worker: str) -> Any:
    """A call that failed on its way cannot be repeated."""
    job = of(claims, id, worker)
    if job is not None:
        claims.forget(id, token_of(job))
    return job


@mutant((TaskStore, "settle"), by="an_outsiders_retry_ends_the_claim")
async def refusal_taken_for_done(settle: Any, store: TaskStore, *rest: Any) -> Any:
    """A manager whose claim is over gets the answer that it has completed the task."""
    verdict = await settle(store, *rest)
    return "ok" if isinstance(verdict, LeaseError) else verdict


@mutant((Claimer, "claim_of"), by="a_wrong_token_is_wrong_in_its_own_manager")
async def token_ignored(claim_of: Any, claimer: Claimer, store: TaskStore, who: Caller) -> Any:
    """A manager acts by what it holds, whatever token it is given."""
    return await claim_of(claimer, store, who._replace(token=None))


@mutant((rules, "is_claim"), by="a_stale_token_is_void")
def stale_token_accepted(is_claim: Any, job: JobRecord, who: Caller) -> bool:
    """A token is good for any later claim of the same worker id."""
    return job.lease is not None and job.lease.worker == who.worker


@mutant((rules, "is_claim"), by="a_token_needs_its_worker_id")
def token_without_its_worker_id(is_claim: Any, job: JobRecord, who: Caller) -> bool:
    """A caller with the token may use any name."""
    return job.lease is not None and job.lease.token == who.token


@mutant((Claimer, "resume"), by="a_void_token_claims_nothing")
async def void_token_makes_a_claim(resume: Any, claimer: Claimer, store: TaskStore, who: Caller) -> Task:
    """A caller that continues a claim which is over gets a new one."""
    try:
        task: Task = await resume(claimer, store, who)
    except TaskNotClaimed:
        task = await claimer.claim(store, who._replace(token=None))
    return task


@mutant((Claimer, "resume"), by="a_claim_goes_on_elsewhere")
async def claim_by_token_not_kept(resume: Any, claimer: Claimer, store: TaskStore, who: Caller) -> Task:
    """A caller that continues a claim has to pass the token for ever."""
    task: Task = await resume(claimer, store, who)
    claimer.claims.drop(who.id)
    return task


@mutant((rules, "is_completed_by"), by="another_caller_gets_the_error_that_a_task_has_ended")
def complete_by_another_caller_accepted(is_completed_by: Any, job: JobRecord, *rest: Any) -> bool:
    """Any caller may complete a completed task."""
    return job.state is DONE


@mutant((rules, "is_failed_by"), by="another_caller_gets_the_error_that_a_task_has_ended")
def fail_by_another_caller_accepted(is_failed_by: Any, job: JobRecord, *rest: Any) -> bool:
    """Any caller may fail a failed task."""
    return job.state is DLQ or bool(is_failed_by(job, *rest))


@mutant((rules, "is_completed_by"), by="another_caller_gets_the_error_that_a_task_has_ended")
def result_outweighs_a_void_token(is_completed_by: Any, job: JobRecord, who: Caller, *rest: Any) -> bool:
    """A token that never completed the task does no harm if the result is the same."""
    return bool(is_completed_by(job, who._replace(token=None), *rest))


@mutant((rules, "_has_settled"), by="an_end_can_be_repeated_by_its_token")
def ends_not_known_by_their_token(has_settled: Any, *rest: Any) -> bool:
    """A caller that repeats a call without an answer is not recognised."""
    return False


@mutant((rules, "is_failed_by"), by="an_outsiders_retry_ends_the_claim")
def retry_taken_for_a_failure(is_failed_by: Any, job: JobRecord, who: Caller, *rest: Any) -> bool:
    """Any put-back under a token counts as the holder's own failure."""
    return job.settled_token == who.token


@mutant((JobBuilder, "managed"), by="a_cancelled_task_keeps_its_key")
def key_freed_on_cancel(managed: Any, builder: JobBuilder, *given: Any) -> NewJob:
    """A task is cancelled as any job is."""
    job: NewJob = managed(builder, *given)
    return replace(job, kept=False)


@mutant((managers, "task_of"), by="only_claim_returns_the_token")
def token_leaked_by_get_and_list(task_of: Any, job: JobRecord, now: datetime) -> Task:
    """Reading a claimed task returns its token."""
    task: Task = task_of(job, now)
    return replace(task, claim_token=None if job.lease is None else job.lease.token)


@mutant((Task, "__rich_repr__"), by="only_claim_returns_the_token")
def token_leaked_by_repr(rich_repr: Any, task: Task) -> Any:
    """A logged task shows its token."""
    return [(name, getattr(task, name)) for name in task.__struct_fields__]


@mutant((managers, "task_of"), by="the_last_claim_leaves_its_trace")
def trace_lost(task_of: Any, job: JobRecord, now: datetime) -> Task:
    """The worker of a task is known only while it works."""
    task: Task = task_of(job, now)
    return task if task.status == "claimed" else replace(task, claimed_by=None)


@mutant((tasks, "task_of"), (managers, "task_of"), by="a_heartbeat_returns_an_operators_request")
def dead_letter_request_not_returned(task_of: Any, job: JobRecord, now: datetime) -> Task:
    """A heartbeat returns a cancel request, but no dead-letter request."""
    task: Task = task_of(job, now)
    return replace(task, cancel_requested=task.cancel_requested and job.stop_reason is None)


@mutant((tasks, "_ended_by_hand"), by="a_heartbeat_returns_an_operators_request")
def reason_of_a_dead_letter_lost(ended_by_hand: Any, job: JobRecord, now: datetime) -> str | None:
    """A task that an operator dead-lettered does not say why it failed."""
    return None


@mutant((TaskStore, "_get"), by="an_ordinary_job_is_not_a_task")
async def any_job_is_a_task(get: Any, store: TaskStore, id: str) -> Any:
    """A manager claims whatever has an id."""
    (job,) = await store._inspect.get([id])
    return job


@mutant((TaskStore, "claim"), by="a_wrong_clock_hides_no_task")
async def tasks_have_a_schedule(claim: Any, store: TaskStore, job: JobRecord, worker: str, lease: timedelta) -> Any:
    """A task submitted by a clock ahead has to wait for it."""
    claimed = await store._driver.reserve([], store.now, lease, 1, worker, [job.id])
    return claimed[0] if claimed else None


@mutant((TaskManager, "asubmit"), by="many_submitters_of_one_key_make_one_task")
async def submit_looks_then_stores(
    asubmit: Any, manager: TaskManager, payload: bytes, *, idempotency_key: str | None = None
) -> Any:
    """The key is looked up, and then the task is stored."""
    async with manager._lifecycle.harbor.client.store() as driver:
        known = await capability(driver, Inspect).find_key(str(idempotency_key), manager._lifecycle.session.now())
    return known or await asubmit(manager, payload)


@mutant((launcher, "in_line"), by="a_drain_ends_beside_tasks")
def drain_works_on_tasks(in_line: Any, queues: Sequence[str]) -> Sequence[str]:
    """A drain asks for every queue there is."""
    return queues
