"""Jobs that are stored together, and the result for each (D1, I1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from msgspec import Struct

from taskharbor.core.job import NewJob
from taskharbor.errors import HarborError, JobExists, UnknownDependency


class Group(Struct, frozen=True, kw_only=True):
    """Jobs stored all or none, each after the jobs it waits for (else `UnknownDependency`).

    If a flow's key is already known, nothing is stored and the existing workflow is returned.
    """

    jobs: tuple[NewJob, ...]
    key: str | None = None
    key_expires_at: datetime | None = None
    workflow_id: str | None = None


class Enqueued(Struct, frozen=True, gc=False):
    """The result for one job of a group: its id, or the id of the job that already has its key."""

    id: str
    created: bool
    same_payload: bool = True


GroupResult = tuple[Enqueued, ...] | HarborError


def refusal(jobs: Sequence[NewJob], is_taken: Callable[[NewJob], bool]) -> JobExists | UnknownDependency | None:
    """Say why these cannot be stored together; None if they can. `is_taken`: the id exists and no key resolves it."""
    earlier = set[str]()
    for job in jobs:
        if is_taken(job):
            return exists(job.id)
        if missing := [edge.parent for edge in job.depends_on if edge.parent not in earlier]:
            return UnknownDependency(f"job {job.id} depends on {missing[0]}, which is not before it in its group")
        earlier.add(job.id)
    return JobExists("a group names the same id twice") if len(earlier) < len(jobs) else None


def exists(id: str) -> JobExists:
    """The error for an id that is taken (R2)."""
    return JobExists(f"job {id} exists")


def fresh(jobs: Iterable[NewJob], is_known: Callable[[NewJob], bool]) -> list[NewJob]:
    """The new jobs of an outcome that are stored: without those whose id or key is known, each id once (D9)."""
    found: dict[str, NewJob] = {}
    for job in jobs:
        if not is_known(job):
            found.setdefault(job.id, job)
    return list(found.values())


def is_closed(jobs: Sequence[NewJob]) -> bool:
    """Whether the jobs can be stored without a look-up: they have no keys and wait only for earlier ones."""
    earlier = set[str]()
    for job in jobs:
        if job.idempotency_key is not None or any(edge.parent not in earlier for edge in job.depends_on):
            return False
        earlier.add(job.id)
    return True
