"""Hints for people who come from Celery, arq, Dramatiq or Procrastinate and use the names of those.

Only a look-up that fails gets here. Type checkers do not see `__getattr__`, so that they go on reporting such names.
"""

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
}
HARBOR_NAMES = {
    "send_task": 'enqueue("task.name", {…})',
    "enqueue_job": 'aenqueue("task.name", {…})',
}


def hinting(names: Mapping[str, str], called: Callable[[Any], str]) -> Callable[[object, str], Any]:
    """A `__getattr__` that names what to write instead; `called` is how the object is spoken of."""

    def attribute(self: object, name: str) -> Any:
        if name not in names:
            return object.__getattribute__(self, name)  # the usual error, also that of a property
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}: write {called(self)}.{names[name]}",
            name=name,
            obj=self,
        )

    return attribute
