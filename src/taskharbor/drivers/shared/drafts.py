"""The columns of a job that the SQL drivers read and write when they run a step of the core (decision 19)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from msgspec.structs import replace

from taskharbor.core.job import JobRecord, Lease
from taskharbor.core.line import SINCE_EVER
from taskharbor.core.states import READY
from taskharbor.core.steps.draft import Draft, Part

K = TypeVar("K")
ValueReader = Callable[[Any], Any]

# Columns that steps change and that most jobs do not use.
TIMES = (
    *("run_at", "expires_at", "completed_at", "keep_until", "key_expires_at"),
    *("stop_requested_at", "stop_keep_until"),
)
TEXTS = ("idempotency_key", "stop_reason", "stop_fingerprint", "dlq_reason", "fingerprint", "original_id")
NUMBERS = ("attempts", "crashes", "unknown_put_backs", "unmet", "replays", "priority")

# The columns of the statement step_jobs; the lease is its expiry.
READ = ("id", "type", "due_at", "state", "lease", *TIMES, *TEXTS, "workflow_id", *NUMBERS, "kept")
COMMON = 4
AS_NEW = (*(None,) * (2 + len(TIMES) + len(TEXTS)), *(0,) * (1 + len(NUMBERS)))

# The columns of the statements that write jobs, and their values.
CHANGED = ("due_at", *TIMES, "state", *TEXTS, *NUMBERS)
values = attrgetter(*CHANGED)

# The payload of every record in a draft. A step that replaces it puts another object in its place.
UNREAD = bytes(bytearray(b"unread"))
_BLANK = JobRecord(id="", type="", queue="", payload=UNREAD, state=READY, created_at=SINCE_EVER, due_at=SINCE_EVER)


def record(row: Sequence[Any], readers: Sequence[tuple[str, ValueReader]]) -> JobRecord:
    """The record of a row of READ, without cargo. `readers` names each column and reads what is not null."""
    wanted = readers[:COMMON] if row[COMMON:] == AS_NEW else readers
    named = zip(wanted, row, strict=False)
    return replace(_BLANK, **{name: read(value) for (name, read), value in named if value is not None})


def lease_until(expires_at: Any) -> Lease:
    """A lease of which rules read the expiry only."""
    return Lease("", 0, expires_at, "", SINCE_EVER)


def changed_jobs(draft: Draft) -> Iterator[JobRecord]:
    """The records to write."""
    return (after for _, before, after in draft.jobs.changes() if after is not None and after is not before)


def removed(part: Part[K, Any]) -> list[K]:
    """The keys of the values to remove."""
    return [key for key, before, after in part.changes() if after is None and before is not None]
