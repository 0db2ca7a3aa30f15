"""Reads of one attempt at a step: every value once, with its revision.

`job/<id>` holds a record with its edges, `key/<key>` a key, `workflow/<id>` the members and keys of a workflow,
`schedule/<name>` a schedule. A `yield` precedes every request: there a scheduler may let other clients go first.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from datetime import datetime
from typing import Any, TypeVar

from msgspec import Struct

from taskharbor.core.job import JobRecord
from taskharbor.core.keys import KeyRecord
from taskharbor.core.states import TERMINAL
from taskharbor.core.steps.draft import EdgePlace
from taskharbor.core.steps.needs import StoredEdge

from .bucket import Bucket, Entry

R = TypeVar("R")
Requests = Generator[None, None, R]


class StoredJob(Struct, frozen=True):
    """A record with the edges to its parents, the places of those to its dependants, and its number in its commit."""

    job: JobRecord
    number: int
    above: dict[int, StoredEdge]
    below: tuple[EdgePlace, ...]


class StoredWorkflow(Struct, frozen=True):
    """The ids of a workflow's records in the order of their storing, and its keys."""

    members: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


class Reader:
    """The values that were read, and their revisions."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._entries: dict[str, Entry] = {}

    @property
    def revisions(self) -> dict[str, int]:
        """The revision of each name that was read."""
        return {name: entry.revision for name, entry in self._entries.items()}

    def is_stale(self) -> bool:
        """Whether something has changed since it was read."""
        return any(self.bucket.get(name).revision != revision for name, revision in self.revisions.items())

    def get(self, name: str) -> Requests[Any]:
        """A value."""
        if name not in self._entries:
            yield
            self._entries[name] = self.bucket.get(name)
        return self._entries[name].value

    def job(self, id: str) -> Requests[StoredJob | None]:
        """A job as stored."""
        found: StoredJob | None = yield from self.get(f"job/{id}")
        return found

    def jobs(self, ids: Iterable[str]) -> Requests[dict[str, StoredJob]]:
        """Those of the jobs that exist."""
        found: dict[str, StoredJob] = {}
        for id in ids:
            stored = yield from self.job(id)
            found |= {} if stored is None else {id: stored}
        return found

    def workflow(self, id: str) -> Requests[StoredWorkflow]:
        """A workflow as stored."""
        found: StoredWorkflow | None = yield from self.get(f"workflow/{id}")
        return found or StoredWorkflow()

    def members(self, workflow: str) -> Requests[list[JobRecord]]:
        """The records of a workflow, the oldest first."""
        stored = yield from self.workflow(workflow)
        jobs = yield from self.jobs(stored.members)
        return [each.job for each in jobs.values()]

    def kept_until(self, workflow: str) -> Requests[datetime | None]:
        """Until when the last record of a workflow is kept; None while a job has not ended."""
        jobs = yield from self.members(workflow)
        times = [job.keep_until for job in jobs]
        return None if None in times else max(time for time in times if time is not None)

    def key(self, key: str) -> Requests[KeyRecord | None]:
        """A key as stored."""
        found: KeyRecord | None = yield from self.get(f"key/{key}")
        return found

    def owned(self, workflows: Iterable[str]) -> Requests[list[str]]:
        """The keys of these workflows."""
        keys: list[str] = []
        for id in workflows:
            keys += (yield from self.workflow(id)).keys
        return keys

    def unfinished(self, owner: str) -> Requests[int]:
        """The number of unfinished jobs behind a key of this owner."""
        stored = yield from self.workflow(owner)
        jobs = yield from self.jobs(stored.members or (owner,))
        return sum(each.job.state not in TERMINAL for each in jobs.values())
