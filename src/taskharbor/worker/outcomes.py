"""The outcome of a run: what a return, an exception, a stop request or a shutdown means. The decider decides on it.

The outcomes themselves, and what an exception of a handler means, are in `core/outcome.py`. Here is what only the
worker knows: stop requests, timeouts, arguments and results that do not fit.
"""

from __future__ import annotations

import math
import traceback
from types import TracebackType
from typing import Any

from taskharbor.client.registered_task import Registered
from taskharbor.core.codec import Undecodable, checked_size, encode_value
from taskharbor.core.job import JobRecord
from taskharbor.core.outcome import (
    CancelledByRequest,
    Deferred,
    Failed,
    Interrupted,
    Outcome,
    Snoozed,
    Succeeded,
    from_error,
    timed_out,
)
from taskharbor.core.retry import Retry
from taskharbor.core.text import kind_of, message_of
from taskharbor.core.wiring import TooMuch
from taskharbor.errors import NotEncodable, PayloadTooLarge
from taskharbor.worker.running import JobRun, Stop

AGAIN_IN = 1.0


class StoreAway(Exception):
    """The store was away when a run was to begin: the job is not at fault."""


def returned(run: JobRun, task: Registered, value: Any, limit: int, time: float) -> Outcome:
    """The outcome of a handler that returned a value at `time`: a success, unless after the timeout (F5)."""
    if run.stop == "timeout" or run.ends_by <= time:
        return _after_stop("timeout", run.job, task)
    return success(run, task, value, limit)


def success(run: JobRun, task: Registered, value: Any, limit: int) -> Succeeded | Failed:
    try:
        result = None if value is None else encode_value(value, "the result")
        if result is not None:
            checked_size(result, limit, f"the result of {task.name}")
    except PayloadTooLarge as error:
        return Failed("PayloadTooLarge", str(error), final="result_too_large")
    except NotEncodable as error:
        return Failed("NotEncodable", str(error), final="result_not_encodable")
    return Succeeded(result, run.effects.new_jobs)


def reported(run: JobRun, task: Registered, outcome: Outcome) -> Outcome:
    """The outcome of a run in a process of its own, where neither the timeout nor the stop request is known."""
    late = run.stop == "timeout" or run.ends_by <= run.returned_at < math.inf
    if isinstance(outcome, Succeeded):
        return _after_stop("timeout", run.job, task) if late else outcome
    if isinstance(outcome, Failed) and outcome.final == "undecodable":
        return outcome
    if late and run.stop not in ("lost", "cancel", "dead_letter"):
        return _after_stop("timeout", run.job, task)
    return outcome if run.stop is None else stopped(run, task)


def raised(
    error: BaseException, frames: TracebackType | None, run: JobRun, task: Registered | None, time: float
) -> Outcome:
    """The outcome of a run that raised at `time`; `frames` are those of its handler, None if it was not called."""
    if isinstance(error, Undecodable):
        return failure(error, frames, task)
    if isinstance(error, TooMuch):
        return Failed("ResultsTooLarge", str(error), final="results_too_large")
    stop = run.stop
    if stop not in ("lost", "cancel", "dead_letter") and run.ends_by <= time:
        return _after_stop("timeout", run.job, task)
    if stop is not None:
        return _after_stop(stop, run.job, task)
    if isinstance(error, StoreAway):
        return Deferred(AGAIN_IN)
    return failure(error, frames, task)


def failure(error: BaseException, frames: TracebackType | None, task: Registered | None) -> Failed | Snoozed:
    """The outcome of an exception that the handler itself raised."""
    if isinstance(error, Undecodable):
        return Failed("Undecodable", str(error), final="undecodable")
    try:
        text = "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
        return from_error(error, task.retry if task else Retry(), text)
    except BaseException as broken:  # an exception that cannot even be described
        return Failed(kind_of(broken), message_of(broken))


def stopped(run: JobRun, task: Registered | None) -> Outcome:
    """The outcome of a run that was asked to end: before its handler began, or under way in a process of its own."""
    return _after_stop(run.stop or "shutdown", run.job, task)


def _after_stop(stop: Stop, job: JobRecord, task: Registered | None) -> Outcome:
    if stop == "timeout" and task is not None:
        return timed_out(job.timeout or 0, task.retry)
    # After a dead-letter by hand the job is put back: the store ends it, and a cancel wins (T3).
    # After a lost lease the outcome is never written: see `Pipeline.conclude`.
    return CancelledByRequest() if stop == "cancel" else Interrupted(started=stop == "shutdown")


def abandoned(run: JobRun, task: Registered | None, time: float) -> Outcome:
    """The outcome of an abandoned run: cancelled if that was requested (T3), a timeout if that has passed (F5), else an
    interruption, which is not a failure."""
    if run.stop == "cancel":
        return CancelledByRequest()
    if is_late(run, time) and run.job.timeout is not None:
        return timed_out(run.job.timeout, task.retry if task else None)
    return Interrupted(started=run.begun)


def is_late(run: JobRun, time: float) -> bool:
    """Whether an abandoned run is past its timeout, and its outcome still to be written."""
    return run.effects.settled is None and run.stop != "lost" and run.ends_by <= time
