"""A recurring task as a store holds it. `core.ticking` interprets its definition and advances it."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from taskharbor.core.group import GroupResult
from taskharbor.core.job import NewJob
from taskharbor.errors import JobExists, UnknownDependency


class Schedule(Struct, frozen=True, kw_only=True):
    """A recurring task as stored: an opaque definition, its next slot, the operator's pause, and its last run.

    A schedule without a slot waits for the end of its last run.
    """

    name: str
    definition: bytes
    slot: datetime | None
    paused: bool = False
    last_job_id: str | None = None
    last_slot: datetime | None = None


class Swap(Struct, frozen=True, kw_only=True):
    """One change of a schedule: from the expected record (None: absent) to the new one (None: deleted), with a job."""

    name: str
    seen: Schedule | None
    then: Schedule | None
    job: NewJob | None = None


def swap_verdict(stored: GroupResult) -> bool | JobExists:
    """The verdict of a swap, by how its job was stored: a taken id leaves the schedule alone, other refusals raise."""
    if isinstance(stored, UnknownDependency):
        raise stored
    return stored if isinstance(stored, JobExists) else True
