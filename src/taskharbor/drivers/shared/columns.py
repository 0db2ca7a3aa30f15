"""Columns that the SQL drivers store alike, and the record of a row of them.

A token is the prefix of its claim, the number of the row, a space and the job's id; only the prefix is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from taskharbor.core.job import Failure, JobRecord, Lease, Progress
from taskharbor.core.states import State

S = TypeVar("S", bound=Struct)

# The columns of a record, in the order of every statement that reads one.
RECORD = (
    *("seq", "id", "type", "queue", "payload", "priority", "max_attempts", "max_crashes", "state", "created_at"),
    *("due_at", "version", "token", "lease_expires_at", "worker", "claimed_at", "run_at", "expires_at", "timeout"),
    *("idempotency_key", "key_expires_at", "headers", "tags", "workflow_id", "kept", "attempts", "crashes"),
    *("unknown_put_backs", "last_error", "failed_at", "failures", "started_at", "progress", "stop_requested_at"),
    *("stop_reason", "stop_fingerprint", "stop_keep_until", "completed_at", "result", "dlq_reason", "fingerprint"),
    *("unmet", "original_id", "replays", "settled_kind", "settled_at", "settled_token", "keep_until"),
)

# Decodes a stored value; None where the value is stored as it is.
ColumnReader = Callable[[Any], Any] | None
STATES: dict[str, State] = {state.value: state for state in State}
DECODERS: dict[str, Callable[[str], Any]] = {
    "headers": msgspec.json.Decoder(dict[str, str]).decode,
    "tags": msgspec.json.Decoder(tuple[str, ...]).decode,
    "failures": msgspec.json.Decoder(tuple[Failure, ...]).decode,
    "progress": msgspec.json.Decoder(Progress).decode,
}
_encode = msgspec.json.Encoder().encode


def json_or_none(value: Mapping[str, str] | tuple[object, ...] | Progress | None) -> str | None:
    """Return a small structure as JSON, None if it is empty."""
    return _encode(value).decode() if value else None


def token_of(prefix: str, seq: int, id: str) -> str:
    """Return the token of a claimed row."""
    return f"{prefix}{seq} {id}"


def split_token(token: str) -> tuple[str, str, str]:
    """Return prefix, number and id of a token; of a token that no driver made they mean nothing."""
    claim, _, id = token.partition(" ")
    dot = claim.rfind(".") + 1
    return claim[:dot], claim[dot:], id


def record(readers: Sequence[tuple[str, ColumnReader]], row: Sequence[Any]) -> JobRecord:
    """Return the record of a row of RECORD. `readers` has the name of each column and its reader."""
    named = zip(readers, row, strict=True)
    stored = {name: value if read is None else read(value) for (name, read), value in named if value is not None}
    fields: dict[str, Any] = {"max_attempts": None, "max_crashes": None} | stored  # null is no limit, not the default
    seq, token, expires_at = fields.pop("seq"), fields.pop("token", None), fields.pop("lease_expires_at", None)
    if token is not None:
        token = token_of(token, seq, fields["id"])
        fields["lease"] = Lease(token, fields["version"], expires_at, fields["worker"], fields["claimed_at"])
    if "settled_token" in fields:
        fields["settled_token"] = token_of(fields["settled_token"], seq, fields["id"])
    return JobRecord(**fields)


def struct_of(kind: type[S], row: Sequence[Any]) -> S:
    """Return a struct from a row that has its fields in order."""
    return kind(**dict(zip(kind.__struct_fields__, row, strict=True)))
