"""Workflows: the results of a job's parents, and what is known of a workflow as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from msgspec import Struct

from taskharbor.core.dependency import Parent
from taskharbor.core.states import State


class WorkflowCounts(Struct, frozen=True, kw_only=True):
    """The number of jobs of a workflow per stored state, and when the first was stored."""

    id: str
    created_at: datetime
    states: dict[State, int]


@runtime_checkable
class WorkflowStore(Protocol):
    """Reads workflows, and frees their keys.

    Called by workers for the arguments of a step that takes earlier results (`parents`), by `run.state()` and
    `run.result()`, and by `harbor.admin.workflows`. Storing edges is part of `enqueue`, releasing dependants part of
    `settle`: neither needs this protocol.
    """

    async def parents(self, ids: Sequence[str], most: int) -> list[list[Parent]]:
        """The dependencies of each job in the order given at enqueue, with their results (K3).

        If the results of a job's parents exceed `most` bytes together, the job gets their sizes without the results.
        """
        ...

    async def workflows(
        self, limit: int, after: str | None = None, ids: Sequence[str] | None = None
    ) -> list[WorkflowCounts]:
        """Workflows by id, the greatest first, starting after `after`; or those of `ids` that exist."""
        ...

    async def free_workflow_key(self, workflow_id: str) -> bool:
        """Forget the key of a workflow (I2); False if it has none."""
        ...
