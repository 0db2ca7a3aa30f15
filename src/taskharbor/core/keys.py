"""Idempotency keys: what a key stands for, and the digest that tells whether a repeat asked for the same (I1, I3)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct


class KeyRecord(Struct, frozen=True):
    """A key and the id of the job or workflow it stands for; `expires_at=None` means as long as that is kept."""

    key: str
    owner: str
    digest: bytes
    expires_at: datetime | None

    def alive(self, now: datetime) -> bool:
        """Whether the key still holds its place."""
        return self.expires_at is None or self.expires_at > now


def digest(asked: Iterable[tuple[str, bytes]]) -> bytes:
    """A fingerprint of what was asked for: tasks and payloads, in order."""
    found = hashlib.blake2b(digest_size=16)
    for task, payload in asked:
        for part in (task.encode(), payload):
            found.update(len(part).to_bytes(8, "big"))
            found.update(part)
    return found.digest()
