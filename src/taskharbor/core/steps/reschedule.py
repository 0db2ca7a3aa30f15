"""Reschedule: ready jobs moved in time or rank (D11)."""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.core import evolve
from taskharbor.core.evolve import Reschedule
from taskharbor.core.states import READY
from taskharbor.core.steps.draft import Draft
from taskharbor.core.steps.needs import VerbStep


def reschedule(draft: Draft, changes: Sequence[Reschedule]) -> VerbStep[list[bool]]:
    """Move ready jobs; False for the others."""
    yield from draft.look(change.id for change in changes)
    return [_move(draft, change) for change in changes]


def _move(draft: Draft, change: Reschedule) -> bool:
    job = draft.job(change.id)
    if job is None or job.state is not READY:
        return False
    draft.put(evolve.rescheduled(job, change.run_at, change.priority))
    return True
