"""What a worker tells about its work: log records with stable names, and totals per minute.

Loggers are `taskharbor.*`; nothing here configures handlers. `JobFilter` puts job id, task and attempt on every record
that is logged inside a job, by anybody.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from taskharbor.core.job import JobRecord
from taskharbor.core.outcome import Failed, Outcome, Succeeded
from taskharbor.core.states import State
from taskharbor.core.transition import Ack, Cancel, Fail, PutBack, Transition
from taskharbor.driver import Tally
from taskharbor.runtime.context import running
from taskharbor.runtime.keeper import Held

logger = logging.getLogger("taskharbor.worker")
SECOND = timedelta(seconds=1)
TallyKey = tuple[datetime, str, str, str]


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


class Observer:
    """Counts and logs what became of each run."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._totals: dict[TallyKey, list[float]] = defaultdict(lambda: [0, 0.0])
        self.finished = 0

    def settled(self, entries: Sequence[tuple[Held, Transition]]) -> None:
        """Note outcomes that the store has accepted."""
        now = self._now()
        minute = now.replace(second=0, microsecond=0)
        quiet = not logger.isEnabledFor(logging.INFO)
        totals: dict[tuple[str, str, str], list[float]] = {}  # of these alone: hashing the minute each time costs
        for held, to in entries:
            job, started = held.job, held.started_at
            outcome = "done" if type(to) is Ack else _outcome(job, to)
            key = job.queue, job.type, outcome
            total = totals.get(key)
            if total is None:
                total = totals[key] = self._totals[minute, *key]
            total[0] += 1
            if started is not None:
                total[1] += (now - started) / SECOND
                self.finished += 1
            elif not isinstance(to, PutBack):
                self.finished += 1
            if not (quiet and outcome == "done"):
                _tell(outcome, job, to)

    def take_tallies(self) -> list[Tally]:
        """The totals since the last call."""
        totals, self._totals = self._totals, defaultdict(lambda: [0, 0.0])
        return [Tally(*key, int(count), seconds) for key, (count, seconds) in totals.items()]

    def give_back(self, tallies: list[Tally]) -> None:
        """Keep totals that the store did not take for the next time."""
        for tally in tallies:
            total = self._totals[(tally.minute, tally.queue, tally.task, tally.outcome)]
            total[0] += tally.count
            total[1] += tally.seconds


def tell_too_late(job: JobRecord, ack: Ack, outcome: Outcome) -> None:
    """Say what is lost of a run whose transaction had made its job done before."""
    if isinstance(outcome, Succeeded) and outcome.result in (None, ack.result):
        return
    lost = "returned a result: give it inside, by current().set_result(…)"
    if isinstance(outcome, Failed):
        lost = f"failed: {outcome.kind}: {outcome.message}"
    elif not isinstance(outcome, Succeeded):
        lost = "was interrupted"
    fields = {"event": "job.too_late", "job_id": job.id, "task": job.type, "attempt": job.attempts + 1}
    message = "job.too_late: job %s (%s) is done by its transaction; after that its handler %s"
    logger.warning(message, job.id, job.type, lost, extra=fields)


def _tell(outcome: str, job: JobRecord, to: Transition) -> None:
    level, event = _EVENTS[outcome]
    if not logger.isEnabledFor(level):
        return
    fields = {"event": event, "job_id": job.id, "task": job.type, "attempt": job.attempts + 1}
    with suppress(Exception):  # such as a log filter of the application: what is settled would be counted again
        logger.log(level, "%s: job %s (%s)%s", event, job.id, job.type, _detail(to), extra=fields)


def _outcome(job: JobRecord, to: Transition) -> str:
    match to:
        case Ack():
            return State.DONE.value
        case Fail():
            return State.DLQ.value
        case Cancel():
            return State.CANCELLED.value
        case PutBack():
            return "retried" if to.attempts > job.attempts else "released"


def _detail(to: Transition) -> str:
    match to:
        case Fail():
            return f", {to.reason}: {to.last_error}"
        case PutBack():
            why = "no task of this name here" if to.unknown_put_backs else to.last_error
            return f", again at {to.run_at.isoformat()}" + (f": {why}" if why else "")
        case _:
            return ""


_EVENTS = {
    "done": (logging.INFO, "job.succeeded"),
    "dlq": (logging.ERROR, "job.dead"),
    "cancelled": (logging.INFO, "job.cancelled"),
    "retried": (logging.WARNING, "job.retrying"),
    "released": (logging.INFO, "job.released"),
}
