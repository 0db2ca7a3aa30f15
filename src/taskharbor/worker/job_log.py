"""Log records about a job: `event`, the job's fields, and `brief`, the message for handlers that show the fields."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from taskharbor.core.job import JobRecord


def log_job(
    logger: logging.Logger,
    level: int,
    event: str,
    job: JobRecord,
    detail: str = "",
    *,
    traceback: str | None = None,
    **fields: Any,
) -> None:
    """Log an event of a job. Never raises: a broken log filter of the application must not stop the worker."""
    if not logger.isEnabledFor(level):
        return
    suffix = f": {detail}" if detail else ""
    extra = {"event": event, "job_id": job.id, "task": job.type, "attempt": job.attempts + 1, **fields}
    with suppress(Exception):
        file, line, function, _ = logger.findCaller(stacklevel=2)
        record = logger.makeRecord(
            logger.name,
            level,
            file,
            line,
            "%s: job %s (%s)%s",
            (event, job.id, job.type, suffix),
            None,
            function,
            {**extra, "brief": event + suffix},
        )
        record.exc_text = traceback.rstrip() or None if traceback else None
        logger.handle(record)
