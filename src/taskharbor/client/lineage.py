"""The running job as enqueueing sees it: jobs that its handler enqueues carry its lineage in their headers."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

from taskharbor.core.job import JobRecord


class HasJob(Protocol):
    """A run of a job."""

    job: JobRecord


current_run: ContextVar[HasJob | None] = ContextVar("taskharbor_run", default=None)  # set by workers


def lineage() -> dict[str, str] | None:
    """Headers that name the job whose handler enqueues a new one; None outside handlers."""
    run = current_run.get()
    if run is None:
        return None
    job = run.job
    inherited = {name: value for name, value in job.headers.items() if name in ("correlation_id", "traceparent")}
    return {**inherited, "parent_id": job.id, "root_id": job.headers.get("root_id", job.id)}
