"""The job record: everything a store holds about one durable request to run a task.

Records are frozen values, independent of any driver. Times are aware UTC datetimes, exact to the microsecond;
durations are seconds. `JobRequest` is the client's request and never changes; the rest is what has happened since.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct

from taskharbor.core.arguments import arguments_of
from taskharbor.core.states import State

KEPT_FAILURES = 20
LAST_MOMENT = datetime.max.replace(tzinfo=UTC) - timedelta(days=2)  # room for any time zone


class Dependency(Struct, frozen=True, gc=False):
    """An edge to a parent, and what the parent's failure means for the child: hold, cancel or collect."""

    parent: str
    policy: str = "hold"


class Failure(Struct, frozen=True, gc=False, omit_defaults=True):
    """One failed run, kept in the record's history."""

    attempt: int
    kind: str
    message: str
    traceback: str
    failed_at: datetime
    started_at: datetime | None = None
    worker: str | None = None


class Progress(Struct, frozen=True, gc=False, omit_defaults=True):
    """The progress a handler reports: a fraction of 1 and a note."""

    fraction: float
    note: str = ""


class Lease(Struct, frozen=True, gc=False):
    """Temporary ownership of an inflight job, valid while `expires_at > now`."""

    token: str
    version: int
    expires_at: datetime
    worker: str
    claimed_at: datetime


class JobRequest(Struct, frozen=True, gc=False, kw_only=True):
    """The client's request, with every option resolved.

    A `kept` record stays until it is deleted, whatever the retention, and keeps its key when cancelled (M1).
    """

    id: str
    type: str
    queue: str
    payload: bytes
    priority: int = 0
    expires_at: datetime | None = None
    timeout: float | None = None
    max_attempts: int | None = 4
    max_crashes: int | None = 5
    idempotency_key: str | None = None
    key_expires_at: datetime | None = None
    headers: Mapping[str, str] = {}
    tags: tuple[str, ...] = ()
    workflow_id: str | None = None
    kept: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name; typed as in the signature if the record comes from a harbor that has the task."""
        return arguments_of(self.payload)


class NewJob(JobRequest, frozen=True, gc=False, kw_only=True):
    """A job to be stored. `run_at=None` means due immediately."""

    run_at: datetime | None = None
    depends_on: tuple[Dependency, ...] = ()


class JobRecord(JobRequest, frozen=True, gc=False, kw_only=True):
    """A stored job. `due_at` is its position in line (D11); `version` counts its claims.

    `worker`, `claimed_at` and `started_at` describe the last claim, even after it has ended; `settled_token`,
    `settled_kind` and `settled_at` of the last settle. A stop request without a reason is a cancel, one with a reason a
    dead letter by hand, which ends with that reason, fingerprint and `keep_until` (T3, Q4).
    """

    state: State
    created_at: datetime
    due_at: datetime
    run_at: datetime | None = None
    attempts: int = 0
    crashes: int = 0
    unknown_put_backs: int = 0
    last_error: str | None = None
    failed_at: datetime | None = None
    failures: tuple[Failure, ...] = ()
    version: int = 0
    lease: Lease | None = None
    worker: str | None = None
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    progress: Progress | None = None
    stop_requested_at: datetime | None = None
    stop_reason: str | None = None
    stop_fingerprint: str | None = None
    stop_keep_until: datetime | None = None
    completed_at: datetime | None = None
    result: bytes | None = None
    dlq_reason: str | None = None
    fingerprint: str | None = None
    unmet: int = 0
    original_id: str | None = None
    replays: int = 0
    settled_token: str | None = None
    settled_kind: str | None = None
    settled_at: datetime | None = None
    keep_until: datetime | None = None
