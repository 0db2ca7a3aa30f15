"""A task on its way to the store: one job of the reserved queue (M1)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from taskharbor.client.job_builder import JobBuilder
from taskharbor.client.session import Session
from taskharbor.core.codec import checked_size
from taskharbor.driver import Enqueued, Group
from taskharbor.manager import checks


class NewTask(Struct, frozen=True):
    """A task to be stored; its caller gets the id."""

    payload: bytes
    key: str | None
    max_attempts: int | None
    tx: object | None = None
    batched: bool = True

    @classmethod
    def checked(cls, payload: bytes, key: str | None, max_attempts: int) -> NewTask:
        """The task, or `InvalidTask` with the rule that the input breaks."""
        checks.typed(payload, bytes, "payload must be bytes, b'' if there is nothing to say")
        return cls(payload, None if key is None else checks.stored_key(key), checks.checked_attempts(max_attempts))

    def group(self, session: Session, now: datetime) -> Group:
        """Its job, once the limit of the store is known."""
        checked_size(self.payload, session.payload_limit, "the bytes of the payload")
        return Group(jobs=(JobBuilder(session, now).managed(self.payload, self.key, self.max_attempts),))

    def handle(self, group: Group, stored: Sequence[Enqueued]) -> str:
        return stored[0].id
