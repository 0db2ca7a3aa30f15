"""Records for the tests: `record` makes one by hand, `records` lets Hypothesis make any."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from taskharbor.core.job import KEPT_FAILURES, Failure, JobRecord, Lease, NewJob, Progress
from taskharbor.core.states import TERMINAL, State

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
SECOND = timedelta(seconds=1)
TOKEN = "token-1"

moments = st.integers(-(10**15), 10**15).map(lambda microseconds: NOW + timedelta(microseconds=microseconds))
texts = st.text(max_size=5)
tokens = st.sampled_from([TOKEN, "token-2", "token-3"])


def new_job(**given: Any) -> NewJob:
    """A job to be stored."""
    return NewJob(**{"id": "job-1", "type": "mail.send", "queue": "mail", "payload": b"{}", **given})


def lease(**given: Any) -> Lease:
    """A lease that is valid for ten more seconds."""
    known = {"token": TOKEN, "version": 1, "expires_at": NOW + 10 * SECOND, "worker": "w1", "claimed_at": NOW}
    return Lease(**{**known, **given})


def record(state: State = State.READY, **given: Any) -> JobRecord:
    """A stored job, under a lease if it is inflight."""
    known: dict[str, Any] = {"id": "job-1", "type": "mail.send", "queue": "mail", "payload": b"{}"}
    known |= {"state": state, "created_at": NOW, "due_at": NOW}
    if state is State.INFLIGHT:
        known |= {"lease": lease(), "version": 1}
    if state in TERMINAL:
        known |= {"completed_at": NOW, "keep_until": NOW + 60 * SECOND}
    return JobRecord(**{**known, **given})


def claimed(**given: Any) -> JobRecord:
    """A job that a worker holds."""
    return record(State.INFLIGHT, **given)


def failure(attempt: int) -> Failure:
    """One failed run."""
    return Failure(attempt, "ValueError", f"boom {attempt}", "Traceback …", NOW + attempt * SECOND, worker="w1")


histories = st.integers(0, KEPT_FAILURES).map(lambda count: tuple(failure(attempt) for attempt in range(count)))
leases = st.builds(lease, token=tokens, expires_at=moments)
progress = st.builds(Progress, fraction=st.floats(0, 1), note=texts)

# What rules look at is drawn; the rest only has to be something that a move could spoil.
ANY_FIELD: dict[str, st.SearchStrategy[Any]] = {
    "max_attempts": st.none() | st.integers(1, 30),
    "max_crashes": st.none() | st.integers(1, 10),
    "attempts": st.integers(0, 35),
    "crashes": st.integers(0, 12),
    "unknown_put_backs": st.integers(0, 35),
    "failures": histories,
    "key_expires_at": st.none() | moments,
    "due_at": moments,
    "run_at": st.none() | moments,
    "unmet": st.integers(0, 2),
    "settled_token": st.none() | tokens,
    "settled_kind": st.sampled_from([None, "ack", "put_back", "fail", "cancel"]),
    "settled_at": st.sampled_from([None, NOW]),
    "worker": st.sampled_from([None, "w0"]),
    "claimed_at": st.sampled_from([None, NOW]),
    "kept": st.booleans(),
    "stop_requested_at": st.sampled_from([None, NOW]),
    "started_at": st.sampled_from([None, NOW]),
    "progress": st.sampled_from([None, Progress(0.5, "half")]),
    "original_id": st.sampled_from([None, "job-0"]),
}
SOMETHING: dict[str, Any] = {
    "payload": b"[1]",
    "priority": 3,
    "expires_at": NOW + 90 * SECOND,
    "idempotency_key": "key-1",
    "headers": {"trace": "1"},
    "tags": ("a", "b"),
    "workflow_id": "flow-1",
    "last_error": "ValueError: old",
    "failed_at": NOW - SECOND,
    "version": 7,
    "replays": 2,
}
SOMETHING_IN: dict[State, dict[str, Any]] = {State.DONE: {"result": b"5"}, State.DLQ: {"dlq_reason": "gave_up"}}


def records(states: Iterable[State] = tuple(State), **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[JobRecord]:
    """Any record in one of these states; `fixed` narrows single fields."""
    return st.one_of(*(_records_in(state, fixed) for state in sorted(states)))


def _records_in(state: State, fixed: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[JobRecord]:
    held = {"lease": leases} if state is State.INFLIGHT else {}
    constant = SOMETHING | SOMETHING_IN.get(state, {})
    return st.fixed_dictionaries({**ANY_FIELD, **held, **fixed}).map(lambda drawn: record(state, **constant | drawn))
