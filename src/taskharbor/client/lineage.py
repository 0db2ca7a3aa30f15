"""The job that runs here, as far as enqueueing is concerned: jobs that its handler enqueues carry its lineage."""

from __future__ import annotations

from contextvars import ContextVar

from taskharbor.core.job import JobRecord

running_job: ContextVar[JobRecord | None] = ContextVar("taskharbor_running_job", default=None)


def lineage() -> dict[str, str] | None:
    """Headers that tie a new job to the job whose handler enqueues it; None outside handlers."""
    job = running_job.get()
    if job is None:
        return None
    inherited = {name: value for name, value in job.headers.items() if name in ("correlation_id", "traceparent")}
    return {**inherited, "parent_id": job.id, "root_id": job.headers.get("root_id", job.id)}
