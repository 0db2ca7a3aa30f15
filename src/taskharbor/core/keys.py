"""Idempotency keys: what a key refers to, and the digest that shows whether a repeat is the same request (I1, I3)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec
from msgspec import Struct

from taskharbor.core.job import NewJob


class KeyRecord(Struct, frozen=True):
    """A key and the id of the job or workflow that has it; with `expires_at=None` it is kept as long as that one.

    It stays in force until it expires, and at least until its owner has ended (I2), which the store knows.
    """

    key: str
    owner: str
    digest: bytes
    expires_at: datetime | None

    def alive(self, now: datetime, owner_ended: bool) -> bool:
        """Whether the key is still in force."""
        return not owner_ended or self.expires_at is None or self.expires_at > now


def digest(asked: Iterable[tuple[str, bytes]]) -> bytes:
    """A digest of a request: tasks and payloads, in order."""
    found = hashlib.blake2b(digest_size=16)
    for task, payload in asked:
        for part in (task.encode(), payload):
            found.update(len(part).to_bytes(8, "big"))
            found.update(part)
    return found.digest()


def group_digest(jobs: Sequence[NewJob]) -> bytes:
    """The digest of a keyed group, including dependencies and their failure policies; never equal to a job's."""
    numbers = {job.id: number for number, job in enumerate(jobs)}
    edges = [[(numbers.get(edge.parent), edge.policy) for edge in job.depends_on] for job in jobs]
    return digest([*((job.type, job.payload) for job in jobs), ("", msgspec.json.encode(edges))])
