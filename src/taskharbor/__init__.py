"""TaskHarbor: durable background jobs for Python.

from taskharbor import Harbor

harbor = Harbor()

@harbor.task
def welcome(name: str) -> str: ...

welcome.enqueue("Ada")

Applications import from here. `docs/reference.md` lists what other modules are for; everything else is internal.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from taskharbor.version import __version__ as __version__

if TYPE_CHECKING:
    from taskharbor.client.handle import Job
    from taskharbor.core.job import JobRecord
    from taskharbor.core.recycling import Recycle
    from taskharbor.core.retry import Retry
    from taskharbor.errors import LeaseLost, RetryAfter, Snooze, Unrecoverable
    from taskharbor.flow import FailedStep, Flow, Graph, chain, chord, group
    from taskharbor.harbor import Harbor
    from taskharbor.task import AsyncTask, Task
    from taskharbor.worker.context import JobContext, current
    from taskharbor.workflows.run import Run
    from taskharbor.workflows.step import Step

__all__ = [
    "AsyncTask",
    "FailedStep",
    "Flow",
    "Graph",
    "Harbor",
    "Job",
    "JobContext",
    "JobRecord",
    "LeaseLost",
    "Recycle",
    "Retry",
    "RetryAfter",
    "Run",
    "Snooze",
    "Step",
    "Task",
    "Unrecoverable",
    "chain",
    "chord",
    "current",
    "group",
]


# Where each public name lives: imported when first asked for, so that `import taskharbor` alone costs next to nothing.
_HOMES = {
    "client.handle": ("Job",),
    "core.job": ("JobRecord",),
    "core.recycling": ("Recycle",),
    "core.retry": ("Retry",),
    "errors": ("LeaseLost", "RetryAfter", "Snooze", "Unrecoverable"),
    "flow": ("FailedStep", "Flow", "Graph", "chain", "chord", "group"),
    "harbor": ("Harbor",),
    "task": ("AsyncTask", "Task"),
    "worker.context": ("JobContext", "current"),
    "workflows.run": ("Run",),
    "workflows.step": ("Step",),
}


def __getattr__(name: str) -> Any:
    """A public name, from its home."""
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'taskharbor' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"taskharbor.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
