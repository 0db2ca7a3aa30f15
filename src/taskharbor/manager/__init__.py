"""Tasks that agents claim by id: submit, claim, heartbeat, complete, fail, retry (M1-M4). The modules are internal.

A task is a job in a reserved queue that workers do not serve. A claim is a lease on it. Nothing in the library imports
this package; it stands on a harbor, and what is decided about claims is in `rules`.
"""

from taskharbor.errors import (
    InvalidTask,
    InvalidWorkerID,
    MaxAttemptsReached,
    StoreClosed,
    TaskAlreadyClaimed,
    TaskCompleted,
    TaskError,
    TaskFailed,
    TaskNotClaimed,
    TaskNotFound,
    TaskNotTerminal,
    WrongWorker,
)
from taskharbor.manager.manager import TaskManager
from taskharbor.manager.task import Task, TaskStatus

__all__ = [
    "InvalidTask",
    "InvalidWorkerID",
    "MaxAttemptsReached",
    "StoreClosed",
    "Task",
    "TaskAlreadyClaimed",
    "TaskCompleted",
    "TaskError",
    "TaskFailed",
    "TaskManager",
    "TaskNotClaimed",
    "TaskNotFound",
    "TaskNotTerminal",
    "TaskStatus",
    "WrongWorker",
]
