"""Why a job is where it is: one answer for people, from what the store says about the job and its surroundings.

Pure: `Facts` are collected by `harbor.admin.jobs.why`, and commands and pages show the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from shlex import quote

from msgspec import Struct

from taskharbor.client.liveness import absence, listening, retrying, silent, tally, unknown_task
from taskharbor.core.decide import by_hand, is_suspect
from taskharbor.core.durations import ago, count, length
from taskharbor.core.job import JobRecord
from taskharbor.core.reserved import TASKS
from taskharbor.core.shown import last_run, overrun_since, shown, spread_of
from taskharbor.core.states import Shown, State
from taskharbor.driver import Parent, WorkerRecord

NAMED = 3
FAR = timedelta(hours=1)


class Facts(Struct, frozen=True, kw_only=True):
    """A job, whether its queue is paused, the live workers, and what it depends on."""

    job: JobRecord
    now: datetime
    paused: bool = False
    workers: Sequence[WorkerRecord] = ()
    parents: Sequence[Parent] = ()


class Why(Struct, frozen=True):
    """A cause with a stable code, one sentence about it, and the command that helps, if one does."""

    code: str
    text: str
    fix: str | None = None


def why(facts: Facts) -> Why:
    """The cause that an operator should see first."""
    cause = _CAUSES.get(shown(facts.job, facts.now), _inflight)
    return cause(facts)


def _inflight(facts: Facts) -> Why:
    job, now = facts.job, facts.now
    lease = job.lease
    if lease is None or lease.expires_at <= now:
        return _lapsed(facts)
    if (since := overrun_since(job, now)) is not None:
        return Why(
            "overrun",
            f"past its timeout of {length(job.timeout or 0)} for {_for(since, now)}: {lease.worker} still runs it"
            f"{_asked_to_stop(job)}",
            f"restart worker {lease.worker}: a handler that ignores its cancellation ends with its process",
        )
    doing = "is about to run it" if job.started_at is None else f"has been running it for {_for(job.started_at, now)}"
    until = f"its lease lasts until {lease.expires_at:%H:%M:%S} UTC, and is renewed while the worker lives"
    if job.queue != TASKS and lease.worker not in {worker.id for worker in facts.workers}:
        until = f"that worker has not reported lately: if it is gone, the job is due again {ago(lease.expires_at, now)}"
    code = "claimed" if job.started_at is None else "running"
    return Why(code, f"{lease.worker} {doing}{_asked_to_stop(job)}; {until}")


def _asked_to_stop(job: JobRecord) -> str:
    if job.stop_requested_at is None:
        return ""
    return ", and was asked to stop" if job.stop_reason is None else f", and is to be dead-lettered ({job.stop_reason})"


def _lapsed(facts: Facts) -> Why:
    job = facts.job
    holder = "its worker" if job.lease is None else job.lease.worker
    when = "" if job.lease is None else f" {ago(job.lease.expires_at, facts.now)}"
    lost = f"the lease of {holder} ran out{when}"
    if job.stop_requested_at is not None:
        end = "cancels it" if job.stop_reason is None else f"dead-letters it ({job.stop_reason})"
        return Why("lapsed", f"{lost}, and it was asked to stop: a worker's upkeep {end}")
    reason = _in_line(facts)
    code = "lapsed" if reason.code in ("in_line", "busy") else reason.code
    return Why(code, f"{lost}; {reason.text}", reason.fix)


def _in_line(facts: Facts) -> Why:
    """Why a due job is not running."""
    job = facts.job
    if facts.paused:
        return Why("paused", f"queue {job.queue} is paused", f"taskharbor queues resume {quote(job.queue)}")
    if job.expires_at is not None and job.expires_at <= facts.now:
        return Why("expired", f"it expired {ago(job.expires_at, facts.now)}: a worker's upkeep ends it")
    if job.queue == TASKS:
        return Why("task", "a TaskManager's task: it waits until an agent claims it by its id")
    if (missing := absence(facts.workers, job.queue, facts.now)) is not None:
        alone = all(worker.stopping or silent(worker, facts.now) for worker in facts.workers)
        return Why(*missing, _start(None if alone else job.queue))
    if (unknown := unknown_task(job)) is not None:
        return _unknown(f"{unknown}; it is due for the next try")
    if is_suspect(job):
        return Why("suspect", f"{job.crashes} crashes in a row: it waits for a worker that runs nothing beside it")
    listeners = listening(facts.workers, job.queue, facts.now)
    number, late = count(len(listeners), "worker"), sum(worker.overruns for worker in listeners)
    hangs = f", with {count(late, 'run')} past the timeout" if late else ""
    look = "taskharbor jobs ls state:running" if late else None
    if all(worker.busy >= worker.slots for worker in listeners):
        return Why(
            "busy", f"every slot of the {number} on queue {job.queue} is busy{hangs}", look or "start more workers"
        )
    return Why("in_line", f"it waits for its turn; {number} on queue {job.queue}{hangs}", look)


def _start(queue: str | None) -> str:
    """The command that starts a worker: on all queues if there is no other worker, else on this one."""
    return f"taskharbor worker MODULE:HARBOR{'' if queue is None else f' -Q {quote(queue)}'}"


def _scheduled(facts: Facts) -> Why:
    job, now = facts.job, facts.now
    then = ago(job.due_at, now) + (f", if queue {job.queue} is resumed by then" if facts.paused else "")
    if (unknown := unknown_task(job)) is not None:
        return _unknown(f"{unknown}; the next try is {then}")
    sooner = None if job.queue == TASKS else f"taskharbor jobs run-now {quote(job.id)}"
    if (failed := retrying(job, then)) is not None:
        return Why("retry", failed, sooner)
    fix = sooner if job.due_at - now >= FAR else None
    if job.version:
        return Why("put_back", f"put back without a failure; the next run is {then}", fix)
    return Why("scheduled", f"not due before {job.due_at:%Y-%m-%d %H:%M:%S} UTC, {then}", fix)


def _unknown(text: str) -> Why:
    return Why(
        "unknown_task",
        text,
        "look for a typo in the name; make the workers import the task's module (--include MODULE); or deploy the code "
        "that has this task",
    )


def _waiting(facts: Facts) -> Why:
    unmet = [parent for parent in facts.parents if not parent.satisfied]
    stuck = [parent for parent in unmet if parent.state in (State.DLQ, State.CANCELLED)]
    of = f"{len(unmet):,} of {count(len(facts.parents), 'job')}"
    if stuck:
        first = stuck[0]
        error = f" ({first.error})" if first.error else ""
        more = f", and {len(stuck) - 1:,} more like it" if len(stuck) > 1 else ""
        dead = "dead" if first.state is State.DLQ else "cancelled"
        workflow = facts.job.workflow_id
        replay = f"jobs replay {quote(first.id)}" if workflow is None else f"workflows replay {quote(workflow)}"
        return Why("held", f"it waits for {of}, and {first.id} is {dead}{error}{more}", f"taskharbor {replay}")
    named = ", ".join(f"{parent.id} ({_plain(parent.state)})" for parent in unmet[:NAMED])
    return Why("waiting", f"it waits for {of}: {named}{' …' if len(unmet) > NAMED else ''}")


def _plain(state: State) -> str:
    return "running" if state is State.INFLIGHT else state.value


def _dead(facts: Facts) -> Why:
    job = facts.job
    when = "" if job.completed_at is None else f" {ago(job.completed_at, facts.now)}"
    fix = None if job.queue == TASKS else f"taskharbor jobs replay {quote(job.id)}"
    if (reason := by_hand(job)) is not None:
        last = f"; its last error was {job.last_error}" if job.last_error else ""
        return Why("dead", f"dead-lettered by hand{when}: {reason}{last}", fix)
    if job.dlq_reason == "max_attempts":
        spread = spread_of(job.failures)
        over = "" if spread is None else f" over {length(spread.total_seconds())}"
        return Why(
            "dead", f"dead-lettered{when}: failed {tally(job.attempts, job.max_attempts)}{over}: {job.last_error}", fix
        )
    error = f": {job.last_error}" if job.last_error else ""
    if job.dlq_reason == "crash_loop":
        fix = f"find out why its workers died (out of memory, a crash in C code), then {fix}"
    return Why("dead", f"dead-lettered{when} ({job.dlq_reason}){error}", fix)


def _done(facts: Facts) -> Why:
    job = facts.job
    when = "" if job.completed_at is None else f" {ago(job.completed_at, facts.now)}"
    ran = last_run(job)
    took = "" if ran is None else f" and took {length(ran.total_seconds())}"
    by = f" by {job.worker}" if job.worker else ""
    return Why("done", f"finished{when}{by}{took}")


def _cancelled(facts: Facts) -> Why:
    job = facts.job
    when = "" if job.completed_at is None else f" {ago(job.completed_at, facts.now)}"
    expired = job.expires_at is not None and job.completed_at is not None and job.expires_at <= job.completed_at
    return Why("cancelled", f"cancelled{when}{': it expired before it could run' if expired else ''}")


_CAUSES: dict[Shown, Callable[[Facts], Why]] = {
    Shown.SCHEDULED: _scheduled,
    Shown.READY: _in_line,
    Shown.WAITING: _waiting,
    Shown.DONE: _done,
    Shown.DLQ: _dead,
    Shown.CANCELLED: _cancelled,
}


def _for(since: datetime, now: datetime) -> str:
    return length((now - since).total_seconds())
