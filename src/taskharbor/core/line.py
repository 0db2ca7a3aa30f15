"""The order of jobs: how several queues share one reserve, and which job comes first (D11)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from taskharbor.core.job import JobRecord
from taskharbor.core.states import State

SINCE_EVER = datetime.min.replace(tzinfo=UTC)


def shares(queues: Sequence[str], limit: int) -> dict[str, int]:
    """How many of `limit` jobs each queue may take first; shares that one leaves unused go to the others.

    A name given several times has that many shares. With fewer jobs than shares the earlier names win: callers that
    reserve few at a time shuffle the names.
    """
    each, over = divmod(max(limit, 0), len(queues)) if queues else (0, 0)
    taken: dict[str, int] = {}
    for index, queue in enumerate(queues):
        taken[queue] = taken.get(queue, 0) + each + (index < over)
    return taken


def effective_due(job: JobRecord) -> datetime:
    """When a ready or lapsed job became due: a first crash puts it in front, later ones by lease expiry (D11)."""
    if job.state is not State.INFLIGHT or job.lease is None:
        return job.due_at
    return SINCE_EVER if job.crashes == 0 else job.lease.expires_at
