"""Transitions: the four ways a run ends, as values that `settle` stores (D9).

Each carries the complete new mutable fields, so a driver copies and never computes. Which fields exist depends on the
kind, so that an illegal combination cannot be spelled. `keep_until` is when the record may be pruned if it ends here;
`increment` is what the run adds to the totals, None if it is not counted.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from taskharbor.core.job import Failure, NewJob


class Increment(Struct, frozen=True, gc=False):
    """The share of a run in the totals. The time it waited is that from `due_at` to its start."""

    queue: str
    task: str
    outcome: str
    due_at: datetime


class _SettledFields(Struct, frozen=True, gc=False, kw_only=True):
    id: str
    token: str
    keep_until: datetime
    started_at: datetime | None = None
    attempts: int = 0
    crashes: int = 0
    unknown_put_backs: int = 0
    last_error: str | None = None
    failed_at: datetime | None = None
    failures: tuple[Failure, ...] = ()
    new_jobs: tuple[NewJob, ...] = ()
    increment: Increment | None = None


class Ack(_SettledFields, frozen=True, gc=False, kw_only=True, tag="ack"):
    """The job is done."""

    result: bytes | None = None


class PutBack(_SettledFields, frozen=True, gc=False, kw_only=True, tag="put_back"):
    """The job waits in line again until `run_at`, or ends as its stop request says: cancelled or dead (T3)."""

    run_at: datetime


class Fail(_SettledFields, frozen=True, gc=False, kw_only=True, tag="fail"):
    """The job is dead-lettered."""

    reason: str
    fingerprint: str | None = None


class Cancel(_SettledFields, frozen=True, gc=False, kw_only=True, tag="cancel"):
    """The job is cancelled on request."""


Transition = Ack | PutBack | Fail | Cancel

_KINDS: dict[type[Transition], str] = {Ack: "ack", PutBack: "put_back", Fail: "fail", Cancel: "cancel"}


def settle_kind(to: Transition) -> str:
    """The kind of the settle, whatever state it leads to (D8)."""
    return _KINDS[type(to)]
