"""Broken process slots: the worker's side of jobs that run in processes of their own."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from typing import Any

from msgspec.structs import replace

from taskharbor.core import decide as deciding
from taskharbor.core.outcome import Crashed, Interrupted, Outcome
from taskharbor.worker import outcomes
from taskharbor.worker.executor import Executor
from taskharbor.worker.processes.link import ChildLink
from taskharbor.worker.processes.messages import Progressed, RunEnded
from taskharbor.worker.processes.pool import ProcessPool
from taskharbor.worker.processes.slot import ProcessSlot
from taskharbor.worker.processes.turn import Turn
from taskharbor.worker.running import JobRun
from taskharbor.worker.worker import Worker

from .mutant import MutantRegistry

PROCESSES = MutantRegistry("process")
mutant = PROCESSES.mutant


@mutant((Turn, "_kill"), by="a_hanging_process_is_killed_at_its_timeout")
def a_stop_is_only_a_request(kill: Any, turn: Turn) -> None:
    """A process that ignores the request to end is never killed."""


@mutant((Turn, "look"), by="a_process_is_killed_at_its_timeout_while_the_loop_is_blocked")
def timeouts_of_processes_wait_for_the_loop(look: Any, turn: Turn) -> float:
    """A handler that blocks the loop delays the timeouts of its neighbours."""
    turn._loop.call_soon_threadsafe(look, turn)
    return math.inf


@mutant((Turn, "stop"), by="a_cancelled_process_is_killed_while_the_loop_is_blocked")
def stops_of_processes_wait_for_the_loop(stop: Any, turn: Turn, reason: Any) -> None:
    """The keeper's thread leaves the kill to the loop of the worker."""
    if asyncio.get_running_loop() is turn._loop:
        stop(turn, reason)
    else:
        turn._loop.call_soon_threadsafe(stop, turn, reason)


@mutant((ChildLink, "pump"), by="a_result_in_time_waits_for_a_blocked_loop")
def results_wait_for_the_loop(pump: Any, link: ChildLink) -> None:
    """A result that a blocked loop has not received counts as none, and its process is killed."""


@mutant((ProcessSlot, "_ended"), by="a_result_in_time_waits_for_a_blocked_loop")
def a_result_on_its_way_at_the_timeout_is_late(ended: Any, slot: ProcessSlot, message: RunEnded) -> None:
    """Whatever arrives after the timeout is a timeout, whenever the handler has returned."""
    ended(slot, replace(message, asked=True))


@mutant((ProcessSlot, "has_exited"), by="a_crash_waits_for_a_blocked_loop")
def a_crash_that_a_blocked_loop_learns_of_late_is_a_timeout(has_exited: Any, slot: ProcessSlot) -> bool:
    """Only the loop knows that a process has ended."""
    return not slot.alive


@mutant((Turn, "renew"), by="a_run_in_a_process_outlasts_its_lease_while_the_loop_is_blocked")
def renewals_wait_for_the_loop(renew: Any, turn: Turn) -> None:
    """A blocked loop keeps the renewals of its lease from a child, which takes its worker for gone."""
    turn._loop.call_soon_threadsafe(renew, turn)


@mutant((Turn, "end"), by="the_next_job_of_a_process_has_its_own_timeout")
def a_timeout_outlives_its_run(end: Any, turn: Turn) -> None:
    """The child is killed at the timeout of a job that has ended, whatever it does then."""


@mutant((Executor, "_in_process"), by="a_cancelled_process_is_killed_without_a_heartbeat")
async def runs_in_processes_not_marked(in_process: Any, executor: Executor, pool: Any, run: JobRun, task: Any) -> Any:
    """The keeper takes the run for one that cannot be killed, and asks about it with the heartbeat."""

    class Unmarked:
        async def run(self, run: JobRun, task: Any, payload: bytes, begin: Any) -> Any:
            def begun() -> None:
                begin()
                run.in_process = False

            return await pool.run(run, task, payload, begun)

    return await in_process(executor, Unmarked(), run, task)


@mutant((ProcessSlot, "kill"), by="a_hanging_process_is_killed_at_its_timeout")
def programs_of_a_handler_live_on(kill: Any, slot: ProcessSlot) -> None:
    """Only the process itself is killed, not what it has started."""
    if slot.alive:
        os.kill(slot.pid, signal.SIGKILL)


@mutant((ProcessSlot, "_cause_of_end"), by="a_hanging_process_is_killed_at_its_timeout")
def a_kill_at_the_timeout_is_a_crash(cause: Any, slot: ProcessSlot, *given: Any) -> Outcome:
    """The worker takes its own kill for a crash of the job."""
    return Crashed("killed")


@mutant((ProcessSlot, "_cause_of_end"), by="a_process_that_dies_is_a_crash_of_its_job")
def a_crash_is_a_release(cause: Any, slot: ProcessSlot, *given: Any) -> Outcome:
    """A job that kills its process is given back for ever."""
    outcome: Outcome = cause(slot, *given)
    return Interrupted() if isinstance(outcome, Crashed) else outcome


@mutant((deciding, "_after_crash"), by="a_process_that_dies_is_a_crash_of_its_job")
def a_crash_of_a_process_counts_as_an_attempt(after_crash: Any, job: Any, *given: Any) -> Any:
    """A crash uses up one of the job's attempts."""
    to = after_crash(job, *given)
    return replace(to, attempts=to.attempts + 1)


@mutant((Worker, "_is_isolated"), by="a_suspect_in_a_process_needs_no_empty_worker")
def suspects_in_processes_stop_the_worker(is_isolated: Any, worker: Worker, job: Any) -> bool:
    """A job that can only hit itself waits until its worker runs nothing else."""
    return False


@mutant((outcomes, "reported"), by="a_result_after_the_timeout_of_a_process_is_discarded")
def late_result_of_a_process_accepted(reported: Any, run: JobRun, task: Any, outcome: Outcome) -> Outcome:
    """Whatever a process answers is believed, however late."""
    return outcome


@mutant((Turn, "renew"), by="a_long_run_in_a_process_is_one_run")
def renewals_not_passed_on(renew: Any, turn: Turn) -> None:
    """A child believes that its worker is gone when the first lease is over."""


@mutant((ProcessSlot, "_take_effect"), by="a_long_run_in_a_process_is_one_run")
def progress_of_a_process_lost(take: Any, slot: ProcessSlot, turn: Turn, message: Any) -> None:
    """Progress ends in the worker."""
    if not isinstance(message, Progressed):
        take(slot, turn, message)


@mutant((ProcessPool, "free"), by="a_process_is_replaced_after_its_jobs")
def processes_live_for_ever(free: Any, pool: ProcessPool, slot: ProcessSlot, ended: RunEnded) -> None:
    """No limit of a process is looked at."""
    slot.jobs = 0
    free(pool, slot, ended)
