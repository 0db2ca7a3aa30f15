"""The log of outcomes: a record for each settled run. `JobFilter` adds the job to all records logged inside a run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from taskharbor.core.decide import is_suspect
from taskharbor.core.durations import length
from taskharbor.core.job import JobRecord
from taskharbor.core.outcome import Failed, Outcome, Succeeded
from taskharbor.core.shown import spread_of
from taskharbor.core.states import State
from taskharbor.core.transition import Ack, Cancel, Fail, PutBack, Transition
from taskharbor.errors import LeaseError
from taskharbor.worker.context import running
from taskharbor.worker.job_log import log_job
from taskharbor.worker.running import JobRun, Stop
from taskharbor.worker.stacks import own_frames

logger = logging.getLogger("taskharbor.worker")
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
# Most outages last longer than this: if all attempts fell within it, the log suggests a more patient policy.
HASTY = 60.0
MOST_UNKNOWN = 1000
UNKNOWN = (
    "task.unknown: put back a job of task %r%s, which this worker does not know. Likely causes: its module was not "
    "imported (--include, or include in [tool.taskharbor]), this worker runs other code than the enqueuer (a deploy "
    "under way), the task was renamed, or another application uses the same store"
)


class JobFilter(logging.Filter):
    """Adds `job_id`, `task` and `attempt` to log records; `-` outside of jobs. Put it on a handler."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let everything pass, with the three fields set."""
        if not hasattr(record, "job_id"):
            context = running()
            record.job_id = context.id if context else "-"
            record.task = context.task if context else "-"
            record.attempt = context.attempt if context else "-"
        return True


class OutcomeLog:
    """Logs the outcome of each run, and counts runs for the worker itself; totals are the store's (D9)."""

    def __init__(self) -> None:
        self._unknown: dict[str, tuple[datetime, int]] = {}
        self.finished = 0
        self.outcomes = 0

    def settled(self, entries: Sequence[tuple[JobRun, Transition]], now: datetime) -> None:
        """Log outcomes that the store has accepted; `now` is the time of their settle."""
        self.outcomes += len(entries)
        quiet = not logger.isEnabledFor(logging.INFO)
        self.finished += len(entries)
        for run, to in entries:
            if not quiet or type(to) is not Ack:  # nearly all are
                self._log(run, to, now)

    def _log(self, run: JobRun, to: Transition, now: datetime) -> None:
        if run.started_at is None and isinstance(to, PutBack):  # it was put back without a run
            self.finished -= 1
        outcome = _outcome(run.job, to, run.stop)
        _log_outcome(outcome, run, to, now)
        if outcome == "released" and to.unknown_put_backs > run.job.unknown_put_backs:
            self._warn_unknown(run.job.type, now)

    def _warn_unknown(self, task: str, now: datetime) -> None:
        """Warn of a task that is not registered here: at once, then once a minute with the number of put-backs."""
        warned, since = self._unknown.get(task, (None, 0))
        if warned is not None and now - warned < MINUTE:
            self._unknown[task] = warned, since + 1
            return
        if len(self._unknown) >= MOST_UNKNOWN:
            self._unknown.clear()
        self._unknown[task] = now, 0
        times = f" ({since + 1} times since the last warning)" if since else ""
        fields = {"event": "task.unknown", "unknown_task": task, "count": since + 1}
        with suppress(Exception):  # such as a log filter of the application
            logger.warning(UNKNOWN, task, times, extra=fields)

    def refused(self, run: JobRun, to: Transition, why: LeaseError, stored: JobRecord | None) -> None:
        """Log that the store refused an outcome, and what it holds instead (D8). Nothing of `to` happened."""
        job, wanted = run.job, _EVENTS[_outcome(run.job, to, run.stop)][1]
        if stored is not None and stored.settled_token == run.lease.token:
            if stored.state is State.DONE:
                self.outcomes += 1
                self.finished += 1
            detail = f"stored as {stored.state} by this run before {wanted}"
            log_job(logger, logging.WARNING, "job.too_late", job, detail)
        else:
            log_job(logger, logging.WARNING, "lease.lost", job, f"{wanted} was refused: {why}")


def log_too_late(job: JobRecord, ack: Ack, outcome: Outcome) -> None:
    """Log what is lost of a run whose own transaction had already made its job done."""
    if isinstance(outcome, Succeeded) and outcome.result in (None, ack.result):
        return
    lost = "returned a result: give it inside, by current().set_result(…)"
    if isinstance(outcome, Failed):
        lost = f"failed: {outcome.kind}: {outcome.message}"
    elif not isinstance(outcome, Succeeded):
        lost = "was interrupted"
    traceback = outcome.traceback if isinstance(outcome, Failed) else None
    detail = f"is done by its transaction; after that its handler {lost}"
    log_job(logger, logging.WARNING, "job.too_late", job, detail, traceback=traceback)


def _log_outcome(outcome: str, run: JobRun, to: Transition, now: datetime) -> None:
    level, event = _EVENTS[outcome]
    if not logger.isEnabledFor(level):
        return
    job = run.job
    failed = outcome in ("dlq", "retried", "crashed")
    duration = None if run.started_at is None else (now - run.started_at) / SECOND
    spread = spread_of(to.failures) if failed else None
    detail = "" if duration is None else f"after {length(duration)}"
    traceback = None
    if isinstance(to, Fail):
        detail = _joined(f"{to.reason} {detail}".strip(), _spread(to, spread)) + f": {to.last_error}"
    elif isinstance(to, PutBack):
        again = to.run_at - now
        when = f"again in {length(again / SECOND)}" if again > timedelta(0) else "again at once"
        if failed:
            detail = _joined(detail, "" if outcome == "crashed" else _spread(to, spread), when) + f": {to.last_error}"
        elif outcome == "by_hand":
            detail = _joined("by hand", detail)
        else:
            unknown = to.unknown_put_backs > job.unknown_put_backs
            # Not started and a suspect (F6b): the quarantine lets it wait until it can run alone.
            crashes = f"{job.crashes} crashes in a row" if duration is None and is_suspect(job) else ""
            detail = _joined("no task of this name here" if unknown else "", crashes, detail, when)
    if failed and to.failures:
        whole = to.failures[-1].traceback
        traceback = own_frames(whole) if outcome == "retried" else whole  # the whole one is in the store
    fields = {"duration": duration, "spread": None if spread is None else spread / SECOND}
    log_job(logger, level, event, job, detail, traceback=traceback, **fields)


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _spread(to: Transition, spread: timedelta | None) -> str:
    """Over what time the attempts were spread, with the policy that lasts longer if that was seconds (F2)."""
    if spread is None:
        return ""
    seconds = spread / SECOND
    last = to.failures[-1] if to.failures else None
    # A run stopped by its timeout has no traceback. Longer pauses do not help a slow task.
    timed_out = last is not None and last.kind == "TimeoutError" and not last.traceback
    hasty = isinstance(to, Fail) and to.reason == "max_attempts" and seconds < HASTY and not timed_out
    hint = " (retry=Retry.patient() with max_attempts=20 lasts hours)" if hasty else ""
    return f"{to.attempts} failures within {length(seconds)}{hint}"


def _outcome(job: JobRecord, to: Transition, stop: Stop | None) -> str:
    if not isinstance(to, PutBack):
        return _ENDS[type(to)]
    if to.attempts > job.attempts:
        return "retried"
    if to.crashes > job.crashes:
        return "crashed"
    return "by_hand" if stop == "dead_letter" else "released"


_ENDS: dict[type[Transition], str] = {Ack: "done", Fail: "dlq", Cancel: "cancelled"}
_EVENTS = {
    "done": (logging.INFO, "job.succeeded"),
    "dlq": (logging.ERROR, "job.dead"),
    "cancelled": (logging.INFO, "job.cancelled"),
    "retried": (logging.WARNING, "job.retrying"),
    "crashed": (logging.WARNING, "job.crashed"),
    "released": (logging.INFO, "job.released"),
    "by_hand": (logging.WARNING, "job.dead"),
}
