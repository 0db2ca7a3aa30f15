"""Tasks that agents claim by id: submit, claim, heartbeat, complete, fail, retry (M1-M4).

A task is a job in a queue that no worker is served from. Whoever claims it holds a lease on it, and only the manager
that claimed it can complete it or fail it.

Import from here: the modules are internal.
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
