"""Each legal move as a function from record to record: legal from its states only, and touching its fields only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from taskharbor.core import evolve
from taskharbor.core.evolve import DeadLetter, Replay
from taskharbor.core.job import LAST_MOMENT, JobRecord, JobRequest, Progress
from taskharbor.core.states import State
from taskharbor.core.transition import Ack, Cancel, Fail, PutBack, Transition, settle_kind
from taskharbor.errors import IllegalMove

from .make import NOW, SECOND, TOKEN, histories, moments, new_job, progress, record, records, texts, tokens

LATER = NOW + 60 * SECOND
FENCED = {
    "lease",
    "settled_token",
    "settled_kind",
    "settled_at",
    "started_at",
    "attempts",
    "crashes",
    "unknown_put_backs",
    "last_error",
    "failed_at",
    "failures",
    "state",
}
ENDED = {"completed_at", "keep_until"}
KEY = {"idempotency_key", "key_expires_at"}

Evolve = Callable[[JobRecord], JobRecord]


def changed(before: JobRecord, after: JobRecord) -> set[str]:
    """The fields that differ."""
    old, new = asdict(before), asdict(after)
    return {name for name in old if old[name] != new[name]}


settlement = {
    "token": tokens,
    "keep_until": moments,
    "started_at": st.none() | moments,
    "attempts": st.integers(0, 50),
    "crashes": st.integers(0, 50),
    "unknown_put_backs": st.integers(0, 50),
    "last_error": st.none() | texts,
    "failed_at": st.none() | moments,
    "failures": histories,
}
acks = st.builds(Ack, id=st.just("job-1"), result=st.none() | st.binary(max_size=5), **settlement)
fails = st.builds(Fail, id=st.just("job-1"), reason=texts, **settlement)
put_backs = st.builds(PutBack, id=st.just("job-1"), run_at=moments, **settlement)
cancels = st.builds(Cancel, id=st.just("job-1"), **settlement)
transitions: st.SearchStrategy[Transition] = st.one_of(acks, fails, put_backs, cancels)

ack = Ack(id="job-1", token=TOKEN, keep_until=LATER)
death = DeadLetter(id="job-1", reason="by hand", fingerprint="f0", keep_until=LATER)
REQUEST = {"stop_requested_at", "stop_reason", "stop_fingerprint", "stop_keep_until"}
DEAD = {"dlq_reason", "fingerprint"}
MOVES: dict[str, tuple[Evolve, set[State]]] = {
    "claimed": (lambda job: evolve.claimed(job, TOKEN, NOW, LATER, "w1"), {State.READY, State.INFLIGHT}),
    "ack": (lambda job: evolve.settled(job, ack, NOW), {State.INFLIGHT}),
    "fail": (
        lambda job: evolve.settled(job, Fail(id="job-1", token=TOKEN, keep_until=LATER, reason="x"), NOW),
        {State.INFLIGHT},
    ),
    "put back": (
        lambda job: evolve.settled(job, PutBack(id="job-1", token=TOKEN, keep_until=LATER, run_at=NOW), NOW),
        {State.INFLIGHT},
    ),
    "cancel": (
        lambda job: evolve.settled(job, Cancel(id="job-1", token=TOKEN, keep_until=LATER), NOW),
        {State.INFLIGHT},
    ),
    "withdrawn": (lambda job: evolve.withdrawn(job, NOW, LATER), {State.READY, State.WAITING}),
    "dead letter": (lambda job: evolve.dead_lettered(job, death, NOW), {State.READY, State.WAITING}),
    "lapsed": (lambda job: evolve.lapsed(job, NOW, LATER), {State.INFLIGHT}),
    "released": (lambda job: evolve.released(job, NOW), {State.WAITING}),
    "replayed": (lambda job: evolve.replayed(job, Replay(id="job-1"), NOW), {State.DLQ, State.CANCELLED}),
    "rescheduled": (lambda job: evolve.rescheduled(job, NOW, 1), {State.READY}),
}


@pytest.mark.parametrize("name", MOVES)
@given(job=records())
def test_a_move_is_legal_from_exactly_the_states_of_the_table(name: str, job: JobRecord) -> None:
    """T1: from any other state it is an IllegalMove, and the record is what it was."""
    move, legal = MOVES[name]
    before = asdict(job)
    if job.state in legal:
        move(job)
    else:
        with pytest.raises(IllegalMove, match=f"cannot take a job from {job.state}"):
            move(job)
    assert asdict(job) == before


@given(st.none() | moments, st.integers(0, 3))
def test_a_job_enters_ready_or_waiting(run_at: datetime | None, unmet: int) -> None:
    """T1, N1, D11: waiting while a dependency is unmet; due at its time, else since the enqueue."""
    asked = new_job(run_at=run_at, tags=("a",), headers={"h": "1"}, idempotency_key="k", key_expires_at=LATER)
    job = evolve.enqueued(asked, NOW, unmet)
    assert job.state is (State.WAITING if unmet else State.READY)
    assert (job.created_at, job.due_at, job.run_at, job.unmet) == (NOW, run_at or NOW, run_at, unmet)
    assert (job.attempts, job.crashes, job.version, job.lease) == (0, 0, 0, None)


def test_nothing_that_was_asked_for_is_lost() -> None:
    """R1, R5: every option is stored with the job."""
    asked = new_job(
        priority=7,
        expires_at=LATER,
        timeout=1.5,
        max_attempts=None,
        max_crashes=2,
        idempotency_key="k",
        key_expires_at=LATER,
        headers={"h": "1"},
        tags=("a", "b"),
        workflow_id="w",
        kept=True,
    )
    job = evolve.enqueued(asked, NOW, 0)
    for name in JobRequest.__struct_fields__:
        assert getattr(job, name) == getattr(asked, name)


@given(records({State.READY}))
def test_a_claim_gives_a_new_lease(job: JobRecord) -> None:
    """D2, W: the version grows by one; nothing of an earlier run shows."""
    after = evolve.claimed(job, "new", NOW, LATER, "w2")
    assert after.lease is not None
    assert (after.lease.token, after.lease.version, after.lease.expires_at) == ("new", job.version + 1, LATER)
    assert (after.lease.worker, after.lease.claimed_at) == ("w2", NOW)
    assert (after.version, after.state) == (job.version + 1, State.INFLIGHT)
    assert (after.started_at, after.progress) == (None, None)
    assert (after.worker, after.claimed_at) == ("w2", NOW)
    assert changed(job, after) <= {"state", "version", "lease", "worker", "claimed_at", "started_at", "progress"}


@given(records({State.INFLIGHT}))
def test_a_reclaim_counts_a_crash_and_forgets_the_schedule(job: JobRecord) -> None:
    """D5: new token, version + 1, crashes + 1, run_at cleared; attempts are untouched."""
    after = evolve.claimed(job, "new", NOW, LATER, "w2")
    assert (after.version, after.crashes, after.run_at) == (job.version + 1, job.crashes + 1, None)
    claim = {"version", "lease", "worker", "claimed_at", "started_at", "progress"}
    assert changed(job, after) <= claim | {"crashes", "run_at"}


@given(records({State.INFLIGHT}), moments, st.none() | moments, st.none() | progress)
def test_an_extended_lease_never_shrinks(
    job: JobRecord, until: datetime, started: datetime | None, said: Progress | None
) -> None:
    """D6, T2: max(old, new) expiry, the same token; news is stored, and a report without news forgets nothing."""
    after = evolve.extended(job, until, started, said)
    assert job.lease is not None
    assert after.lease is not None
    assert after.lease.expires_at == max(job.lease.expires_at, until)
    assert (after.lease.token, after.lease.version) == (job.lease.token, job.lease.version)
    assert (after.started_at, after.progress) == (started or job.started_at, said or job.progress)
    assert changed(job, after) <= {"lease", "started_at", "progress"}


@given(records({State.INFLIGHT}), transitions)
def test_a_settle_copies_the_fields_of_its_transition(job: JobRecord, to: Transition) -> None:
    """D9, D8: complete fields as given by the core; the token is remembered, the lease is over."""
    after = evolve.settled(job, to, NOW)
    for name in FENCED - {"lease", "settled_token", "settled_kind", "settled_at", "state"}:
        assert getattr(after, name) == getattr(to, name)
    assert (after.lease, after.settled_token, after.version) == (None, to.token, job.version)
    assert (after.settled_kind, after.settled_at) == (settle_kind(to), NOW)
    assert (after.worker, after.claimed_at) == (job.worker, job.claimed_at)


@given(records({State.INFLIGHT}), acks)
def test_an_ack_is_done_even_after_a_cancel_request(job: JobRecord, to: Ack) -> None:
    """T3: a later Ack wins; the result and the key stay."""
    after = evolve.settled(job, to, NOW)
    assert (after.state, after.result, after.completed_at) == (State.DONE, to.result, NOW)
    assert after.keep_until == to.keep_until
    assert changed(job, after) <= FENCED | ENDED | {"result"}


@given(records({State.INFLIGHT}), fails)
def test_a_fail_is_a_dead_letter_with_its_reason(job: JobRecord, to: Fail) -> None:
    """Q1, I2: payload, history and key are kept."""
    after = evolve.settled(job, to, NOW)
    assert (after.state, after.dlq_reason, after.completed_at) == (State.DLQ, to.reason, NOW)
    assert after.keep_until == to.keep_until
    assert changed(job, after) <= FENCED | ENDED | {"dlq_reason"}


@given(records({State.INFLIGHT}, stop_requested_at=st.none()), put_backs)
def test_a_put_back_waits_in_line_again(job: JobRecord, to: PutBack) -> None:
    """F1, D11: ready, due at its run_at, with nothing of the last run."""
    after = evolve.settled(job, to, NOW)
    assert (after.state, after.run_at, after.due_at) == (State.READY, to.run_at, to.run_at)
    assert (after.progress, after.completed_at, after.keep_until) == (None, None, None)
    assert changed(job, after) <= FENCED | {"run_at", "due_at", "progress"}


def is_cancelled(job: JobRecord, after: JobRecord, keep_until: datetime) -> bool:
    """Whether the job has ended cancelled; a kept one with its key and for ever (T3, M1)."""
    key = (job.idempotency_key, job.key_expires_at) if job.kept else (None, None)
    until = LAST_MOMENT if job.kept else keep_until
    ended = (after.state, after.lease, after.completed_at, after.keep_until) == (State.CANCELLED, None, NOW, until)
    return ended and (after.idempotency_key, after.key_expires_at) == key


def is_dead_by_hand(job: JobRecord, after: JobRecord) -> bool:
    """Whether the job has ended dead, as `death` wants it (Q4, M1)."""
    until = LAST_MOMENT if job.kept else LATER
    ended = (after.state, after.lease, after.completed_at, after.keep_until) == (State.DLQ, None, NOW, until)
    return ended and (after.dlq_reason, after.fingerprint) == ("by hand", "f0")


@given(records({State.INFLIGHT}, stop_requested_at=moments), put_backs | cancels)
def test_a_put_back_of_a_job_asked_to_stop_lands_in_cancelled(job: JobRecord, to: PutBack | Cancel) -> None:
    """T3: and the key is freed."""
    after = evolve.settled(job, to, NOW)
    assert is_cancelled(job, after, to.keep_until)
    assert changed(job, after) <= FENCED | ENDED | KEY


@given(records({State.INFLIGHT}, stop_requested_at=st.none()), put_backs)
def test_a_put_back_of_a_job_asked_to_die_is_dead(job: JobRecord, to: PutBack) -> None:
    """Q4, T1: with the reason, fingerprint and retention of the request."""
    asked = evolve.asked_to_die(job, death, NOW)
    assert changed(job, asked) == REQUEST
    after = evolve.settled(asked, to, NOW)
    assert is_dead_by_hand(job, after)
    assert changed(asked, after) <= FENCED | ENDED | DEAD


@given(records({State.READY, State.WAITING}))
def test_a_withdrawn_job_is_cancelled_and_gives_its_key_back(job: JobRecord) -> None:
    """T1, T3, I2: in line, which is not a settle."""
    after = evolve.withdrawn(job, NOW, LATER)
    assert is_cancelled(job, after, LATER)
    assert changed(job, after) <= {"state"} | ENDED | KEY


@given(records({State.READY, State.WAITING}))
def test_a_job_dead_lettered_by_hand_keeps_all_but_its_place(job: JobRecord) -> None:
    """Q4, I2: in line, which is not a settle."""
    after = evolve.dead_lettered(job, death, NOW)
    assert is_dead_by_hand(job, after)
    assert changed(job, after) <= {"state"} | ENDED | DEAD


@given(records({State.INFLIGHT}, stop_requested_at=st.none()), st.sampled_from(["expired", "cancel", "die"]))
def test_a_job_left_behind_ends_as_it_was_asked_to(job: JobRecord, why: str) -> None:
    """T1, T3, N1, Q4: cancelled, or dead if that was asked for."""
    asked = {"expired": job, "cancel": evolve.asked_to_cancel(job, NOW), "die": evolve.asked_to_die(job, death, NOW)}
    after = evolve.lapsed(asked[why], NOW, LATER + SECOND)
    assert is_dead_by_hand(job, after) if why == "die" else is_cancelled(job, after, LATER + SECOND)
    assert changed(asked[why], after) <= {"state", "lease"} | ENDED | KEY | DEAD


@given(records({State.INFLIGHT}, stop_requested_at=st.none()))
def test_a_cancel_goes_before_a_dead_letter(job: JobRecord) -> None:
    """T3: in whichever order they were asked for; the first of a kind counts."""
    dies = evolve.asked_to_die(job, death, NOW)
    stops = evolve.asked_to_cancel(job, NOW)
    assert (stops.stop_requested_at, stops.stop_reason) == (NOW, None)
    assert changed(job, stops) == {"stop_requested_at"}
    assert evolve.asked_to_die(dies, DeadLetter(id="", reason="x", fingerprint="", keep_until=NOW), LATER) == dies
    assert evolve.asked_to_cancel(stops, LATER) == evolve.asked_to_die(stops, death, LATER) == stops
    both = evolve.asked_to_cancel(dies, LATER)
    assert changed(job, both) == {"stop_requested_at"}
    assert both.stop_requested_at == LATER


@given(records({State.WAITING}), moments)
def test_a_released_job_is_due_at_its_time_or_now(job: JobRecord, now: datetime) -> None:
    """K2, N1: never before its run_at, never in the past."""
    after = evolve.released(job, now)
    assert after.state is State.READY
    assert after.due_at == (now if job.run_at is None else max(now, job.run_at))
    assert changed(job, after) <= {"state", "due_at"}


@given(
    records({State.DLQ, State.CANCELLED}),
    st.builds(
        Replay,
        id=st.just("job-1"),
        payload=st.none() | st.binary(max_size=5),
        idempotency_key=st.none() | texts,
        key_expires_at=st.none() | moments,
        run_at=st.none() | moments,
    ),
)
def test_a_replay_starts_over_and_forgets_no_history(job: JobRecord, replay: Replay) -> None:
    """Q2: counts at zero, version and failures go on, lineage kept, payload and key as asked for."""
    after = evolve.replayed(job, replay, NOW)
    assert after.state is (State.WAITING if job.unmet else State.READY)
    assert (after.attempts, after.crashes, after.unknown_put_backs) == (0, 0, 0)
    assert (after.version, after.failures, after.last_error) == (job.version, job.failures, job.last_error)
    assert (after.original_id, after.replays) == (job.original_id or job.id, job.replays + 1)
    assert after.payload == (job.payload if replay.payload is None else replay.payload)
    assert (after.idempotency_key, after.key_expires_at) == (replay.idempotency_key, replay.key_expires_at)
    assert (after.run_at, after.due_at) == (replay.run_at, replay.run_at or NOW)
    assert (after.result, after.dlq_reason, after.completed_at, after.keep_until) == (None, None, None, None)
    assert (after.stop_requested_at, after.stop_reason, after.progress, after.expires_at) == (None, None, None, None)
    for name in ("worker", "claimed_at", "started_at", "settled_token", "settled_kind", "settled_at"):
        assert getattr(after, name) == getattr(job, name)


@given(records({State.READY}), st.none() | moments, st.none() | st.integers(-100, 100))
def test_a_rescheduled_job_moves_in_time_and_rank_only(
    job: JobRecord, run_at: datetime | None, priority: int | None
) -> None:
    """T1: None leaves things as they are."""
    after = evolve.rescheduled(job, run_at, priority)
    assert after.priority == (job.priority if priority is None else priority)
    assert (after.run_at, after.due_at) == ((job.run_at, job.due_at) if run_at is None else (run_at, run_at))
    assert changed(job, after) <= {"run_at", "due_at", "priority"}


def test_a_lease_can_only_be_extended_where_there_is_one() -> None:
    """D6: the caller checks first; a record without a lease is a mistake and not a silent success."""
    with pytest.raises(AssertionError):
        evolve.extended(record(), LATER, None, None)
