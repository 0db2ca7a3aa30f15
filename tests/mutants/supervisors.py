"""Broken supervisors: leases of the dead, and the decisions about processes."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.transition import PutBack
from taskharbor.driver import Inspect, capability
from taskharbor.supervisor import dead_leases
from taskharbor.supervisor.actions import Action, KillWorker, StartWorker
from taskharbor.supervisor.dead_leases import HELD, DeadLeases
from taskharbor.supervisor.fleet import Fleet, SupervisedWorker, WorkerSlot
from taskharbor.supervisor.supervisor import Supervisor

from .mutant import MutantRegistry

SUPERVISORS = MutantRegistry("supervisor")
mutant = SUPERVISORS.mutant


@mutant((Supervisor, "_perform"), by="nothing_is_given_up_before_the_process_has_ended")
def given_up_before_the_child_is_dead(perform: Any, supervisor: Supervisor, action: Any) -> None:
    """The leases are given up when the kill is sent."""
    perform(supervisor, action)
    if isinstance(action, KillWorker):
        ready = supervisor._running[action.number].ready
        assert ready is not None
        supervisor._put_back(ready)


@mutant((Fleet, "exited"), by="a_worker_that_stopped_as_asked_has_not_crashed")
def graceful_stop_is_a_crash(exited: Any, fleet: Fleet, *rest: Any) -> bool:
    """Jobs that a stopping worker could not settle count as crashed, and run again while the store is still away."""
    exited(fleet, *rest)
    return True


@mutant((DeadLeases, "_settle"), by="a_job_taken_over_by_another_worker_is_left_alone")
async def put_back_under_another_token(settle: Any, leases: DeadLeases, driver: Any, jobs: list[JobRecord]) -> bool:
    """If a put back is refused, it is done under the token of the worker that has the job now."""
    await settle(leases, driver, jobs)
    found = await capability(driver, Inspect).get([job.id for job in jobs])
    return bool(await settle(leases, driver, [job for job in found if job is not None and job.lease is not None]))


@mutant((DeadLeases, "_found"), by="jobs_of_a_dead_worker_are_due_with_a_crash")
async def leases_of_everybody_given_up(found: Any, leases: DeadLeases, driver: Any) -> list[JobRecord]:
    """Jobs of living workers are given up as well."""
    return await capability(driver, Inspect).query(Filter(states=HELD), leases._session.now(), 500)


@mutant((DeadLeases, "_found"), by="jobs_of_a_dead_worker_are_due_with_a_crash")
async def only_the_first_lease_given_up(found: Any, leases: DeadLeases, driver: Any) -> list[JobRecord]:
    """The others wait for their lease."""
    jobs: list[JobRecord] = await found(leases, driver)
    return jobs[:1]


@mutant((dead_leases, "crashed"), by="jobs_of_a_dead_worker_are_due_with_a_crash")
def given_up_without_a_crash(crashed: Any, job: JobRecord, *rest: Any) -> PutBack:
    """A job that kills its workers is run for ever."""
    to: PutBack = crashed(job, *rest)
    return replace(to, crashes=job.crashes)


@mutant((dead_leases, "crashed"), by="jobs_of_a_dead_worker_are_due_with_a_crash")
def given_up_with_an_attempt(crashed: Any, job: JobRecord, *rest: Any) -> PutBack:
    """A host that dies uses up a job's tries."""
    to: PutBack = crashed(job, *rest)
    return replace(to, attempts=job.attempts + 1)


@mutant((DeadLeases, "put_back"), by="a_claim_that_is_committed_after_the_death_is_found")
async def late_claims_not_looked_for(put_back: Any, leases: DeadLeases) -> None:
    """A claim that was on its way waits for its lease."""
    await leases._insist()


@mutant((DeadLeases, "_insist"), by="a_store_that_is_away_is_asked_again")
async def store_asked_once(insist: Any, leases: DeadLeases) -> bool:
    """If the store is away, the leases expire."""
    try:
        await leases._look()
    except Exception:
        return False
    return True


@mutant((Fleet, "_must_die"), by="a_worker_without_beats_is_killed_after_its_lease")
def beats_ignored(must_die: Any, fleet: Fleet, child: SupervisedWorker, now: float) -> str | None:
    """A worker that is stopped, or whose GIL is held, stays for ever."""
    why: str | None = must_die(fleet, child, child.beat_at)
    return why


@mutant((Fleet, "_forgive_own_stall"), by="a_worker_without_beats_is_killed_after_its_lease")
def own_stall_held_against_the_workers(forgive: Any, fleet: Fleet, now: float) -> None:
    """When a host wakes up, every worker is killed."""


@mutant((Fleet, "_must_die"), by="a_worker_that_hangs_before_it_is_ready_is_killed")
def hanging_starts_left_alone(must_die: Any, fleet: Fleet, child: SupervisedWorker, now: float) -> str | None:
    """A slot whose worker hangs in an import is empty for ever."""
    why: str | None = must_die(fleet, child, now) if child.ready_at is not None else None
    return why


@mutant((Fleet, "waits"), by="a_worker_that_hangs_before_it_is_ready_is_killed")
def waiting_for_a_store_is_hanging(waits: Any, fleet: Fleet, number: int, now: float) -> None:
    """When a database is away for long, every worker that starts is killed."""


@mutant((Fleet, "_replaced"), by="workers_are_replaced_one_by_one_successors_first")
def all_replaced_at_once(replaced: Any, fleet: Fleet, now: float) -> list[Action]:
    """Twice as many processes are at work during a rolling restart."""
    actions: list[Action] = replaced(fleet, now)
    if actions and isinstance(actions[0], StartWorker):
        others = [child for child in fleet.children.values() if fleet._outdated(child, now)][1:]
        actions += [fleet._new(child.slot, now, child.number, "now") for child in others]
    return actions


@mutant((Fleet, "_replaced"), by="workers_are_replaced_one_by_one_successors_first")
def stopped_before_the_successor_is_ready(replaced: Any, fleet: Fleet, now: float) -> list[Action]:
    """A slot is empty while the new worker starts."""
    for child in fleet.children.values():
        child.ready_at = now
    actions: list[Action] = replaced(fleet, now)
    return actions


@mutant((WorkerSlot, "looping"), by="workers_that_do_not_start_are_not_started_for_ever")
def crash_loop_never_ends(looping: Any, slot: WorkerSlot) -> bool:
    """A worker that cannot start is started for ever."""
    return False
