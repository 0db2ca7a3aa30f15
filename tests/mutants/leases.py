"""Broken drivers: claims and heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from taskharbor.core.job import JobRecord
from taskharbor.core.line import effective_due
from taskharbor.driver import Extended, Report
from taskharbor.drivers.memory.driver import MemoryDriver
from taskharbor.drivers.memory.store import Store
from taskharbor.errors import LeaseError

from .mutant import MutantRegistry

LEASES = MutantRegistry("driver")
mutant = LEASES.mutant

Answer = Extended | LeaseError
Extend = Callable[..., Answer]
Claim = Callable[..., JobRecord]
MILLISECOND = timedelta(milliseconds=1)


def with_lease(job: JobRecord, **changes: Any) -> JobRecord:
    """The record under a changed lease."""
    assert job.lease is not None
    return replace(job, lease=replace(job.lease, **changes))


@mutant((Store, "extend"), by="test_D6_an_expired_lease_is_not_revived")
def extend_revives_an_expired_lease(
    extend: Extend, store: Store, report: Report, now: datetime, lease_for: timedelta
) -> Answer:
    """The last holder can renew its lease, however long ago it ran out."""
    job = store.jobs.get(report.id)
    if job is not None and job.lease is not None and job.lease.token == report.token:
        store._write(with_lease(job, expires_at=max(job.lease.expires_at, now + MILLISECOND)))
    return extend(store, report, now, lease_for)


@mutant((Store, "extend"), by="test_D6_an_extension_is_stored_and_keeps_the_token")
def extend_not_persisted(extend: Extend, store: Store, report: Report, now: datetime, lease_for: timedelta) -> Answer:
    """A renewed lease is answered and not stored."""
    before = store.jobs.get(report.id)
    answer = extend(store, report, now, lease_for)
    if isinstance(answer, Extended) and before is not None:
        store._write(replace(store.jobs[report.id], lease=before.lease))
    return answer


@mutant((Store, "extend"), by="test_D6_a_lease_never_shrinks")
def extend_shrinks_a_lease(extend: Extend, store: Store, report: Report, now: datetime, lease_for: timedelta) -> Answer:
    """A short renewal cuts a long lease."""
    answer = extend(store, report, now, lease_for)
    if not isinstance(answer, Extended):
        return answer
    store._write(with_lease(store.jobs[report.id], expires_at=now + lease_for))
    return replace(answer, expires_at=now + lease_for)


@mutant((Store, "extend"), by="test_D6_reports_are_answered_one_by_one")
def extend_unfenced(extend: Extend, store: Store, report: Report, now: datetime, lease_for: timedelta) -> Answer:
    """Any token can renew any lease."""
    job = store.jobs.get(report.id)
    if job is not None and job.lease is not None:
        report = replace(report, token=job.lease.token)
    return extend(store, report, now, lease_for)


@mutant((Store, "extend"), by="test_D6_a_report_without_news_forgets_nothing")
def extend_forgets_progress(
    extend: Extend, store: Store, report: Report, now: datetime, lease_for: timedelta
) -> Answer:
    """A heartbeat without news wipes out the progress reported before."""
    answer = extend(store, report, now, lease_for)
    if isinstance(answer, Extended):
        store._write(replace(store.jobs[report.id], progress=report.progress))
    return answer


@mutant((Store, "extend"), by="test_D6_start_and_progress_are_stored[quarter]")
def extend_stores_no_start(extend: Extend, store: Store, report: Report, now: datetime, lease_for: timedelta) -> Answer:
    """The start that a heartbeat reports is dropped: a running job looks claimed for ever."""
    return extend(store, replace(report, started_at=None), now, lease_for)


@mutant((Store, "extend"), by="test_D6_the_answer_shows_a_cancel_request")
def extend_hides_the_cancel_request(
    extend: Extend, store: Store, report: Report, now: datetime, lease_for: timedelta
) -> Answer:
    """The holder never receives the cancel request."""
    answer = extend(store, report, now, lease_for)
    return replace(answer, cancel_requested=False) if isinstance(answer, Extended) else answer


@mutant((Store, "extend"), by="test_D6_an_extension_is_stored_and_keeps_the_token")
def extend_changes_the_token(
    extend: Extend, store: Store, report: Report, now: datetime, lease_for: timedelta
) -> Answer:
    """A renewal makes a new token that is not returned to the holder."""
    answer = extend(store, report, now, lease_for)
    if isinstance(answer, Extended):
        store._write(with_lease(store.jobs[report.id], token=store._new_token()))
    return answer


@mutant((Store, "extend"), by="test_D6_an_extension_does_not_change_the_version")
def extend_bumps_the_version(
    extend: Extend, store: Store, report: Report, now: datetime, lease_for: timedelta
) -> Answer:
    """A renewal counts as a claim."""
    answer = extend(store, report, now, lease_for)
    if isinstance(answer, Extended):
        job = store.jobs[report.id]
        store._write(with_lease(replace(job, version=job.version + 1), version=job.version + 1))
    return answer


@mutant((MemoryDriver, "extend_lease"), by="test_D4_a_lease_must_last[0]")
async def extend_accepts_a_zero_lease(
    extend_lease: Any, driver: MemoryDriver, reports: Sequence[Report], now: datetime, lease_for: timedelta
) -> list[Answer]:
    """A lease of no time is renewed without a word."""
    answers: list[Answer] = await extend_lease(driver, reports, now, max(lease_for, timedelta(microseconds=1)))
    return answers


@mutant((MemoryDriver, "extend_lease"), by="test_D6_reports_are_answered_one_by_one")
async def extend_stops_at_the_first_refusal(
    extend_lease: Any, driver: MemoryDriver, reports: Sequence[Report], now: datetime, lease_for: timedelta
) -> list[Answer]:
    """One refused report keeps the leases behind it from being renewed."""
    answers: list[Answer] = []
    for report in reports:
        refused = next((answer for answer in answers if isinstance(answer, LeaseError)), None)
        answers += [refused] if refused else await extend_lease(driver, [report], now, lease_for)
    return answers


@mutant((Store, "_claim"), by="test_D5_a_reclaim_has_a_new_token_the_next_version_and_one_more_crash")
def token_reused_on_reclaim(
    claim: Claim, store: Store, job: JobRecord, now: datetime, expires_at: datetime, worker: str
) -> JobRecord:
    """A reclaim keeps the token of the previous holder."""
    claimed = claim(store, job, now, expires_at, worker)
    return claimed if job.lease is None else store._write(with_lease(claimed, token=job.lease.token))


@mutant((Store, "_claim"), by="test_D2_every_claim_has_a_token_of_its_own")
def token_per_reserve(
    claim: Claim, store: Store, job: JobRecord, now: datetime, expires_at: datetime, worker: str
) -> JobRecord:
    """All jobs claimed by one worker at one time share a token."""
    return store._write(with_lease(claim(store, job, now, expires_at, worker), token=f"{worker} {now.isoformat()}"))


@mutant((Store, "_claim"), by="test_D5_a_reclaim_has_a_new_token_the_next_version_and_one_more_crash")
def version_not_bumped_on_reclaim(
    claim: Claim, store: Store, job: JobRecord, now: datetime, expires_at: datetime, worker: str
) -> JobRecord:
    """A job taken over keeps its version: the fence lets both runs through."""
    claimed = claim(store, job, now, expires_at, worker)
    if job.lease is None:
        return claimed
    return store._write(with_lease(replace(claimed, version=job.version), version=job.version))


@mutant((Store, "_claim"), by="test_L5_versions_fence_across_retries")
def version_not_bumped_on_retry(
    claim: Claim, store: Store, job: JobRecord, now: datetime, expires_at: datetime, worker: str
) -> JobRecord:
    """A retried job keeps its version."""
    claimed = claim(store, job, now, expires_at, worker)
    if job.lease is not None or not job.version:
        return claimed
    return store._write(with_lease(replace(claimed, version=job.version), version=job.version))


@mutant((Store, "_claim"), by="test_D2_a_claim_moves_the_job_to_inflight_under_a_lease")
def lease_half_as_long(
    claim: Claim, store: Store, job: JobRecord, now: datetime, expires_at: datetime, worker: str
) -> JobRecord:
    """The store grants half of the lease that was asked for, and says nothing."""
    return claim(store, job, now, now + (expires_at - now) / 2, worker)


@mutant((Store, "_claim"), by="test_D2_a_claim_moves_the_job_to_inflight_under_a_lease")
def lease_shorter_than_returned(
    claim: Claim, store: Store, job: JobRecord, now: datetime, expires_at: datetime, worker: str
) -> JobRecord:
    """The holder gets a longer lease in the answer than the store keeps."""
    return with_lease(claim(store, job, now, now + (expires_at - now) / 2, worker), expires_at=expires_at)


@mutant((Store, "_claim"), by="test_D5_a_reclaim_has_a_new_token_the_next_version_and_one_more_crash")
def crash_not_counted(
    claim: Claim, store: Store, job: JobRecord, now: datetime, expires_at: datetime, worker: str
) -> JobRecord:
    """A job that kills its workers does so for ever: no lapse is counted."""
    return store._write(replace(claim(store, job, now, expires_at, worker), crashes=job.crashes))


@mutant((Store, "_claim"), by="test_D5_a_put_back_or_release_is_not_a_crash")
def every_claim_counts_a_crash(
    claim: Claim, store: Store, job: JobRecord, now: datetime, expires_at: datetime, worker: str
) -> JobRecord:
    """A retry looks like a crash."""
    claimed = claim(store, job, now, expires_at, worker)
    return store._write(replace(claimed, crashes=job.crashes + bool(job.version)))


@mutant((Store, "_claim"), by="test_D5_a_reclaim_has_a_new_token_the_next_version_and_one_more_crash")
def crash_counts_as_an_attempt(
    claim: Claim, store: Store, job: JobRecord, now: datetime, expires_at: datetime, worker: str
) -> JobRecord:
    """A lapsed lease costs the job an attempt."""
    claimed = claim(store, job, now, expires_at, worker)
    return claimed if job.lease is None else store._write(replace(claimed, attempts=job.attempts + 1))


@mutant((Store, "_claim"), by="test_D5_a_reclaimed_job_is_runnable_now")
def reclaim_keeps_run_at(
    claim: Claim, store: Store, job: JobRecord, now: datetime, expires_at: datetime, worker: str
) -> JobRecord:
    """A job taken over still carries its old schedule."""
    return store._write(replace(claim(store, job, now, expires_at, worker), run_at=job.run_at))


@mutant((Store, "_claim"), by="test_T2_a_job_claimed_again_has_not_started")
def reclaim_keeps_the_start(
    claim: Claim, store: Store, job: JobRecord, now: datetime, expires_at: datetime, worker: str
) -> JobRecord:
    """Start and progress of a dead run are shown for the new one."""
    claimed = claim(store, job, now, expires_at, worker)
    return store._write(replace(claimed, started_at=job.started_at, progress=job.progress))


@mutant((Store, "_claim"), by="test_D5_a_reclaim_is_stored")
def reclaim_not_stored(
    claim: Claim, store: Store, job: JobRecord, now: datetime, expires_at: datetime, worker: str
) -> JobRecord:
    """A takeover is answered, and the store still knows the dead holder."""
    claimed = claim(store, job, now, expires_at, worker)
    if job.lease is not None:
        store._write(job)
    return claimed


@mutant((Store, "reserve"), by="test_D5_reserve_itself_reclaims_at_the_expiry")
def reclaim_early(reserve: Any, store: Store, queues: Any, now: datetime, *rest: Any) -> Any:
    """A lease is taken over a millisecond before its end."""
    for job in list(store.jobs.values()):
        if job.lease is not None and now < job.lease.expires_at <= now + MILLISECOND:
            store._write(with_lease(job, expires_at=now))
    return reserve(store, queues, now, *rest)


@mutant((Store, "_line_up_lapsed"), by="test_D5_reserve_itself_reclaims_at_the_expiry")
def no_reclaim(line_up: Any, store: Store, now: datetime) -> None:
    """Jobs of a dead worker are never reclaimed."""


@mutant((Store, "_line_up_lapsed"), by="test_D5_many_leases_lapsing_at_once_are_all_reclaimed")
def reclaim_of_one_at_a_time(line_up: Any, store: Store, now: datetime) -> None:
    """Of many leases that lapse at once only one is ever noticed."""
    line_up(store, now)
    lapsed = [job for job in store.jobs.values() if job.lease is not None and job.lease.expires_at <= now]
    for job in lapsed[1:]:
        store._line.drop(job.id)


@mutant((Store, "_line_up_lapsed"), by="test_D5_an_extended_lease_is_reclaimed_at_its_new_end_only")
def reclaim_by_the_first_expiry(line_up: Any, store: Store, now: datetime) -> None:
    """A lease is taken for lapsed as soon as its first term is over, renewed or not."""
    line_up(store, now)
    for job in list(store.jobs.values()):
        if job.lease is not None and job.lease.claimed_at + timedelta(seconds=10) <= now < job.lease.expires_at:
            job = store._write(with_lease(job, expires_at=now))
            store._line.put(job.id, job.queue, job.priority, effective_due(job), store._seq[job.id])
