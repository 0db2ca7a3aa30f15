"""One outcome of one job: the transition, with every field it carries."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from taskharbor.core.decide import (
    MAX_UNKNOWN_PUT_BACKS,
    Retention,
    admit,
    by_hand,
    crashed,
    dead_by_hand,
    dead_letter,
    decide,
    is_suspect,
    later,
    succeed,
)
from taskharbor.core.job import KEPT_FAILURES, LAST_MOMENT, JobRecord
from taskharbor.core.outcome import (
    CancelledByRequest,
    Crashed,
    Deferred,
    Failed,
    Interrupted,
    NotRegistered,
    Outcome,
    Snoozed,
    Succeeded,
    timed_out,
)
from taskharbor.core.retry import Retry
from taskharbor.core.states import State
from taskharbor.core.text import ERROR_LIMIT
from taskharbor.core.transition import Ack, Cancel, Fail, Increment, PutBack, Transition
from taskharbor.errors import Unrecoverable

from .make import NOW, SECOND, claimed, moments, new_job, record, records, texts

RETENTION = Retention(done=timedelta(hours=1), dead=timedelta(days=1))
BOOM = Failed("ValueError", "boom", "Traceback …")

held = records({State.INFLIGHT})
retryable = records({State.INFLIGHT}, max_attempts=st.none())
delays = st.floats(0, 1e6)
after_retention = st.timedeltas(RETENTION.dead, timedelta(days=999)).map(lambda by: NOW + by)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Succeeded, st.none() | st.binary(max_size=5), st.just((new_job(id="next"),))),
    st.builds(Failed, texts, texts, texts, st.none() | texts, st.none() | delays),
    st.builds(Snoozed, delays),
    st.builds(Deferred, delays),
    st.builds(Crashed, texts),
    st.sampled_from([Interrupted(), Interrupted(started=True), NotRegistered(), CancelledByRequest()]),
)


def decided(job: JobRecord, outcome: Outcome, retry: Retry | None = None, now: datetime = NOW) -> Transition:
    """The decision under a seed."""
    return decide(job, outcome, retry or Retry(), RETENTION, now, Random(0))


@given(held, outcomes, moments)
def test_every_transition_names_its_job_and_its_lease(job: JobRecord, outcome: Outcome, now: datetime) -> None:
    """D9, F10: fenced by the token, kept for its retention, with no more than the last 20 failures."""
    to = decided(job, outcome, now=now)
    assert job.lease is not None
    assert (to.id, to.token) == (job.id, job.lease.token)
    assert to.keep_until >= later(now, RETENTION.dead if isinstance(to, Fail) else RETENTION.done)
    assert len(to.failures) <= KEPT_FAILURES


@given(held, outcomes)
def test_outcomes_other_than_failures_leave_the_history_alone(job: JobRecord, outcome: Outcome) -> None:
    """D9, F4: attempts, last error and failures are carried over complete, not left to the driver."""
    to = decided(job, outcome)
    if not isinstance(outcome, Failed | Crashed) and not isinstance(to, Fail):
        assert (to.attempts, to.last_error, to.failed_at) == (job.attempts, job.last_error, job.failed_at)
        assert to.failures == job.failures


@given(held, outcomes)
def test_only_a_success_enqueues_new_jobs(job: JobRecord, outcome: Outcome) -> None:
    """D9: what a handler enqueued before it failed is not stored."""
    assert decided(job, outcome).new_jobs == (outcome.new_jobs if isinstance(outcome, Succeeded) else ())


@given(held, st.none() | st.binary())
def test_success_is_acknowledged(job: JobRecord, result: bytes | None) -> None:
    """D9: with its result; the counts of crashes and put-backs end."""
    to = decided(job, Succeeded(result))
    assert isinstance(to, Ack)
    assert to.result == result
    assert (to.crashes, to.unknown_put_backs) == (0, 0)


@given(held, held)
def test_a_success_shares_the_increment_of_one_that_adds_the_same(job: JobRecord, other: JobRecord) -> None:
    """D9: and only of such a one."""
    like = succeed(other, "t", Succeeded(None), NOW, NOW).increment
    to = succeed(job, "t", Succeeded(None), NOW, NOW, like)
    assert to == succeed(job, "t", Succeeded(None), NOW, NOW)
    assert to.increment == Increment(job.queue, job.type, "done", job.due_at)
    assert (to.increment is like) == (to.increment == like)


@given(held)
def test_a_failure_counts_one_attempt(job: JobRecord) -> None:
    """F1, F10: attempts + 1, and the run keeps its error as the newest failure."""
    to = decided(job, BOOM)
    assert job.lease is not None
    assert to.attempts == job.attempts + 1
    assert (to.last_error, to.failed_at) == ("ValueError: boom", NOW)
    newest = to.failures[-1]
    assert (newest.attempt, newest.kind, newest.message, newest.traceback) == (
        to.attempts,
        "ValueError",
        "boom",
        "Traceback …",
    )
    assert (newest.failed_at, newest.started_at, newest.worker) == (NOW, job.started_at, job.lease.worker)
    assert to.failures[:-1] == job.failures[-KEPT_FAILURES + 1 :]


@given(held)
def test_the_dlq_begins_exactly_at_max_attempts(job: JobRecord) -> None:
    """F1, F3: attempts ≥ max_attempts is a dead letter, anything below a retry; None is unlimited."""
    to = decided(job, BOOM)
    if job.max_attempts is not None and job.attempts + 1 >= job.max_attempts:
        assert isinstance(to, Fail)
        assert to.reason == "max_attempts"
    else:
        assert isinstance(to, PutBack)


@given(retryable, st.builds(Retry, base=delays, cap=delays, jitter=st.booleans()), st.integers())
def test_a_retry_waits_for_the_policys_delay(job: JobRecord, retry: Retry, seed: int) -> None:
    """F1, F2: at `now + delay`; a recorded outcome ends the counts of crashes and put-backs."""
    to = decide(job, BOOM, retry, RETENTION, NOW, Random(seed))
    assert isinstance(to, PutBack)
    assert to.run_at == later(NOW, retry.delay(job.attempts + 1, Random(seed)))
    assert to.run_at >= NOW
    assert (to.crashes, to.unknown_put_backs) == (0, 0)


@given(retryable, delays)
def test_retry_after_sets_the_delay(job: JobRecord, delay: float) -> None:
    """F4: it counts as a failure, and its delay wins over the policy's."""
    to = decided(job, Failed("RetryAfter", "busy", delay=delay), Retry.fixed(1))
    assert isinstance(to, PutBack)
    assert to.attempts == job.attempts + 1
    assert to.run_at == NOW + timedelta(seconds=delay)


def test_retry_after_does_not_outlast_max_attempts() -> None:
    """F1, F4: the bound holds for failures that choose their delay."""
    to = decided(claimed(attempts=3, max_attempts=4), Failed("RetryAfter", "busy", delay=5))
    assert isinstance(to, Fail)


@given(held, texts)
def test_a_final_failure_is_dead_at_once(job: JobRecord, reason: str) -> None:
    """F4, F9: Unrecoverable, given-up, undecodable …: no retry, the reason kept, the attempt counted."""
    to = decided(job, Failed("Undecodable", "no such field", final=reason))
    assert isinstance(to, Fail)
    assert (to.reason, to.attempts) == (reason, job.attempts + 1)
    assert to.last_error == "Undecodable: no such field"


def test_a_timeout_is_retried_like_any_failure() -> None:
    """F5: retryable by default."""
    to = decided(claimed(), timed_out(5))
    assert isinstance(to, PutBack)
    assert (to.attempts, to.last_error) == (1, "TimeoutError: timed out after 5 s")


@given(held, delays)
def test_a_snooze_is_put_back_without_an_attempt(job: JobRecord, delay: float) -> None:
    """F4: the handler ran and asked for it, so crashes and put-backs in a row end."""
    to = decided(job, Snoozed(delay))
    assert isinstance(to, PutBack)
    assert to.run_at == NOW + timedelta(seconds=delay)
    assert (to.attempts, to.crashes, to.unknown_put_backs) == (job.attempts, 0, 0)


@given(held)
def test_a_stopped_worker_releases_the_job_to_its_old_place(job: JobRecord) -> None:
    """X6, F6: no attempt, no crash, and it does not lose its place in line."""
    to = decided(job, Interrupted())
    assert isinstance(to, PutBack)
    assert to.run_at == job.due_at
    assert (to.attempts, to.crashes, to.unknown_put_backs) == (job.attempts, job.crashes, job.unknown_put_backs)


once = records({State.INFLIGHT}, max_attempts=st.just(1), max_crashes=st.just(1))


@given(held | once, st.booleans())
def test_a_stop_during_the_only_run_of_a_job_ends_it(job: JobRecord, started: bool) -> None:
    """F6, W: with max_attempts=1 and max_crashes=1 a job never runs twice; any other, or one not begun, is released."""
    to = decided(job, Interrupted(started))
    if started and (job.max_attempts, job.max_crashes) == (1, 1):
        assert isinstance(to, Fail)
        assert (to.reason, to.attempts, to.failures[-1].kind) == ("interrupted", job.attempts + 1, "Interrupted")
    else:
        assert isinstance(to, PutBack)


@given(held, delays)
def test_a_job_that_has_to_run_alone_is_given_back_as_it_is(job: JobRecord, delay: float) -> None:
    """F6b: no attempt, no crash less; at its old place, or after a delay."""
    to = decided(job, Deferred(delay))
    assert isinstance(to, PutBack)
    assert to.run_at == (later(NOW, delay) if delay else job.due_at)
    assert (to.attempts, to.crashes, to.unknown_put_backs) == (job.attempts, job.crashes, job.unknown_put_backs)


@pytest.mark.parametrize(("crashes", "bound", "suspect"), [(1, 5, False), (2, 5, True), (9, None, True), (5, 5, False)])
def test_a_job_is_suspect_from_its_second_crash_on(crashes: int, bound: int | None, suspect: bool) -> None:
    """F6b: one crash may be the host's; one that may not run any more needs no slots of its own."""
    assert is_suspect(claimed(crashes=crashes, max_crashes=bound)) is suspect


@given(held)
def test_a_job_that_was_asked_to_stop_is_cancelled(job: JobRecord) -> None:
    """T3: the key is freed on entering cancelled, so it does not prolong the record's life."""
    to = decided(job, CancelledByRequest())
    assert isinstance(to, Cancel)
    assert to.keep_until == later(NOW, RETENTION.done)


@given(held)
def test_an_unknown_task_is_put_back_until_the_bound(job: JobRecord) -> None:
    """F8: no attempt is counted; after 30 put-backs in a row it is a dead letter that says why."""
    to = decided(job, NotRegistered())
    if job.unknown_put_backs < MAX_UNKNOWN_PUT_BACKS:
        assert isinstance(to, PutBack)
        assert (to.attempts, to.crashes) == (job.attempts, job.crashes)
        assert to.unknown_put_backs == job.unknown_put_backs + 1
        assert to.run_at > NOW
    else:
        assert isinstance(to, Fail)
        assert (to.reason, to.attempts) == ("unknown_task", job.attempts)
        assert to.last_error == "UnknownTask: no worker knew the task 'mail.send' in 30 tries"


def test_the_delay_of_an_unknown_task_grows() -> None:
    """F8: never shorter than the last one, whatever the dice say, and long enough in all for a rolling deploy."""
    waits: list[timedelta] = []
    for known in range(MAX_UNKNOWN_PUT_BACKS):
        to = decide(claimed(unknown_put_backs=known), NotRegistered(), Retry(), RETENTION, NOW, Random(known))
        assert isinstance(to, PutBack)
        waits.append(to.run_at - NOW)
    assert waits == sorted(waits)
    assert waits[:3] == [SECOND, 2 * SECOND, 4 * SECOND]
    assert sum(waits, timedelta()) > timedelta(minutes=20)


@given(held)
def test_a_job_that_keeps_killing_its_workers_is_not_run_again(job: JobRecord) -> None:
    """F6: at max_crashes in a row, with the reason crash_loop; the crash counts no attempt; None is unlimited."""
    to = admit(job, RETENTION, NOW)
    if job.max_crashes is None or job.crashes < job.max_crashes:
        assert to is None
    else:
        assert to is not None
        assert (to.reason, to.attempts, to.crashes) == ("crash_loop", job.attempts, job.crashes)
        number = "a worker" if job.crashes == 1 else f"{job.crashes} workers in a row"
        assert to.last_error == f"CrashLoop: {number} died, or lost the lease, while running this job"
        assert (to.failures[-1].kind, to.failures[-1].worker) == ("CrashLoop", None)


@given(held)
def test_a_job_whose_worker_has_died_is_due_again_with_a_crash(job: JobRecord) -> None:
    """L9, F6: what a reclaim would count; no attempt, no failure and no run is recorded, and its token fences it."""
    to = crashed(job, RETENTION, NOW)
    assert job.lease is not None
    assert (to.id, to.token, to.crashes) == (job.id, job.lease.token, job.crashes + 1)
    assert (to.attempts, to.failures, to.last_error) == (job.attempts, job.failures, job.last_error)
    assert (to.unknown_put_backs, to.started_at, to.increment) == (job.unknown_put_backs, job.started_at, None)
    assert to.keep_until == NOW + RETENTION.done
    assert to.run_at <= NOW


def test_only_a_first_crash_keeps_its_place_in_line() -> None:
    """L9, D11, F7: one that keeps killing workers waits behind the jobs that are due by now."""
    since = NOW - 60 * SECOND
    assert crashed(claimed(due_at=since), RETENTION, NOW).run_at == since
    assert crashed(claimed(due_at=since, crashes=1), RETENTION, NOW).run_at == NOW
    assert crashed(claimed(due_at=NOW + SECOND), RETENTION, NOW).run_at == NOW  # by another host's clock


@pytest.mark.parametrize("outcome", [Succeeded(None), Failed("X", "", final="x"), BOOM, NotRegistered()])
@given(job=records({State.INFLIGHT}, key_expires_at=after_retention))
def test_a_finished_record_outlives_its_key(outcome: Outcome, job: JobRecord) -> None:
    """I3: done and dead records are pruned only after both their retention and their key have run out."""
    for to in (decided(job, outcome), admit(job, RETENTION, NOW)):
        if isinstance(to, Ack | Fail):
            assert to.keep_until == job.key_expires_at


def test_a_key_without_an_expiry_does_not_delay_pruning() -> None:
    """I3: a `None` key lives as long as the record, not the other way round."""
    job = claimed(idempotency_key="k", key_expires_at=None)
    assert decided(job, Succeeded(None)).keep_until == NOW + RETENTION.done
    assert decided(job, Failed("X", "", final="x")).keep_until == NOW + RETENTION.dead


def test_retention_by_default() -> None:
    """X8: a day for done and cancelled jobs, thirty for dead ones."""
    assert (Retention().done, Retention().dead) == (timedelta(hours=24), timedelta(days=30))


@given(texts, texts, st.integers(1, 3000))
def test_the_last_error_keeps_its_limit(kind: str, message: str, times: int) -> None:
    """R4: kind and message together."""
    last = decided(claimed(), Failed(kind * times, message * times)).last_error
    assert last is not None
    assert len(last.encode()) <= ERROR_LIMIT


def test_an_error_without_words_is_named_by_its_kind() -> None:
    """R1: no dangling colon."""
    assert decided(claimed(), Failed("ValueError", "")).last_error == "ValueError"


@pytest.mark.parametrize("broken", [ZeroDivisionError, SystemExit, KeyboardInterrupt, Unrecoverable])
def test_a_broken_policy_ends_the_job_and_hides_nothing(broken: type[BaseException]) -> None:
    """F10, F11: the handler's error is kept, the policy's is named, and the worker lives."""

    class Mute(broken):  # type: ignore[valid-type, misc]
        def __str__(self) -> str:
            raise RuntimeError

    def policy(_: int) -> float:
        raise Mute

    to = decided(claimed(), BOOM, Retry(custom=policy))
    assert isinstance(to, Fail)
    assert (to.reason, to.attempts) == ("broken_retry_policy", 1)
    assert to.failures[0].message == "boom"
    assert to.last_error is not None
    assert "the retry policy failed: <Mute whose message cannot be shown" in to.last_error


@pytest.mark.parametrize("answer", [-1, float("nan"), "soon", None])
def test_a_policy_that_answers_nonsense_is_broken(answer: float) -> None:
    """F2: no retry storm and no endless wait."""
    to = decided(claimed(), BOOM, Retry(custom=lambda _: answer))
    assert isinstance(to, Fail)
    assert to.reason == "broken_retry_policy"


@pytest.mark.parametrize("state", [state for state in State if state is not State.INFLIGHT])
def test_only_a_claimed_job_can_be_settled(state: State) -> None:
    """T1: a transition without a lease cannot be spelled."""
    with pytest.raises(ValueError, match="not claimed"):
        decided(record(state), Succeeded(None))


@given(st.floats(0, allow_infinity=False, allow_nan=False) | st.timedeltas(timedelta(0)), moments)
def test_later_holds_at_the_end_of_the_calendar(by: float | timedelta, now: datetime) -> None:
    """F4, R3: any delay is a moment, even one that no calendar reaches."""
    moment = later(now, by)
    assert now <= moment <= LAST_MOMENT
    if moment < LAST_MOMENT:
        assert moment == now + (by if isinstance(by, timedelta) else timedelta(seconds=by))


@pytest.mark.parametrize("outcome", [Snoozed(1e300), Failed("RetryAfter", "", delay=1e300), BOOM])
def test_a_delay_beyond_the_calendar_is_not_an_error(outcome: Outcome) -> None:
    """F4: Snooze, RetryAfter and policies take any number of seconds."""
    to = decided(claimed(), outcome, Retry.fixed(1e300))
    assert isinstance(to, PutBack)
    assert to.run_at == LAST_MOMENT


def test_the_last_moment_exists_in_every_time_zone() -> None:
    """R3: it can be shown anywhere without overflowing."""
    day = timedelta(hours=24) - SECOND
    assert LAST_MOMENT.astimezone(timezone(-day)) == LAST_MOMENT.astimezone(timezone(day)) == LAST_MOMENT


@given(records(), moments)
def test_a_dead_letter_by_hand_outlives_its_retention_and_its_key(job: JobRecord, now: datetime) -> None:
    """Q4, I3, Q1: kept as any dead job; those with one reason share a cause."""
    retention = Retention()
    death = dead_letter(job, "order 17 is void", retention, now)
    key = job.key_expires_at
    assert death.keep_until == max(later(now, retention.dead), key or now)
    assert (death.id, death.reason) == (job.id, "order 17 is void")
    assert death.fingerprint == dead_letter(job, "order 18 is void", retention, now).fingerprint
    dead = replace(job, dlq_reason=death.reason, fingerprint=death.fingerprint)
    assert by_hand(dead) == "order 17 is void"
    assert by_hand(replace(dead, dlq_reason="max_attempts")) is None
    assert by_hand(replace(dead, dlq_reason=None)) is None


def test_a_run_stopped_by_a_dead_letter_counts_as_dead_unless_it_failed() -> None:
    """Q4, D9: the job is dead when its run is put back, and the totals say so."""
    released = decided(claimed(), Interrupted())
    assert released.increment is not None
    assert dead_by_hand(released) == replace(released, increment=replace(released.increment, outcome="dlq"))
    for to in (decided(claimed(), Failed("ValueError", "no")), replace(released, increment=None)):
        assert dead_by_hand(to) is to


@given(held)
def test_the_death_of_a_jobs_own_process_counts_a_crash_at_once(job: JobRecord) -> None:
    """F6, F10: no attempt; the pause is the policy's by the crashes in a row; at max_crashes it is a crash loop."""
    to = decided(job, Crashed("killed by SIGSEGV"), Retry(base=2, jitter=False))
    assert (to.attempts, to.crashes) == (job.attempts, job.crashes + 1)
    assert (to.last_error, to.failures[-1].kind) == ("Crashed: killed by SIGSEGV", "Crashed")
    if job.max_crashes is not None and to.crashes >= job.max_crashes:
        assert isinstance(to, Fail)
        assert to.reason == "crash_loop"
    else:
        assert isinstance(to, PutBack)
        assert to.run_at == later(NOW, min(2.0**to.crashes, 30.0))


def test_a_broken_policy_after_a_crash_is_a_dead_letter() -> None:
    """F11: a policy is user code and must not crash the worker; both errors are kept."""

    def broken(crashes: int) -> float:
        raise ZeroDivisionError(f"at {crashes}")

    to = decided(claimed(attempts=1), Crashed("killed"), Retry(custom=broken))
    assert isinstance(to, Fail)
    assert (to.reason, to.attempts, to.crashes) == ("broken_retry_policy", 1, 1)
    assert [failure.kind for failure in to.failures[-2:]] == ["Crashed", "ZeroDivisionError"]
