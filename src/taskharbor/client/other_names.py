"""Hints for users of Celery, RQ, arq, Dramatiq, Huey or Procrastinate who use the names they know, and for a method
sought on a task that the harbor has. Hidden from type checkers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

TASK_NAMES = {
    "delay": "enqueue(…)",
    "apply_async": "using(delay=…, queue=…).enqueue(…)",
    "s": "step(…)",
    "si": "step(…)",
    "send": "enqueue(…)",
    "send_with_options": "using(…).enqueue(…)",
    "defer": "enqueue(…)",
    "defer_async": "aenqueue(…)",
    "enqueue_many": "step(…) for each, and harbor.enqueue_many(steps)",
    "aenqueue_many": "step(…) for each, and harbor.aenqueue_many(steps)",
}
HARBOR_NAMES = {
    "send_task": 'enqueue("task.name", {…})',
    "enqueue_job": 'aenqueue("task.name", {…})',
    "actor": "task",
    "cron": 'recurring(cron="0 3 * * *")',
    "periodic": 'recurring(cron="0 3 * * *")',
    "periodic_task": 'recurring(cron="0 3 * * *")',
    "run": "run_worker()",
    "work": "run_worker()",
}
JOB_NAMES = {
    "get": "result(timeout=…)",
    "wait": "result(timeout=…)",
    "return_value": "result(timeout=0)",
    "ready": 'state() == "done"',
    "status": "state()",
    "get_status": "state()",
    "is_finished": 'state() == "done"',
    "successful": 'state() == "done"',
    "failed": 'state() == "dlq"',
    "is_failed": 'state() == "dlq"',
    "revoke": "cancel()",
    "abort": "cancel()",
}
RUN_NAMES = {**JOB_NAMES, "failed": 'state() == "failed"', "is_failed": 'state() == "failed"'}


def hinting(names: Mapping[str, str], called: Callable[[Any], str]) -> Callable[[object, str], Any]:
    """A `__getattr__` whose error says what to write instead; `called` gives the name of the object."""

    def attribute(self: object, name: str) -> Any:
        if name not in names:
            return object.__getattribute__(self, name)  # the usual error, also that of a property
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}: write {called(self)}.{names[name]}",
            name=name,
            obj=self,
        )

    return attribute
