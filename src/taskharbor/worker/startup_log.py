"""The first log lines of a worker: what it works on, and warnings about its setup."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from taskharbor.client.session import Session
from taskharbor.version import __version__

logger = logging.getLogger("taskharbor.worker")
MOST_NAMED = 10


def log_start(id: str, session: Session, queues: Sequence[str], slots: int, tasks: Collection[str]) -> None:
    """Log `worker.started`; warn if there is no task to run."""
    fields = {"event": "worker.started", "store": session.store, "queues": list(queues), "slots": slots}
    logger.info(
        "worker.started: %s (taskharbor %s) works on %s of %s, %d %s at a time, %s",
        id,
        __version__,
        ", ".join(queues),
        session.store,
        slots,
        "job" if slots == 1 else "jobs",
        _tasks(tasks),
        extra=fields,
    )
    if not tasks:
        logger.warning(
            "worker.no_tasks: no task is registered, so every job will be put back. Probably the modules that define "
            'the tasks were not imported: name them with --include shop.mail, or include = ["shop.mail"] in '
            "[tool.taskharbor], or import them beside the harbor",
            extra={"event": "worker.no_tasks"},
        )


def warn_of_memory() -> None:
    """Warn that the store lives in this process (G2)."""
    logger.warning(
        "store.ephemeral: memory:// is a store inside this process: no other process can enqueue into it or see it, "
        "and its jobs are lost when the worker ends. Name a durable one, such as sqlite:///taskharbor.db",
        extra={"event": "store.ephemeral"},
    )


def _tasks(tasks: Collection[str]) -> str:
    if not tasks:
        return "no tasks"
    named = sorted(tasks)[:MOST_NAMED]
    more = f" and {len(tasks) - len(named)} more" if len(tasks) > len(named) else ""
    return f"{len(tasks)} {'task' if len(tasks) == 1 else 'tasks'}: {', '.join(named)}{more}"
