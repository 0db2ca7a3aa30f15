"""Answers to groups, and the digests that keys are stored with (D1, I1)."""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.core.group import Enqueued
from taskharbor.core.job import NewJob
from taskharbor.core.keys import digest, group_digest

# The owner and the digest of a key.
StoredKey = tuple[str, bytes]


def digest_of(job: NewJob) -> bytes:
    """Return the digest that the key of a job is stored with."""
    return digest([(job.type, job.payload)])


def known(job: NewJob, stored: StoredKey) -> Enqueued:
    """Return the answer to a job whose key is taken."""
    return Enqueued(stored[0], False, stored[1] == digest_of(job))


def all_created(jobs: Sequence[NewJob]) -> tuple[Enqueued, ...]:
    """Return the answer to a group of which every job is new."""
    return tuple(Enqueued(job.id, True) for job in jobs)


def all_known(jobs: Sequence[NewJob], workflow_id: str, stored: bytes) -> tuple[Enqueued, ...]:
    """Return the answer to a group whose key belongs to a workflow, stored with that digest."""
    same = stored == group_digest(jobs)
    return tuple(Enqueued(workflow_id, False, same) for _ in jobs)
