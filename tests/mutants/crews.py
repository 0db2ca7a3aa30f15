"""Broken crews: threads that do not wake up or do not end, runs that share a context, results that are lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from taskharbor.worker.around import Arounds
from taskharbor.worker.crew import Crew
from taskharbor.worker.executor import Executor
from taskharbor.worker.pipeline import Pipeline
from taskharbor.worker.running import JobRun
from taskharbor.worker.shutdown import Shutdown
from taskharbor.worker.timeouts import Timeouts

from .mutant import MutantRegistry

CREWS = MutantRegistry("crew")
mutant = CREWS.mutant


@mutant((Crew, "_wake_one"), by="blocking_calls_get_a_thread_each")
def second_thread_never_woken(wake_one: Any, crew: Crew) -> bool:
    """All calls are made by one thread, one after another."""
    return bool(crew._started) or wake_one(crew)


@mutant((Crew, "_look"), by="blocking_calls_get_a_thread_each")
def look_ignores_waiting_calls(look: Any, crew: Crew) -> None:
    """Calls behind the first one that blocks wait for its end."""
    crew._looking = False
    crew._collect()


@mutant((Crew, "_take_all"), by="after_a_slow_call_threads_wake_each_other")
def slow_calls_not_noticed(take_all: Any, crew: Crew) -> None:
    """Only the loop wakes threads, so a loop that is blocked stops the threads too."""
    crew._slow = False
    take_all(crew)


@mutant((Crew, "unstick"), by="a_blocked_loop_holds_up_no_thread")
def threads_wait_for_a_blocked_loop(unstick: Any, crew: Crew) -> None:
    """Only the loop notices that calls wait behind one that blocks."""


@mutant((Crew, "go"), by="short_calls_share_a_thread")
def thread_per_call(go: Any, crew: Crew) -> None:
    """Every call wakes a thread, and their results come back one by one."""
    for _ in range(len(crew._calls)):
        crew._wake_one()


@mutant((Crew, "_look"), by="a_result_does_not_wait_for_the_next_call")
def look_ignores_results(look: Any, crew: Crew) -> None:
    """A result waits until its thread has nothing more to do."""
    results, crew._results = crew._results, type(crew._results)()
    look(crew)
    crew._results = results


@mutant((Crew, "_serve"), by="a_call_that_comes_while_the_thread_falls_asleep_is_taken")
def asleep_without_a_last_look(serve: Any, crew: Crew, bed: threading.Lock) -> None:
    """A call that comes just before a thread falls asleep waits for the next one."""
    while not crew._closed or crew._calls:
        crew._waking = False
        crew._take_all()
        crew._asleep.append(bed)
        crew._call_loop()
        bed.acquire()


@mutant((Crew, "_collect"), by="a_result_that_cannot_be_delivered_costs_no_other")
def one_failed_delivery_loses_a_batch(collect: Any, crew: Crew) -> None:
    """An error while one run is concluded loses the outcomes that came with it."""
    crew._called = False
    batch = [crew._results.popleft() for _ in range(len(crew._results))]
    for deliver, argument, result in batch:
        deliver(argument, result)


@mutant((Crew, "_call_loop"), by="a_closed_crew_ends_its_threads_after_their_calls")
def results_lost_after_the_close(call_loop: Any, crew: Crew) -> None:
    """The results of threads that end are lost."""
    if not crew._closed:
        call_loop(crew)


@mutant((Crew, "close"), by="a_closed_crew_ends_its_threads_after_their_calls")
def sleeping_threads_left_behind(close: Any, crew: Crew) -> None:
    """A worker that stops leaves its sleeping threads to the process."""
    crew._closed = True


# runs in threads


@mutant((Executor, "run_here"), by="every_run_in_a_thread_has_its_own_context")
def context_shared_between_runs(run_here: Any, executor: Executor, run: JobRun) -> Any:
    """Context variables that a handler sets are seen by the next one."""
    return executor._context.run(executor._run_here, run)


@mutant((Executor, "_call_here"), by="a_thread_that_returns_after_its_timeout_timed_out")
def late_thread_accepted(call_here: Any, executor: Executor, run: JobRun, *rest: Any) -> Any:
    """A result that a thread returns after its timeout counts."""
    value = call_here(executor, run, *rest)
    run.returned_at = 0.0
    return value


@mutant((Timeouts, "add"), by="a_thread_is_asked_to_end_at_its_timeout")
def thread_not_asked_at_its_timeout(add: Any, timeouts: Timeouts, run: JobRun, timeout: float) -> None:
    """A handler in a thread cannot see that its timeout has passed."""


@mutant((Executor, "_run_here"), by="a_run_that_no_thread_has_taken_is_given_back_unrun")
def stop_ignored_by_threads(run_here: Any, executor: Executor, run: JobRun) -> Any:
    """A thread runs a job that was given back before it was taken."""
    run.stop_request = None
    return run_here(executor, run)


@mutant((Shutdown, "_abandon"), by="an_abandoned_thread_can_ask_for_nothing_more")
def abandoned_thread_goes_on(abandon: Any, shutdown: Shutdown, run: JobRun, keep_lease: bool) -> None:
    """A run that its worker has given up enqueues jobs that are never stored."""
    abandon(shutdown, run, keep_lease)
    run.ended = False


@mutant((Pipeline, "end_run"), by="a_thread_is_asked_to_end_at_its_timeout")
def slot_freed_at_the_timeout(end_run: Any, pipeline: Pipeline, run: JobRun, stop: Any) -> None:
    """A thread past its timeout runs on beside the jobs that were claimed for its slot."""
    end_run(pipeline, run, stop)
    pipeline.running.pop(run.job.id, None)


# around


@mutant((Arounds, "_enter"), by="arounds_wrap_each_handler_where_it_runs")
def arounds_nested_the_wrong_way(enter: Any, arounds: Arounds, stack: ExitStack, run: JobRun) -> None:
    """The first around is the innermost."""
    enter(Arounds(arounds._factories[::-1]), stack, run)


@mutant((Arounds, "call"), by="arounds_wrap_each_handler_where_it_runs")
def around_not_left_after_a_failure(
    call: Any, arounds: Arounds, run: JobRun, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """A resource that an around has opened stays open if the handler raises."""
    stack = ExitStack()
    arounds._enter(stack, run)
    value = function(*args, **kwargs)
    stack.close()
    return value


@mutant((Executor, "_call_here"), by="arounds_wrap_each_handler_where_it_runs")
def around_left_out_in_threads(call_here: Any, executor: Executor, run: JobRun, task: Any, arguments: Any) -> Any:
    """Only handlers on the loop are wrapped."""
    return task.handler(*arguments[0], **arguments[1])
