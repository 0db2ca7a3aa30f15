"""The TaskManager's reserved queue, which no worker serves, and its reserved keys (M1).

A task is a job of this queue. `reserve` returns it by its id only, so every driver asks `in_line` which queues it may
search.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from taskharbor.core.job import NewJob
from taskharbor.core.names import KEY_LIMIT, check_name
from taskharbor.errors import InvalidJob

TASKS = "taskharbor.tasks"
KEY_PREFIX = f"{TASKS}:"


def in_line(queues: Sequence[str]) -> Sequence[str]:
    """The queues whose jobs are reserved in order."""
    return [queue for queue in queues if queue != TASKS] if TASKS in queues else queues


def is_news(jobs: Iterable[NewJob]) -> bool:
    """Whether workers must be woken for these new jobs; usually the first job decides."""
    return any(job.queue != TASKS for job in jobs)


def check_queue(what: str, text: object) -> str:
    """Return the name of a queue for ordinary jobs, or raise `InvalidJob` with the rule it breaks."""
    if text == TASKS:
        raise InvalidJob(f"{what} must not be {TASKS!r}: a TaskManager keeps its tasks there, choose another name")
    return check_name(what, text)


def check_key(what: str, text: object) -> str:
    """Return the idempotency key of an ordinary job or flow, or raise `InvalidJob`."""
    if isinstance(text, str) and text.startswith(KEY_PREFIX):
        raise InvalidJob(f"{what} must not begin with {KEY_PREFIX!r}: that prefix is reserved for TaskManager")
    if text is None:
        raise InvalidJob(f"{what} must be text, not None: leave it out for a job without one")
    return check_name(what, text, KEY_LIMIT)
