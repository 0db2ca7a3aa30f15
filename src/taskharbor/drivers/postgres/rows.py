"""Rows and records.

A claim converts thousands of rows a second, so a job without rare options has a short path.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

from taskharbor.core.job import JobRecord, Lease, NewJob
from taskharbor.core.states import INFLIGHT
from taskharbor.drivers.postgres.db import Row
from taskharbor.drivers.shared import columns
from taskharbor.drivers.shared.columns import DECODERS, RECORD, STATES, ColumnReader, json_or_none, token_of

# PostgreSQL's text holds every character but this one.
NUL, NO_NUL = "\x00", "\N{SYMBOL FOR NULL}"


def text_or_none(text: str | None) -> str | None:
    """Replace the character that PostgreSQL cannot store."""
    return text.replace(NUL, NO_NUL) if text is not None and NUL in text else text


def split_token(token: str) -> tuple[str, int, str]:
    """The stored part of a token, the number of the row and the id; a token that is not ours names no row."""
    prefix, seq, id = columns.split_token(token)
    ours = seq.isascii() and seq.isdecimal() and seq[0] != "0" and len(seq) < 19
    return (prefix, int(seq), id) if ours else ("", 0, "")


def claimed(row: Row, now: datetime, expires_at: datetime, worker: str, tokens: str) -> JobRecord:
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
    """The fields of a claimed job that most jobs do not use."""
    named = zip(_CLAIMED, rest[1:], strict=True)
    found = {name: DECODERS[name](value) if name in DECODERS else value for name, value in named if value is not None}
    if "settled_token" in found:
        found["settled_token"] = token_of(found["settled_token"], seq, id)
    return found


# Those of the composite column of the part claim, after the version.
_CLAIMED = (
    *("expires_at", "timeout", "idempotency_key", "key_expires_at", "headers", "tags", "kept", "attempts", "crashes"),
    *("unknown_put_backs", "last_error", "failed_at", "failures", "original_id", "replays", "settled_kind"),
    *("settled_at", "settled_token"),
)
_READERS: dict[str, ColumnReader] = {**dict.fromkeys(RECORD), **DECODERS, "state": STATES.__getitem__}
record = partial(columns.record, list(_READERS.items()))

# The columns of a new job, in the order of `new_row`.
NEW_COLUMNS = (
    *("id", "type", "queue", "payload", "priority", "max_attempts", "max_crashes", "run_at", "expires_at", "timeout"),
    *("idempotency_key", "key_expires_at", "headers", "tags", "workflow_id", "kept"),
)
RARE = len(NEW_COLUMNS) - NEW_COLUMNS.index("run_at")  # the last ones, which most jobs do not use


def new_row(job: NewJob) -> Row:
    """The values of NEW_COLUMNS, by name because that is much faster than attrgetter."""
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
        json_or_none(job.tags) if job.tags else None,
        job.workflow_id,
        job.kept or None,
    )
