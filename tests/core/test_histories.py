"""Random lives of a job, decided and written step by step, against the counts as the contract words them."""

from __future__ import annotations

from datetime import timedelta
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from taskharbor.core.decide import MAX_UNKNOWN_PUT_BACKS, Retention, admit, decide
from taskharbor.core.evolve import claimed, enqueued, settled
from taskharbor.core.job import KEPT_FAILURES, JobRecord
from taskharbor.core.outcome import Failed, Interrupted, NotRegistered, Outcome, Snoozed
from taskharbor.core.retry import Retry
from taskharbor.core.states import State

from .make import NOW, new_job

STEPS: dict[str, Outcome] = {
    "failure": Failed("ValueError", "boom"),
    "snooze": Snoozed(1),
    "stop": Interrupted(),
    "unknown": NotRegistered(),
}
DIES = "crash"
RETENTION = Retention()
LEASE = timedelta(seconds=30)

lives = st.lists(st.sampled_from([*STEPS, DIES]), max_size=60)
limits = st.none() | st.integers(1, 25)


def claim(job: JobRecord) -> JobRecord:
    """The next claim, or the reclaim of a job whose worker died."""
    return claimed(job, f"token-{job.version}", NOW, NOW + LEASE, "w1")


def ran(job: JobRecord, step: str) -> JobRecord:
    """A claimed job after one run."""
    if step == DIES:
        return claim(job)
    return settled(job, decide(job, STEPS[step], Retry(), RETENTION, NOW, Random(0)), NOW)


def in_a_row(life: list[str], what: str, ended_by: tuple[str, ...]) -> int:
    """How often `what` happened since the last of `ended_by`."""
    count = 0
    for step in life:
        count = 0 if step in ended_by else count + (step == what)
    return count


@given(lives, limits, limits)
def test_counts_follow_the_contract_through_any_life(
    life: list[str], max_attempts: int | None, max_crashes: int | None
) -> None:
    """W, F1, F6, F8, F10: attempts are recorded failures, crashes and put-backs are those in a row."""
    job = enqueued(new_job(max_attempts=max_attempts, max_crashes=max_crashes), NOW, unmet=0)
    lived: list[str] = []
    for step in life:
        job = claim(job) if job.state is State.READY else job
        if (end := admit(job, RETENTION, NOW)) is not None:
            job = settled(job, end, NOW)
            assert job.dlq_reason == "crash_loop"
            assert job.crashes == max_crashes
            break
        job = ran(job, step)
        lived.append(step)
        if job.state is State.DLQ:
            break
        assert job.attempts == lived.count("failure")
        assert job.crashes == in_a_row(lived, DIES, ("failure", "snooze"))
        assert job.unknown_put_backs == in_a_row(lived, "unknown", ("failure", "snooze"))
        assert job.unknown_put_backs <= MAX_UNKNOWN_PUT_BACKS
        assert max_attempts is None or job.attempts < max_attempts
    assert job.attempts == lived.count("failure") <= (max_attempts or len(life))
    assert [failure.message for failure in job.failures].count("boom") <= KEPT_FAILURES
    assert (job.dlq_reason == "max_attempts") is (job.attempts == max_attempts)


@given(st.integers(1, 40))
def test_exactly_max_attempts_failures_lead_to_the_dlq(max_attempts: int) -> None:
    """F1, F3: the last failure included; the history keeps the newest 20 in order."""
    job = enqueued(new_job(max_attempts=max_attempts), NOW, unmet=0)
    for failures in range(max_attempts):
        assert job.state is State.READY
        assert job.attempts == failures
        job = ran(claim(job), "failure")
    assert job.state is State.DLQ
    kept = [failure.attempt for failure in job.failures]
    assert kept == list(range(1, max_attempts + 1))[-KEPT_FAILURES:]


def test_exactly_thirty_put_backs_in_a_row_are_allowed() -> None:
    """F8: the next one is the dead letter."""
    job = enqueued(new_job(), NOW, unmet=0)
    for _ in range(MAX_UNKNOWN_PUT_BACKS):
        job = ran(claim(job), "unknown")
        assert job.state is State.READY
    assert ran(claim(job), "unknown").dlq_reason == "unknown_task"


def test_exactly_five_crashes_in_a_row_are_allowed() -> None:
    """F6: the sixth claim is not run."""
    job = claim(enqueued(new_job(), NOW, unmet=0))
    for _ in range(5):
        assert admit(job, RETENTION, NOW) is None
        job = ran(job, DIES)
    assert admit(job, RETENTION, NOW) is not None
