"""Every exception of TaskHarbor, and the tree they form.

HarborError
├── ConfigError                a URL, option or application that cannot be used
│   ├── MissingExtra           an engine whose package is not installed
│   ├── UnsafeStore            a store whose settings delete jobs
│   ├── DuplicateTask          two tasks with the same name
│   └── UnknownTask            no task with that name is registered
├── InvalidJob                 bad input to an enqueue; nothing was stored
│   ├── WrongArguments         a call that does not fit the task's parameters
│   ├── NotEncodable           a value that JSON cannot carry
│   └── PayloadTooLarge        arguments or result over the limit
├── JobExists                  the id is taken; nothing of the group was stored
├── ScheduleExists             a recurring task with that name already exists
├── ScheduleNotFound           there is no recurring task with that name
├── ScheduleBusy               its last run has not ended, and it must not overlap
├── UnknownDependency          a job depends on one that is not before it in its group
├── IllegalMove                a move that the job's state does not allow
├── LeaseError                 a settle or extend that was refused
│   ├── JobNotInflight
│   ├── LeaseExpired
│   └── LeaseMismatch
├── InvalidLeaseDuration       lease_for must be positive
├── DriverError
│   ├── DriverClosed
│   │   └── StoreGone          the store's file was deleted or replaced while open
│   ├── DriverForked           the driver was opened before a fork
│   ├── DriverUnavailable      the store does not answer (retry later)
│   ├── StoreCorrupt           the store answers, but with damaged data
│   ├── SchemaMismatch         the store's schema is older or newer than this version
│   └── CapabilityMissing      the driver cannot do what was asked
├── ResultError                raised by job.result()
│   ├── JobFailed
│   ├── JobCancelled
│   └── JobNotFound
├── TaskError                  a TaskManager refused a call; nothing was changed
│   ├── TaskNotFound
│   ├── TaskAlreadyClaimed     another worker holds it
│   ├── TaskNotClaimed         claim it first
│   ├── TaskCompleted
│   ├── TaskFailed
│   ├── MaxAttemptsReached
│   ├── InvalidTask            no payload
│   ├── InvalidWorkerID
│   ├── WrongWorker            only the worker that holds it may do this
│   ├── TaskNotTerminal        it has not ended
│   └── StoreClosed            the manager was closed
├── BlockingCallInLoop         a blocking call on a running event loop
├── NoWorker                   a wait without a timeout in a test in which no worker runs
├── NoCurrentJob               current() outside a handler
└── LeaseLost                  this handler no longer owns its job

Signal                         raised by a handler to control its own job
├── Unrecoverable              do not retry: dead-letter now
├── Snooze                     run again later without counting an attempt
└── RetryAfter                 count a failure, but choose the delay
"""

from __future__ import annotations

from datetime import timedelta


class HarborError(Exception):
    """Base of every exception TaskHarbor raises, except the signals of handlers."""


class ConfigError(HarborError):
    """A URL, option or application that cannot be used."""


class UnsafeStore(ConfigError):
    """A store whose settings delete jobs."""


class MissingExtra(ConfigError):
    """An engine whose package is not installed."""


class DuplicateTask(ConfigError):
    """Two tasks with the same name."""


class UnknownTask(ConfigError):
    """No task with that name is registered."""


class InvalidJob(HarborError, ValueError):
    """Bad input to an enqueue; nothing was stored."""


class WrongArguments(InvalidJob, TypeError):
    """A call that does not fit the parameters of its task: missing, unknown, or of another type."""


class NotEncodable(InvalidJob, TypeError):
    """An argument or a result that JSON cannot carry."""


class PayloadTooLarge(InvalidJob):
    """Arguments or a result over the size limit."""


class JobExists(HarborError):
    """The id is taken; nothing of the caller's group was stored."""


class ScheduleExists(HarborError):
    """A recurring task with that name already exists; nothing was stored."""


class ScheduleNotFound(HarborError, LookupError):
    """There is no recurring task with that name."""


class ScheduleBusy(HarborError):
    """The last run of a recurring task has not ended, and it must not overlap; nothing was enqueued."""


class UnknownDependency(HarborError):
    """A job depends on one that is not before it in its group; nothing was stored."""


class IllegalMove(HarborError):
    """A move that the job's state does not allow; nothing was changed."""


class LeaseError(HarborError):
    """A settle or extend that was refused; nothing was changed."""


class JobNotInflight(LeaseError):
    """The job is unknown or no worker holds it."""


class LeaseExpired(LeaseError):
    """The lease ran out before this call."""


class LeaseMismatch(LeaseError):
    """The job is held under another lease."""


class InvalidLeaseDuration(HarborError, ValueError):
    """A lease must last longer than zero."""


class DriverError(HarborError):
    """A problem with the store itself."""


class DriverClosed(DriverError):
    """The driver was closed."""


class StoreGone(DriverClosed):
    """The file of the store was deleted, moved or replaced while it was open; the driver has closed it."""


class DriverForked(DriverError):
    """The driver was opened before a fork and cannot be used in the child."""


class DriverUnavailable(DriverError):
    """The store does not answer; the operation may or may not have happened."""


class StoreCorrupt(DriverError):
    """The store answers, but its data is damaged or it is not a TaskHarbor store."""


class SchemaMismatch(DriverError):
    """The store's schema is older or newer than this version understands."""


class CapabilityMissing(DriverError):
    """The driver cannot do what was asked."""


class ResultError(HarborError):
    """A job has no result to give."""


class JobFailed(ResultError):
    """The job is in the dead-letter queue."""


class JobCancelled(ResultError):
    """The job was cancelled or expired."""


class JobNotFound(ResultError, LookupError):
    """No such job, or its retention has run out."""


class TaskError(HarborError):
    """A TaskManager refused a call; nothing was changed unless the error says so."""


class TaskNotFound(TaskError, LookupError):
    """There is no such task."""


class TaskAlreadyClaimed(TaskError):
    """Another worker holds the task: take the next one, or wait."""


class TaskNotClaimed(TaskError):
    """No worker holds the task: claim it first."""


class TaskCompleted(TaskError):
    """The task is already done."""


class TaskFailed(TaskError):
    """The task has failed for good; its `error` says why."""


class MaxAttemptsReached(TaskError):
    """The task has used all its attempts."""


class InvalidTask(TaskError, ValueError):
    """A task without a valid payload."""


class InvalidWorkerID(TaskError, ValueError):
    """A worker id that is empty or not text."""


class WrongWorker(TaskError):
    """Only the worker that holds the task may do this."""


class TaskNotTerminal(TaskError):
    """Only tasks that have ended can be deleted."""


class StoreClosed(TaskError):
    """The manager was closed: make a new one."""


class BlockingCallInLoop(HarborError, RuntimeError):
    """A blocking call on a running event loop; the message names the async twin."""


class NoWorker(HarborError, RuntimeError):
    """A wait without a timeout in a test in which no worker runs."""


class NoCurrentJob(HarborError, LookupError):
    """`current()` was called outside a handler."""


class LeaseLost(HarborError):
    """This handler no longer owns its job: stop, nothing it does will be recorded."""


class Signal(Exception):
    """Base of the exceptions that a handler raises to control its own job."""


class Unrecoverable(Signal):
    """Dead-letter this job immediately: trying again cannot help."""


class _Delayed(Signal):
    def __init__(self, delay: float | timedelta, message: str = "") -> None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"delay must be zero or more seconds, not {delay!r}")
        super().__init__(message or f"{type(self).__name__} for {seconds:g} s")
        self.delay = seconds


class Snooze(_Delayed):
    """Run this job again after `delay` seconds without counting an attempt."""


class RetryAfter(_Delayed):
    """Count a failure and try again after `delay` seconds."""
