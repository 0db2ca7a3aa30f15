"""Broken blocking enqueues: turns inside SQLite, the client, wrappers and notifications."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from taskharbor.client import client, session
from taskharbor.client.session import Session
from taskharbor.driver import Enqueued
from taskharbor.drivers.postgres.blocking import BlockingNotifier
from taskharbor.drivers.sqlite import enqueue, turns
from taskharbor.drivers.sqlite.files import Files
from taskharbor.drivers.sqlite.turns import Turns
from taskharbor.errors import DriverUnavailable
from taskharbor.testing.faults import Wrapper
from taskharbor.testing.recorder import Recorder
from taskharbor.testing.simulation.network import ClientWire

from .mutant import MutantRegistry

TURNS = MutantRegistry("turn")
mutant = TURNS.mutant
SQLITE = MutantRegistry("sqlite")


@mutant((Turns, "_serves_others"), by="the_main_thread_serves_no_other_caller")
def main_thread_commits_for_others(right: Any, self: Turns) -> bool:
    """Ctrl-C strikes the requests of other threads."""
    return True


@mutant((Turns, "_serves_others"), by="each_caller_in_line_gets_its_own_answer")
def every_thread_commits_for_itself(right: Any, self: Turns) -> bool:
    """Eight threads, eight commits."""
    return False


@mutant((Turns, "_taken"), by="the_request_of_a_caller_that_is_gone_is_not_run")
def requests_of_interrupted_callers_are_run(right: Any, self: Turns) -> Any:
    """A job is stored long after its caller was interrupted."""
    return [self._line.popleft() for _ in range(len(self._line))]


@mutant((turns, "_give"), by="each_caller_in_line_gets_its_own_answer")
def all_in_line_get_the_first_answer(right: Any, requests: Any, answers: Any) -> None:
    """Two callers get the id of one job."""
    right(requests, [answers[0]] * len(answers))


@mutant((Turns, "is_inside"), by="a_signal_handler_never_joins_a_transaction")
def signal_handlers_join_transactions(right: Any, self: Turns) -> bool:
    """A job is acknowledged, and rolled back with that of the call below."""
    return False


@mutant((Files, "wrong"), by="a_blocking_write_to_a_file_that_is_gone_is_an_error")
def writes_to_a_deleted_file_are_confirmed(right: Any, self: Files) -> None:
    """A job is stored where no other process will see it."""


@mutant((Session, "is_ready"), by="a_blocking_caller_asks_for_the_engines_time_again")
def blocking_callers_never_measure_the_clock(right: Any, self: Session) -> bool:
    """The engine's clock is asked once, when the store is opened."""
    return self.is_open


@mutant((session, "offered"), by="a_blocking_caller_is_served_in_its_own_thread")
def blocking_callers_use_the_portal(right: Any, driver: Any, protocol: Any) -> None:
    """Every enqueue hops to another thread."""


@mutant((client, "refuse_on_a_loop"), by="a_blocking_enqueue_on_a_loop_is_refused")
def blocking_enqueues_block_the_loop(right: Any, twin: str) -> None:
    """A web server stands still while a job is stored."""


@mutant((Wrapper, "_enqueue_blocking"), by="a_fault_wrapper_strikes_blocking_enqueues")
def wrappers_are_bypassed(right: Any, self: Wrapper, inner: Any, *given: Any) -> Any:
    """Faults and recordings miss blocking callers."""
    return inner.enqueue_blocking(*given)


@mutant((BlockingNotifier, "defer"), by="the_last_commit_of_a_burst_is_notified_of")
def only_the_first_commit_of_a_burst_notifies(right: Any, self: BlockingNotifier) -> None:
    """The other jobs wait for the next poll."""


@mutant((Recorder, "_enqueue_blocking"), by="simulated_blocking_callers_are_judged")
def blocking_enqueues_are_not_recorded(right: Any, self: Recorder, inner: Any, *given: Any) -> Any:
    """The checker finds jobs that no process asked for."""
    return inner.enqueue_blocking(*given)


@mutant((ClientWire, "_enqueue_blocking"), by="simulated_blocking_callers_are_judged")
def lost_blocking_requests_are_confirmed(right: Any, self: ClientWire, inner: Any, groups: Any, *given: Any) -> Any:
    """A driver takes silence for success."""
    try:
        return right(self, inner, groups, *given)
    except DriverUnavailable:
        return [tuple(Enqueued(job.id, True) for job in group.jobs) for group in groups]


@mutant((ClientWire, "_enqueue_blocking"), by="simulated_blocking_callers_are_judged")
def lost_blocking_requests_store_half_a_group(
    right: Any, self: ClientWire, inner: Any, groups: Any, *given: Any
) -> Any:
    """The first job of a group is there, the others are not."""
    try:
        return right(self, inner, groups, *given)
    except DriverUnavailable:
        inner.enqueue_blocking([replace(group, jobs=group.jobs[:1]) for group in groups], *given)
        raise


@mutant((client.Client, "submit_blocking"), by="simulated_blocking_callers_are_judged")
def blocking_callers_get_handles_after_errors(right: Any, self: client.Client, twin: str, what: Any) -> Any:
    """A caller holds the id of a job that was never stored."""
    try:
        return right(self, twin, what)
    except DriverUnavailable:
        group = what.group(self.session, self.session.now())
        return what.handle(group, [Enqueued(job.id, True) for job in group.jobs])


@mutant((client.Client, "submit_blocking"), by="simulated_blocking_callers_are_judged")
def blocking_enqueues_are_tried_again(right: Any, self: client.Client, twin: str, what: Any) -> Any:
    """A lost reply makes two jobs of one call."""
    try:
        return right(self, twin, what)
    except DriverUnavailable:
        return right(self, twin, what)


@SQLITE.mutant((enqueue, "INSERT_ONE"), by="test_R2_an_id_that_exists_is_JobExists_and_changes_nothing")
def sql_single_insert_ignores_conflicts(sql: str) -> str:
    """A job whose id is taken is acknowledged, and not stored."""
    return sql.replace("INSERT INTO", "INSERT OR IGNORE INTO")
