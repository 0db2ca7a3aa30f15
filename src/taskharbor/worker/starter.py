"""The starter: starts each run where its handler belongs, in a task of the loop or in a thread of the crew."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from contextvars import copy_context
from functools import partial
from types import CoroutineType
from typing import Any, cast

from taskharbor.core.outcome import Outcome
from taskharbor.worker.crew import Crew
from taskharbor.worker.executor import Executor
from taskharbor.worker.running import Host, JobRun
from taskharbor.worker.task_starts import TaskStarts
from taskharbor.worker.timeouts import Timeouts

# Not by create_task: a task factory is for tasks of handlers, and this is once per job. Where Python can, a job runs
# until it first waits before its task is scheduled, which halves the work of the loop for short jobs.
new_task = cast("Callable[..., asyncio.Task[None]]", asyncio.Task)
EAGER = sys.version_info >= (3, 12)
if EAGER:
    new_task = partial(new_task, eager_start=True)


class Starter:
    """Starts runs, and calls `conclude` on the loop with the outcome of each. Without a crew all run on the loop."""

    def __init__(
        self, host: Host, executor: Executor, crew: Crew | None, conclude: Callable[[JobRun, Outcome], None]
    ) -> None:
        self._executor = executor
        self._run_here, self._thread_ended = executor.run_here, self._ended_in_thread  # bound once, for all jobs
        self._crew = crew
        self._conclude = conclude
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._timeouts = Timeouts(host.request_stop)
        # Not for eager tasks: it would collect the callbacks of their handlers too.
        self._starts = nullcontext() if EAGER else TaskStarts(self._loop)

    def start(self, runs: Iterable[JobRun]) -> None:
        """Start these runs, together."""
        crew, executor, loop, conclude = self._crew, self._executor, self._loop, self._conclude
        executor.start_clock.forget()
        with self._starts:
            for run in runs:
                if crew is not None and executor.fits_a_thread(run.job):
                    self._hand_over(run, crew)
                else:
                    task = new_task(executor.run(run, conclude), loop=loop, name=run.job.id)
                    if not run.ended:
                        run.task = task
        if crew is not None:
            crew.go()

    def _hand_over(self, run: JobRun, crew: Crew) -> None:
        if run.job.timeout is not None:
            self._timeouts.add(run, run.job.timeout)
        crew.add(self._run_here, run, self._thread_ended)

    def _ended_in_thread(self, run: JobRun, outcome: Outcome | CoroutineType[Any, Any, Any]) -> None:
        """Take over from a thread: conclude the run, or run the coroutine that is the rest of it."""
        if run.job.timeout is not None:
            self._timeouts.discard(run)
        if not isinstance(outcome, CoroutineType):
            self._conclude(run, outcome)
        elif run.abandoned:
            outcome.close()
        else:
            run.begun = False  # a task that has not begun is not cancelled: it looks at `stop` first
            rest = self._executor.finish(run, outcome, self._conclude)
            task = new_task(rest, loop=self._loop, name=run.job.id, context=self._context.copy())
            if not run.ended:
                run.task = task
