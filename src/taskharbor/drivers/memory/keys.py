"""Idempotency keys, and the workflows that may own them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from taskharbor.core.job import JobRecord
from taskharbor.core.keys import KeyRecord
from taskharbor.core.states import TERMINAL


class KeyTable(dict[str, KeyRecord]):
    """The keys of a store, and the members of each workflow."""

    def __init__(self, jobs: Mapping[str, JobRecord]) -> None:
        self.jobs = jobs
        self.members: dict[str, set[str]] = {}

    def living(self, key: str | None, now: datetime) -> KeyRecord | None:
        """The record of a key in force: not expired, or its owner has not ended (I2)."""
        known = None if key is None else self.get(key)
        return known if known is not None and known.alive(now, self.has_ended(known.owner)) else None

    def has_ended(self, owner: str) -> bool:
        """Whether a job, or every job of a workflow, has ended (I2)."""
        ids = self.members.get(owner, (owner,))
        return all(id not in self.jobs or self.jobs[id].state in TERMINAL for id in ids)

    def owns(self, owner: str, key: str) -> bool:
        """Whether the key belongs to this owner."""
        return key in self and self[key].owner == owner

    def free(self, job: JobRecord) -> None:
        """Delete the key of a job, unless another one has it by now."""
        if job.idempotency_key is not None and self.owns(job.id, job.idempotency_key):
            del self[job.idempotency_key]

    def free_workflow(self, workflow: str) -> bool:
        """Delete the key of a workflow (I2)."""
        owned = [key for key, record in self.items() if record.owner == workflow]
        for key in owned:
            del self[key]
        return bool(owned)

    def forget(self, job: JobRecord) -> None:
        """Delete what a job that is removed held; the key of a workflow goes with its last member."""
        self.free(job)
        if job.workflow_id is not None:
            members = self.members[job.workflow_id]
            members.remove(job.id)
            if not members:
                del self.members[job.workflow_id]
                self.free_workflow(job.workflow_id)
