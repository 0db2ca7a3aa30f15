"""Rows and records.

A claim converts thousands of rows a second, so a row whose rare columns are all as new takes a short way.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from taskharbor.core.job import JobRecord, Lease, NewJob
from taskharbor.core.states import INFLIGHT
from taskharbor.drivers.postgres.db import Row
from taskharbor.drivers.shared import columns
from taskharbor.drivers.shared.columns import DECODERS, STATES, json_or_none, token_of

# PostgreSQL's text holds every character but this one.
NUL, NO_NUL = "\x00", "\N{SYMBOL FOR NULL}"


def text_or_none(text: str | None) -> str | None:
    """A text that PostgreSQL can hold."""
    return text.replace(NUL, NO_NUL) if text is not None and NUL in text else text


def split_token(token: str) -> tuple[str, int, str]:
    """The stored part of a token, the number of the row and the id; a token that is not ours names no row."""
    prefix, seq, id = columns.split_token(token)
    ours = seq.isascii() and seq.isdecimal() and seq[0] != "0" and len(seq) < 19
    return (prefix, int(seq), id) if ours else ("", 0, "")


def claimed(row: Row, tokens: str, now: datetime, expires_at: datetime, worker: str) -> JobRecord:
    """The record of a row of the part claim; most are as they were enqueued, without rare options."""
    (
        _,
        seq,
        id,
        type,
        queue,
        payload,
        priority,
        max_attempts,
        max_crashes,
        created_at,
        due_at,
        run_at,
        workflow_id,
        rest,
    ) = row
    version = 1 if rest is None else rest[0]
    return JobRecord(
        id=id,
        type=type,
        queue=queue,
        payload=payload,
        priority=priority,
        max_attempts=max_attempts,
        max_crashes=max_crashes,
        state=INFLIGHT,
        created_at=created_at,
        due_at=due_at,
        version=version,
        lease=Lease(f"{tokens}{seq} {id}", version, expires_at, worker, now),
        worker=worker,
        claimed_at=now,
        run_at=run_at,
        workflow_id=workflow_id,
        **({} if rest is None else _rest(rest, seq, id)),
    )


def _rest(rest: Row, seq: int, id: str) -> dict[str, Any]:
    """What else there is to a claimed job: the composite column of the part claim."""
    named = zip(_CLAIMED_REST, rest[1:-1], strict=True)
    found = {name: read(value) for (name, read), value in named if value is not None}
    return {**found, "settled_token": None if rest[-1] is None else token_of(rest[-1], seq, id)}


def record(row: Row) -> JobRecord:
    """The record of a row of the view `record`."""
    (
        seq,
        id,
        type,
        queue,
        payload,
        priority,
        max_attempts,
        max_crashes,
        state,
        created_at,
        due_at,
        version,
        token,
        lease_expires_at,
        worker,
        claimed_at,
        *rest,
    ) = row
    return JobRecord(
        id=id,
        type=type,
        queue=queue,
        payload=payload,
        priority=priority,
        max_attempts=max_attempts,
        max_crashes=max_crashes,
        state=STATES[state],
        created_at=created_at,
        due_at=due_at,
        version=version,
        lease=None if token is None else Lease(token_of(token, seq, id), version, lease_expires_at, worker, claimed_at),
        worker=worker,
        claimed_at=claimed_at,
        **{name: read(value) for (name, read), value in zip(_REST, rest[:-2], strict=True) if value is not None},
        settled_token=None if rest[-2] is None else token_of(rest[-2], seq, id),
        keep_until=rest[-1],
    )


def _same(value: Any) -> Any:
    return value


_REST: tuple[tuple[str, Callable[[Any], Any]], ...] = tuple(
    (name, DECODERS.get(name, _same))
    for name in [
        "run_at",
        "expires_at",
        "timeout",
        "idempotency_key",
        "key_expires_at",
        "headers",
        "tags",
        "workflow_id",
        "kept",
        "attempts",
        "crashes",
        "unknown_put_backs",
        "last_error",
        "failed_at",
        "failures",
        "started_at",
        "progress",
        "stop_requested_at",
        "stop_reason",
        "stop_fingerprint",
        "stop_keep_until",
        "completed_at",
        "result",
        "dlq_reason",
        "fingerprint",
        "unmet",
        "original_id",
        "replays",
        "settled_kind",
        "settled_at",
    ]
)

# Those of the composite column of the part claim, but for the first and the last.
_CLAIMED_NAMES = (
    "expires_at",
    "timeout",
    "idempotency_key",
    "key_expires_at",
    "headers",
    "tags",
    "kept",
    "attempts",
    "crashes",
    "unknown_put_backs",
    "last_error",
    "failed_at",
    "failures",
    "original_id",
    "replays",
    "settled_kind",
    "settled_at",
)
_CLAIMED_REST: tuple[tuple[str, Callable[[Any], Any]], ...] = tuple(
    (name, DECODERS.get(name, _same)) for name in _CLAIMED_NAMES
)

# The columns of a new job, in the order of `new_row`.
NEW_COLUMNS = [
    "id",
    "type",
    "queue",
    "payload",
    "priority",
    "max_attempts",
    "max_crashes",
    "run_at",
    "expires_at",
    "timeout",
    "idempotency_key",
    "key_expires_at",
    "headers",
    "tags",
    "workflow_id",
    "kept",
]
RARE = len(NEW_COLUMNS) - NEW_COLUMNS.index("run_at")  # the last ones, which most jobs have no use for


def new_row(job: NewJob) -> Row:
    """The values of NEW_COLUMNS."""
    return (
        job.id,
        job.type,
        job.queue,
        job.payload,
        job.priority,
        job.max_attempts,
        job.max_crashes,
        job.run_at,
        job.expires_at,
        job.timeout,
        job.idempotency_key,
        job.key_expires_at,
        json_or_none(dict(job.headers)) if job.headers else None,
        json_or_none(job.tags),
        job.workflow_id,
        job.kept or None,
    )
