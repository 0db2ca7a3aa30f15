"""TaskHarbor: durable background jobs for Python.

from taskharbor import Harbor

harbor = Harbor()

@harbor.task
def welcome(name: str) -> str: ...

welcome.enqueue("Ada")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from taskharbor.version import __version__ as __version__

if TYPE_CHECKING:
    from taskharbor.client.handle import Job
    from taskharbor.core.job import JobRecord
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
    "AsyncTask": "task",
    "FailedStep": "flow",
    "Flow": "flow",
    "Graph": "flow",
    "Harbor": "harbor",
    "Job": "client.handle",
    "JobContext": "worker.context",
    "JobRecord": "core.job",
    "LeaseLost": "errors",
    "Retry": "core.retry",
    "RetryAfter": "errors",
    "Run": "workflows.run",
    "Snooze": "errors",
    "Step": "workflows.step",
    "Task": "task",
    "Unrecoverable": "errors",
    "chain": "flow",
    "chord": "flow",
    "current": "worker.context",
    "group": "flow",
}


def __getattr__(name: str) -> Any:
    """A public name, from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module 'taskharbor' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"taskharbor.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
