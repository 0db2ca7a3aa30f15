"""TaskHarbor: durable background jobs for Python.

from taskharbor import Harbor

harbor = Harbor()

@harbor.task
def welcome(name: str) -> str: ...

welcome.enqueue("Ada")
"""

import logging

from taskharbor.core.retry import Retry
from taskharbor.errors import LeaseLost, RetryAfter, Snooze, Unrecoverable
from taskharbor.flow import chain, chord, group
from taskharbor.harbor import Harbor
from taskharbor.runtime.context import JobContext, current
from taskharbor.runtime.handle import Job
from taskharbor.runtime.step import Step
from taskharbor.task import AsyncTask, Task

__all__ = [
    "AsyncTask",
    "Harbor",
    "Job",
    "JobContext",
    "LeaseLost",
    "Retry",
    "RetryAfter",
    "Snooze",
    "Step",
    "Task",
    "Unrecoverable",
    "chain",
    "chord",
    "current",
    "group",
]

logging.getLogger("taskharbor").addHandler(logging.NullHandler())
