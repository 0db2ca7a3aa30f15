"""What the TaskManager keeps for itself among a store's jobs: a queue that no worker is served from, and its keys (M1).

A task is a job of this queue. `reserve` hands it out by its id only, so every driver asks `in_line` which queues it may
look through.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from taskharbor.core.job import NewJob
from taskharbor.core.names import KEY_LIMIT, check_name
from taskharbor.errors import InvalidJob

TASKS = "taskharbor.tasks"
KEY_PREFIX = f"{TASKS}:"


def in_line(queues: Sequence[str]) -> Sequence[str]:
    """Those of the queues whose jobs are handed out by their place in line."""
    return [queue for queue in queues if queue != TASKS] if TASKS in queues else queues


def is_news(jobs: Iterable[NewJob]) -> bool:
    """Whether workers have to hear of these new jobs; mostly the first one says so."""
    return any(job.queue != TASKS for job in jobs)


def check_queue(what: str, text: object) -> str:
    """The name of a queue for ordinary jobs, or `InvalidJob` with the rule it breaks."""
    if text == TASKS:
        raise InvalidJob(f"{what} must not be {TASKS!r}: a TaskManager keeps its tasks there, take another name")
    return check_name(what, text)


def check_key(what: str, text: object) -> str:
    """An idempotency key of an ordinary job or flow, likewise."""
    if isinstance(text, str) and text.startswith(KEY_PREFIX):
        raise InvalidJob(f"{what} must not begin with {KEY_PREFIX!r}: those are a TaskManager's, begin it otherwise")
    return check_name(what, text, KEY_LIMIT)
