"""Hints for users of Celery, RQ, arq, Dramatiq, Huey or Procrastinate who use the names they know, and for a method
sought on a task that the harbor has. Hidden from type checkers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

TASK_NAMES = {
    "delay": "enqueue(…)",
    "apply_async": "using(delay=…, queue=…).enqueue(…)",
    "delay_on_commit": "using(tx=…).enqueue(…), which commits with your transaction",
    "apply_async_on_commit": "using(tx=…).enqueue(…), which commits with your transaction",
    "s": "step(…)",
    "si": "step(…)",
    "signature": "step(…)",
    "subtask": "step(…)",
    "send": "enqueue(…)",
    "send_with_options": "using(…).enqueue(…)",
    "defer": "enqueue(…)",
    "defer_async": "aenqueue(…)",
    "enqueue_many": "step(…) for each, and harbor.enqueue_many(steps)",
    "aenqueue_many": "step(…) for each, and harbor.aenqueue_many(steps)",
}
TASK_ELSEWHERE = {
    "retry": "raise RetryAfter(seconds), or any exception, in the handler",
    "request": "call current() in the handler",
    "AsyncResult": "write harbor.job(id)",
}
HARBOR_NAMES = {
    "shared_task": "task",
    "AsyncResult": "job(id)",
    "add_periodic_task": 'recurring(cron="0 3 * * *")',
    "worker_main": "run_worker()",
    "send_task": 'enqueue("task.name", {…})',
    "enqueue_job": 'aenqueue("task.name", {…})',
    "actor": "task",
    "cron": 'recurring(cron="0 3 * * *")',
    "periodic": 'recurring(cron="0 3 * * *")',
    "periodic_task": 'recurring(cron="0 3 * * *")',
    "run": "run_worker()",
    "work": "run_worker()",
}
FLOW_NAMES = {
    "delay": "enqueue()",
    "apply_async": "enqueue()",
}
HARBOR_ELSEWHERE = {
    "autodiscover_tasks": "import the modules of the tasks, or name them with --include",
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


def hinting(
    names: Mapping[str, str], called: Callable[[Any], str], elsewhere: Mapping[str, str] = MappingProxyType({})
) -> Callable[[object, str], Any]:
    """A `__getattr__` whose error says what to write instead; `called` gives the name of the object.

    `elsewhere` has whole hints, for names that no method of the object replaces.
    """

    def attribute(self: object, name: str) -> Any:
        if name not in names and name not in elsewhere:
            return object.__getattribute__(self, name)  # the usual error, also that of a property
        hint = elsewhere.get(name) or f"write {called(self)}.{names[name]}"
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}: {hint}",
            name=name,
            obj=self,
        )

    return attribute
