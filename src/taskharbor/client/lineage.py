"""The job that runs here, as far as enqueueing is concerned: jobs that its handler enqueues carry its lineage."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

from taskharbor.core.job import JobRecord


class HasJob(Protocol):
    """A run, of which enqueueing needs the job."""

    job: JobRecord


current_run: ContextVar[HasJob | None] = ContextVar("taskharbor_run", default=None)
"""The run whose handler is running here. Workers set it."""


def lineage() -> dict[str, str] | None:
    """Headers that tie a new job to the job whose handler enqueues it; None outside handlers."""
    run = current_run.get()
    if run is None:
        return None
    job = run.job
    inherited = {name: value for name, value in job.headers.items() if name in ("correlation_id", "traceparent")}
    return {**inherited, "parent_id": job.id, "root_id": job.headers.get("root_id", job.id)}
