"""Jobs that are stored together, and what became of each (D1, I1)."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from taskharbor.core.job import NewJob
from taskharbor.errors import JobExists, UnknownDependency


class Group(Struct, frozen=True, kw_only=True):
    """Jobs stored all or none, each behind those that it waits for (else `UnknownDependency`).

    With a key (a flow's), a known key stores nothing and names the existing workflow.
    """

    jobs: tuple[NewJob, ...]
    key: str | None = None
    key_expires_at: datetime | None = None
    workflow_id: str | None = None


class Enqueued(Struct, frozen=True, gc=False):
    """What became of one job of a group: its id, or the id that its key already stood for."""

    id: str
    created: bool
    same_payload: bool = True


GroupResult = tuple[Enqueued, ...] | JobExists | UnknownDependency
