"""The decider: turns the outcome of each run into the transition to write: done, retried, dead or cancelled.

The rules are in `core.decide`; this adds the retry policy of the task, the clock and the randomness.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from taskharbor.client.registered_task import Registered
from taskharbor.client.session import Session
from taskharbor.core.decide import admit, dead_by_hand, decide, later, succeed
from taskharbor.core.job import JobRecord
from taskharbor.core.outcome import Outcome, Succeeded
from taskharbor.core.transition import Ack, Fail, Increment, PutBack, Transition
from taskharbor.worker.running import JobRun

Settlement = tuple[JobRun, Transition]
Pending = tuple[JobRun, Transition | Succeeded]


class Decider:
    """Knows the retry policies of the tasks, and how long records are kept."""

    def __init__(self, session: Session, tasks: Mapping[str, Registered]) -> None:
        self._now = session.now
        self._rng = session.rng
        self._retention = session.settings.retention
        self._default_retry = session.settings.retry
        self._tasks = tasks

    def admit(self, job: JobRecord) -> Fail | None:
        """The end of a claimed job that has killed too many workers, None if it may run (F6)."""
        return admit(job, self._retention, self._now())

    def decide(self, run: JobRun, outcome: Outcome, not_before: float = 0.0) -> Transition:
        """The transition for an outcome; a job that is put back is not due within `not_before` seconds."""
        job = run.job
        if run.started_at is not None:
            job = replace(job, started_at=run.started_at)
        task = self._tasks.get(job.type)
        retry = task.retry if task else self._default_retry
        now = self._now()
        to = decide(job, outcome, retry, self._retention, now, self._rng)
        if not_before and isinstance(to, PutBack):
            to = replace(to, run_at=max(to.run_at, later(now, not_before)))
        return dead_by_hand(to) if run.stop == "dead_letter" else to

    def decide_successes(self, pending: Iterable[Pending]) -> list[Settlement]:
        """Decide the successes among these, at one time. The others are decided: a repeated settle must not change."""
        keep_until = later(self._now(), self._retention.done)
        settled: list[Settlement] = []
        like: Increment | None = None
        for run, to in pending:
            if isinstance(to, Succeeded):
                to = succeed(run.job, run.lease.token, to, keep_until, run.started_at, like)
                like = to.increment
            settled.append((run, to))
        return settled

    def acknowledge(self, run: JobRun) -> Ack:
        """The Ack of a handler that ends in its own transaction: a success now, with its effects."""
        keep_until = later(self._now(), self._retention.done)
        success = Succeeded(run.effects.result, run.effects.new_jobs)
        return succeed(run.job, run.lease.token, success, keep_until, run.started_at)
