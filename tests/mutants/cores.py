"""Broken cores: the pure rules. Whatever stands on them shows it: a driver in the kit, or a worker on the stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from taskharbor.client import job_builder
from taskharbor.core import decide as decisions
from taskharbor.core import evolve, ids, outcome
from taskharbor.core import wiring as wirings
from taskharbor.core.decide import Retention
from taskharbor.core.job import Failure, JobRecord
from taskharbor.core.keys import KeyRecord
from taskharbor.core.outcome import Failed
from taskharbor.core.retry import Retry, Rng
from taskharbor.core.states import State
from taskharbor.core.transition import Fail, PutBack, Transition
from taskharbor.driver import Parent
from taskharbor.drivers.memory import store as stores
from taskharbor.errors import LeaseError, LeaseExpired, LeaseMismatch
from taskharbor.worker import decider as deciders
from taskharbor.worker import executor as executors
from taskharbor.worker import outcomes
from taskharbor.worker import quarantine as quarantines

from .mutant import MutantRegistry

CORES = MutantRegistry("core")
mutant = CORES.mutant

DEAD_LETTERED = "a_failing_job_is_retried_and_dead_lettered"


# what an outcome means


@mutant((decisions, "_after_failure"), by=DEAD_LETTERED)
def attempts_not_incremented(after: Any, job: JobRecord, *rest: Any) -> PutBack | Fail:
    """A job fails for ever: its attempts stay at zero."""
    to: PutBack | Fail = after(replace(job, attempts=-1), *rest)
    return to


@mutant((decisions, "_after_failure"), by=DEAD_LETTERED)
def one_attempt_too_many(after: Any, job: JobRecord, *rest: Any) -> PutBack | Fail:
    """max_attempts counts retries instead of runs."""
    more = None if job.max_attempts is None else job.max_attempts + 1
    to: PutBack | Fail = after(replace(job, max_attempts=more), *rest)
    return to


@mutant((decisions, "_after_failure"), by=DEAD_LETTERED)
def one_attempt_too_few(after: Any, job: JobRecord, *rest: Any) -> PutBack | Fail:
    """A job is dead-lettered before its last attempt."""
    fewer = None if job.max_attempts is None else job.max_attempts - 1
    to: PutBack | Fail = after(replace(job, max_attempts=fewer), *rest)
    return to


@mutant((decisions, "_after_failure"), by="unlimited_attempts_have_no_end")
def unlimited_is_the_default(after: Any, job: JobRecord, *rest: Any) -> PutBack | Fail:
    """None means four."""
    to: PutBack | Fail = after(replace(job, max_attempts=job.max_attempts or 4), *rest)
    return to


@mutant((decisions, "_after_failure"), by=DEAD_LETTERED)
def retry_at_once(after: Any, *given: Any) -> PutBack | Fail:
    """The delay of a retry is dropped."""
    to: PutBack | Fail = after(*given)
    return replace(to, run_at=given[4]) if isinstance(to, PutBack) else to


@mutant((decisions, "_kept"), by=DEAD_LETTERED)
def history_of_one(kept: Any, job: JobRecord, entry: Failure) -> tuple[Failure, ...]:
    """Only the last failure is remembered."""
    return (entry,)


@mutant((decisions, "_after_failure"), by="signals_of_a_handler_take_effect")
def unrecoverable_is_retried(after: Any, job: JobRecord, failed: Failed, *rest: Any) -> PutBack | Fail:
    """An Unrecoverable is ignored."""
    to: PutBack | Fail = after(job, replace(failed, final=None), *rest)
    return to


@mutant((decisions, "_after_failure"), by="signals_of_a_handler_take_effect")
def chosen_delay_ignored(after: Any, job: JobRecord, failed: Failed, *rest: Any) -> PutBack | Fail:
    """RetryAfter waits as long as the policy says."""
    to: PutBack | Fail = after(job, replace(failed, delay=None), *rest)
    return to


@mutant((deciders, "decide"), by="signals_of_a_handler_take_effect")
def snooze_counted(decide: Any, job: JobRecord, came: Any, *rest: Any) -> Transition:
    """A snooze costs an attempt."""
    to: Transition = decide(job, came, *rest)
    return replace(to, attempts=job.attempts + 1) if isinstance(came, outcome.Snoozed) else to


@mutant((deciders, "decide"), by="signals_of_a_handler_take_effect")
def snooze_of_no_time(decide: Any, job: JobRecord, came: Any, *rest: Any) -> Transition:
    """A snoozed job comes back at once, again and again."""
    to: Transition = decide(job, replace(came, delay=0.0) if isinstance(came, outcome.Snoozed) else came, *rest)
    return to


@mutant((deciders, "decide"), by="a_stop_gives_back_what_it_interrupts")
def interrupted_job_loses_its_place(decide: Any, job: JobRecord, came: Any, *rest: Any) -> Transition:
    """A job that a deploy interrupted goes to the end of the line."""
    to: Transition = decide(job, came, *rest)
    return replace(to, run_at=rest[2]) if isinstance(came, outcome.Interrupted) and isinstance(to, PutBack) else to


@mutant((deciders, "decide"), by="a_deploy_between_two_crashes_ends_no_row")
def release_forgives_crashes(decide: Any, job: JobRecord, came: Any, *rest: Any) -> Transition:
    """A deploy between two crashes restarts the count."""
    to: Transition = decide(job, came, *rest)
    return replace(to, crashes=0) if isinstance(came, outcome.Interrupted) else to


@mutant((deciders, "admit"), by="a_job_that_kills_its_workers_is_dead_lettered")
def max_crashes_ignored(admit: Any, job: JobRecord, retention: Retention, now: datetime) -> Fail | None:
    """A job may kill any number of workers."""
    return None


@mutant((deciders, "admit"), by="a_job_that_kills_its_workers_is_dead_lettered")
def one_crash_too_few(admit: Any, job: JobRecord, retention: Retention, now: datetime) -> Any:
    """A job is dead-lettered one crash too early."""
    return admit(replace(job, crashes=job.crashes + 1), retention, now)


@mutant((deciders, "admit"), by="a_job_that_kills_its_workers_is_dead_lettered")
def crash_loop_counts_an_attempt(admit: Any, job: JobRecord, retention: Retention, now: datetime) -> Fail | None:
    """A job dead-lettered for its crashes shows a failure that was not recorded."""
    to: Fail | None = admit(job, retention, now)
    return None if to is None else replace(to, attempts=to.attempts + 1)


@mutant((quarantines, "is_suspect"), by="a_suspect_runs_alone")
def suspicion_comes_late(is_suspect: Any, job: JobRecord) -> Any:
    """A job runs alone from its third crash on only."""
    return is_suspect(job) and job.crashes > 2


@mutant((deciders, "decide"), by="a_suspect_runs_alone")
def deferred_suspect_forgiven(decide: Any, job: JobRecord, came: Any, *rest: Any) -> Transition:
    """A suspect that is put back is no longer a suspect."""
    to: Transition = decide(job, came, *rest)
    return replace(to, crashes=0) if isinstance(came, outcome.Deferred) else to


@mutant((decisions, "_after_unknown"), by="an_unknown_task_waits_for_a_deploy")
def unknown_task_counts_an_attempt(after: Any, *given: Any) -> PutBack | Fail:
    """A rolling deploy costs attempts."""
    to: PutBack | Fail = after(*given)
    return replace(to, attempts=to.attempts + 1)


@mutant((decisions, "_after_unknown"), by="an_unknown_task_waits_for_a_deploy")
def unknown_task_asked_every_second(after: Any, job: JobRecord, retention: Retention, now: datetime) -> Any:
    """The delay of unknown tasks does not grow."""
    to: PutBack | Fail = after(job, retention, now)
    return replace(to, run_at=now + timedelta(seconds=1)) if isinstance(to, PutBack) else to


@mutant((decisions, "_after_unknown"), by="a_task_that_stays_unknown_is_dead_lettered")
def unknown_task_put_back_for_ever(after: Any, job: JobRecord, *rest: Any) -> PutBack | Fail:
    """A task that stays unknown is never dead-lettered."""
    to: PutBack | Fail = after(replace(job, unknown_put_backs=min(job.unknown_put_backs, 5)), *rest)
    return to


@mutant((decisions, "_keep"), by="a_record_outlives_its_key")
def record_pruned_before_its_key(keep: Any, job: JobRecord, until: datetime) -> datetime:
    """A key points to a record that is gone."""
    return until


@mutant((job_builder, "later"), by="a_delayed_job_runs_on_time")
def delay_in_minutes(later: Any, now: datetime, by: Any) -> datetime:
    """A delay is ten times too short."""
    at: datetime = later(now, by / 10)
    return at


@mutant((decisions, "later"), by=DEAD_LETTERED)
def retry_in_the_past(later: Any, now: datetime, by: Any) -> datetime:
    """Delays are taken off instead of added."""
    at: datetime = later(now, by if isinstance(by, timedelta) else -by)
    return at


# policies


@mutant((Retry, "ceiling"), by="delays_grow_to_their_cap")
def delay_without_cap(ceiling: Any, retry: Retry, attempts: int) -> float:
    """Delays grow for ever."""
    return (
        retry.base * retry.multiplier ** (attempts - 1) if retry.growth == "exponential" else ceiling(retry, attempts)
    )


@mutant((Retry, "ceiling"), by="delays_grow_to_their_cap")
def delay_grows_one_step_early(ceiling: Any, retry: Retry, attempts: int) -> Any:
    """The first retry already waits for twice the base."""
    return ceiling(retry, attempts + 1)


@mutant((Retry, "delay"), by="delays_are_drawn_from_the_whole_range")
def no_jitter(delay: Any, retry: Retry, attempts: int, rng: Rng) -> float:
    """Jobs that failed together come back together."""
    return retry.ceiling(attempts)


@mutant((Retry, "delay"), by="delays_are_drawn_from_the_whole_range")
def jitter_beyond_its_bound(delay: Any, retry: Retry, attempts: int, rng: Rng) -> float:
    """A delay may be half again as long as its ceiling."""
    return retry.ceiling(attempts) * (0.5 + rng.random())


@mutant((Retry, "retries"), by="a_policy_says_what_is_worth_a_retry")
def every_exception_is_retried(retries: Any, retry: Retry, error: BaseException) -> bool:
    """give_up_on is not asked."""
    return True


@mutant((outcomes, "from_error"), by="signals_of_a_handler_take_effect")
def signals_are_plain_errors(from_error: Any, error: BaseException, retry: Retry, traceback: str = "") -> Any:
    """Snooze and its like are taken for failures like others."""
    return from_error(ValueError(str(error)), retry, traceback)


# what a step of a flow is given


@mutant((wirings, "_value"), by="a_failed_step_stands_in_for_its_result")
def failed_result_is_null(value: Any, results: Iterator[Parent]) -> bytes:
    """A finalizer that collects failures cannot tell them from empty results."""
    given = next(results)
    return b"null" if given.state is not State.DONE else value(iter([given]))


@mutant((executors, "filled"), by="a_step_whose_parents_are_gone_is_not_run")
def missing_result_is_null(filled: Any, payload: bytes, parameter: str, given: Sequence[Parent]) -> Any:
    """A step whose parents are gone runs with nothing in their places."""
    missing = wirings.wiring_of(payload).edges - len(given)
    nothing = Parent("", "hold", True, State.DONE, None, None)
    return filled(payload, parameter, [*given, *[nothing] * missing])


@mutant((executors, "filled"), by="more_results_than_a_step_can_take_dead_letter_it")
def limit_of_results_ignored(filled: Any, payload: bytes, parameter: str, given: Sequence[Parent]) -> Any:
    """A step is given whatever is left of results that are too many."""
    return filled(payload, parameter, [replace(parent, size=0) for parent in given])


# how a record changes


@mutant((evolve, "claimed"), by="test_D2_a_claim_moves_the_job_to_inflight_under_a_lease")
def version_not_bumped(claimed: Any, job: JobRecord, *rest: Any) -> JobRecord:
    """Claims are not counted."""
    record: JobRecord = claimed(job, *rest)
    return replace(record, version=job.version)


@mutant((evolve, "claimed"), by="test_D5_a_reclaim_has_a_new_token_the_next_version_and_one_more_crash")
def lapse_not_counted(claimed: Any, job: JobRecord, *rest: Any) -> JobRecord:
    """A lapsed lease leaves no trace."""
    record: JobRecord = claimed(job, *rest)
    return replace(record, crashes=job.crashes)


@mutant((evolve, "extended"), by="test_D6_a_lease_never_shrinks")
def extension_may_shrink(extended: Any, job: JobRecord, expires_at: datetime, *rest: Any) -> JobRecord:
    """The last renewal counts, long or short."""
    record: JobRecord = extended(job, expires_at, *rest)
    assert record.lease is not None
    return replace(record, lease=replace(record.lease, expires_at=expires_at))


@mutant((evolve, "settled"), by="test_D8_repeating_a_settle_is_replayed[ack]")
def settled_token_forgotten(settled: Any, job: JobRecord, to: Transition, now: datetime) -> JobRecord:
    """The token of the last settle is not stored."""
    record: JobRecord = settled(job, to, now)
    return replace(record, settled_token=job.settled_token)


@mutant((evolve, "settled"), by="test_D11_a_retry_is_in_line_by_its_new_time")
def retry_keeps_its_due_time(settled: Any, job: JobRecord, to: Transition, now: datetime) -> JobRecord:
    """A retry carries its delay, and stands in line as if it had none."""
    record: JobRecord = settled(job, to, now)
    return replace(record, due_at=job.due_at)


@mutant((evolve, "withdrawn"), by="test_I2_entering_cancelled_frees_the_key[ready]")
def withdrawn_job_keeps_its_key(withdrawn: Any, job: JobRecord, *rest: Any) -> JobRecord:
    """A cancelled record still names its key."""
    record: JobRecord = withdrawn(job, *rest)
    return replace(record, idempotency_key=job.idempotency_key)


@mutant((evolve, "replayed"), by="test_Q2_fields_of_the_end_are_cleared[fail]")
def replay_keeps_the_deadline(replayed: Any, job: JobRecord, *rest: Any) -> JobRecord:
    """A replayed job has expired already."""
    record: JobRecord = replayed(job, *rest)
    return replace(record, expires_at=job.expires_at)


@mutant((evolve, "replayed"), by="test_Q1_only_the_dead_have_a_fingerprint")
def replay_keeps_the_fingerprint(replayed: Any, job: JobRecord, *rest: Any) -> JobRecord:
    """A job that is in line again is still found among the dead of its kind."""
    record: JobRecord = replayed(job, *rest)
    return replace(record, fingerprint=job.fingerprint)


@mutant((evolve, "settled"), by="test_Q1_a_dead_job_keeps_its_fingerprint")
def fingerprint_not_stored(settled: Any, job: JobRecord, to: Transition, now: datetime) -> JobRecord:
    """Dead jobs have no fingerprint."""
    record: JobRecord = settled(job, to, now)
    return replace(record, fingerprint=None)


@mutant((evolve, "released"), by="test_K2_a_released_job_is_due_now_or_at_its_own_time")
def released_since_its_enqueue(released: Any, job: JobRecord, now: datetime) -> JobRecord:
    """A released child goes before jobs that have been due longer."""
    record: JobRecord = released(job, now)
    return replace(record, due_at=job.due_at)


@mutant((stores, "refusal"), by="test_D6_an_expired_lease_is_not_revived")
def lease_valid_at_its_expiry(refusal: Any, job: Any, id: str, token: str, now: datetime) -> LeaseError | None:
    """A lease is valid at the very moment of its end."""
    refused: LeaseError | None = refusal(job, id, token, now)
    at_its_end = isinstance(refused, LeaseExpired) and job.lease.expires_at == now and job.lease.token == token
    return None if at_its_end else refused


@mutant((stores, "refusal"), by="test_D8_why_an_extension_is_refused[lapsed, foreign token]")
def mismatch_before_expiry_for_renewals(refusal: Any, job: Any, id: str, token: str, now: datetime) -> Any:
    """The refusals of a renewal come in the wrong precedence."""
    refused: LeaseError | None = refusal(job, id, token, now)
    return LeaseMismatch(id) if isinstance(refused, LeaseExpired) and job.lease.token != token else refused


@mutant((KeyRecord, "alive"), by="test_I2_the_key_of_an_ended_job_is_alive_before_its_expiry_and_free_at_it[fail]")
def key_one_moment_too_long(alive: Any, key: KeyRecord, now: datetime, owner_ended: bool) -> bool:
    """A key is alive at its expiry."""
    return not owner_ended or key.expires_at is None or key.expires_at >= now


@mutant((stores, "digest"), by="test_I3_the_same_key_for_something_else_is_flagged[task]")
def digest_of_payloads_only(digest: Any, asked: Iterable[tuple[str, bytes]]) -> Any:
    """The same payload for another task is taken for the same."""
    return digest(("", payload) for _, payload in asked)


@mutant((ids, "uuid7"), by="every_job_has_an_id_of_its_own")
def ids_by_time_only(uuid7: Any, milliseconds: int, randomness: int) -> Any:
    """Two jobs of one millisecond share an id."""
    return uuid7(milliseconds, 0)
