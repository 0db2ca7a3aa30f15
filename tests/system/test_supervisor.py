"""`taskharbor worker --processes N`: workers that die, hang, age and are replaced, and a supervisor that dies (L9)."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from taskharbor.testing.history import Began

from .crew import Crew, SupervisorMember, until
from .test_stops import namespace

LONG = 3600.0  # a lease that never expires during a test: only a supervisor can explain a second run
WITHIN = 2.0


def is_zombie(pid: int) -> bool:
    """Whether the process has ended but was not reaped."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


def pid_of(who: str) -> int:
    """The process of a supervised worker, by its name in histories."""
    return int(who.rpartition(".")[2])


def gone(pid: int) -> bool:
    """Whether there is no such process any more, not even a zombie."""
    return not Path(f"/proc/{pid}").exists()


def workers(crew: Crew) -> set[int]:
    """The processes that have begun runs."""
    return {pid_of(event.who) for event in crew.events() if isinstance(event, Began)}


def ran_once(crew: Crew, number: int) -> None:
    """Every job is done after one run. What is claimed while its worker is being stopped is given back unrun, and has
    a second version."""
    jobs = crew.judge()
    assert {(job.state, job.attempts, job.crashes) for job in jobs} == {("done", 0, 0)}
    began = Counter(event.id for event in crew.events() if isinstance(event, Began))
    assert began == Counter(job.id for job in jobs)
    assert len(jobs) == number


def no_zombies(supervisor: SupervisorMember) -> None:
    """Every child that has ended is reaped."""
    until(lambda: not any(is_zombie(pid) for pid in supervisor.children()), "no zombie is left")


def test_the_jobs_of_a_killed_worker_run_elsewhere_at_once(crew: Crew) -> None:
    """L9, F6, H1-H9: within two seconds, with the crash counted, again and again; other leases are untouched."""
    crew.max_crashes = None
    supervisor = crew.supervisor(2, lease=LONG, concurrency=1)
    spared, job = crew.enqueue("hold", {"gate": "spared"}), crew.enqueue("hold", {"gate": "gate"})
    crew.runs(spared)
    os.kill(pid_of(crew.runs(job).who), signal.SIGKILL)
    crew.runs(job, 2)
    crew.open_gate("spared")
    assert crew.ended(spared).crashes == 0
    supervisor.ready(3)
    for number in (2, 3):
        victim = pid_of(crew.runs(job, number).who)
        killed_at = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        again = crew.runs(job, number + 1)
        assert again.at / 1e6 - killed_at <= WITHIN
        assert pid_of(again.who) != victim
        supervisor.ready(number + 2)
    crew.open_gate("gate")
    crew.drained()
    no_zombies(supervisor)
    assert [(claim.version, claim.crashes, claim.attempts) for claim in crew.claims(job)][-1] == (4, 3, 0)
    assert len(crew.claims(spared)) == 1
    assert {job.state for job in crew.judge()} == {"done"}


def test_a_job_that_kills_its_workers_is_dead_after_its_last_crash(crew: Crew) -> None:
    """L9, F6, F6b: five crashes without waiting for a lease; its neighbours finish, and the supervisor goes on."""
    crew.open_gate("gate")
    supervisor = crew.supervisor(2, lease=LONG)
    innocents = crew.enqueue_many("nap", [{"seconds": 0.2}] * 6)
    poison = crew.enqueue("leave", {"gate": "gate"}, priority=10)
    crew.drained()
    once = crew.enqueue("leave", {"gate": "gate"}, max_attempts=1, max_crashes=1)
    crew.drained()
    assert supervisor.running
    by_id = {job.id: job for job in crew.judge()}
    assert (by_id[poison].dlq_reason, by_id[poison].crashes, by_id[poison].attempts) == ("crash_loop", 5, 0)
    assert (by_id[once].dlq_reason, len(crew.began(once))) == ("crash_loop", 1)
    assert {by_id[id].state for id in innocents} == {"done"}


@pytest.mark.parametrize("engine", ["sqlite"])
@pytest.mark.parametrize("trouble", ["stopped", "GIL held"])
def test_a_worker_that_does_not_run_for_longer_than_its_lease_is_killed(crew: Crew, trouble: str) -> None:
    """L3, L9: by SIGSTOP, or because a handler holds the GIL: its jobs run elsewhere, it ends, and is replaced."""
    crew.max_crashes = None
    supervisor = crew.supervisor(2, lease=1.0)
    if trouble == "stopped":
        job = crew.enqueue("hold", {"gate": "gate"})
        victim = pid_of(crew.runs(job).who)
        os.kill(victim, signal.SIGSTOP)
    else:
        job = crew.enqueue("grip", {"seconds": 3600}, max_crashes=1)
        victim = pid_of(crew.runs(job).who)
    until(lambda: gone(victim), "it was killed and reaped")
    assert "longer than its lease of 1 s" in supervisor.says(f"supervisor.kill: pid {victim}")
    supervisor.ready(3)
    crew.open_gate("gate")
    ended = crew.ended(job)
    assert ended.crashes == (1 if trouble == "GIL held" else 0)
    no_zombies(supervisor)
    crew.judge()


@pytest.mark.parametrize("engine", ["sqlite"])
def test_workers_of_a_killed_supervisor_stop_gracefully(crew: Crew) -> None:
    """X6: none is left, the running job is given back without an attempt or a crash, and a new supervisor goes on."""
    supervisor = crew.supervisor(2, lease=LONG, grace=0.1)
    job = crew.enqueue("hold", {"gate": "gate"})
    crew.runs(job)
    children = supervisor.children()
    supervisor.kill()
    until(lambda: all(gone(pid) or is_zombie(pid) for pid in children), "its workers have ended")
    released = crew.job(job)
    assert (released.state, released.attempts, released.crashes, released.lease) == ("ready", 0, 0, None)
    crew.open_gate("gate")
    crew.supervisor(1, lease=LONG)
    crew.drained()
    crew.judge()


@pytest.mark.parametrize("engine", ["sqlite"])
def test_when_everything_is_killed_the_leases_expire(crew: Crew) -> None:
    """X1: no supervisor is left to give them up; the next one finds nothing lost."""
    supervisor = crew.supervisor(2, lease=1.0)
    jobs = crew.enqueue_many("hold", [{"gate": "gate"}] * 4)
    for job in jobs:
        crew.runs(job)
    supervisor.close()
    crew.open_gate("gate")
    crew.supervisor(2, lease=1.0)
    crew.drained()
    assert {(job.state, job.attempts) for job in crew.judge()} == {("done", 0)}
    assert {claim.crashes for claim in crew.claims(*jobs)} == {0, 1}


def test_a_rolling_restart_under_load_loses_and_doubles_nothing(crew: Crew) -> None:
    """X6, F6, H1-H9: SIGHUP replaces every worker, successors first; no job fails, crashes or runs twice."""
    supervisor = crew.supervisor(2)
    client = crew.client([("nap", {"seconds": 0.1}, {}), ("quick_sync", {"number": 2}, {})], rounds=None, pause=0.05)
    client.go()
    old = supervisor.ready(2)
    until(lambda: workers(crew) == set(old), "both work")
    supervisor.signal(signal.SIGHUP)
    supervisor.ready(4)
    until(lambda: all(gone(pid) for pid in old), "the old workers have ended")
    client.enough()
    crew.drained()
    assert supervisor.running
    ran_once(crew, len(crew.acknowledged()))


@pytest.mark.parametrize("engine", ["sqlite"])
def test_workers_are_replaced_after_so_many_jobs(crew: Crew) -> None:
    """X6: --max-jobs; one worker at a time is replaced under load, and nothing is hurt."""
    supervisor = crew.supervisor(2, "--max-jobs", "20")
    crew.enqueue_many("nap", [{"seconds": 0.05}] * 120)
    crew.drained()
    supervisor.ready(4)
    supervisor.says(" replaces ")
    ran_once(crew, 120)


@pytest.mark.parametrize("engine", ["sqlite"])
def test_workers_are_replaced_at_their_age(crew: Crew) -> None:
    """X6: --max-age; under load, again and again, and nothing is hurt."""
    supervisor = crew.supervisor(2, "--max-age", "2s")
    crew.enqueue_many("nap", [{"seconds": 0.1}] * 100)
    old = supervisor.ready(2)
    assert "s old" in supervisor.says(f"replaces {old[0]}:")
    supervisor.ready(6)
    until(lambda: all(gone(pid) for pid in old[:2]), "the first two have ended")
    crew.drained()
    no_zombies(supervisor)
    ran_once(crew, 100)


@pytest.mark.parametrize("engine", ["sqlite"])
def test_a_worker_that_has_grown_is_replaced(crew: Crew) -> None:
    """X6: --max-memory; the other one, which has not grown, stays, and the job that it runs goes on."""
    supervisor = crew.supervisor(2, "--max-memory", "300MiB", concurrency=1)
    spared = crew.enqueue("hold", {"gate": "gate"})
    crew.runs(spared)
    grown = crew.enqueue("swell", {"mib": 400})
    victim = pid_of(crew.runs(grown).who)
    assert "it takes " in supervisor.says(f"replaces {victim}:")
    until(lambda: gone(victim), "the large one has ended")
    crew.open_gate("gate")
    crew.drained()
    assert len(supervisor.ready(3)) == 3
    assert {(job.state, job.attempts, job.crashes, job.version) for job in crew.judge()} == {("done", 0, 0, 1)}


@pytest.mark.parametrize("engine", ["sqlite"])
def test_processes_of_a_killed_workers_handlers_end_with_it(crew: Crew) -> None:
    """L9: what a handler has started does not go on beside the next run of its job."""
    supervisor = crew.supervisor(1)
    crew.ended(crew.enqueue("orphan", {"gate": "never"}))
    [victim] = supervisor.ready(1)
    os.killpg(victim, 0)
    os.kill(victim, signal.SIGKILL)
    supervisor.ready(2)

    def ended() -> bool:
        try:
            os.killpg(victim, 0)
        except ProcessLookupError:
            return True
        return False

    until(ended, "the group of the killed worker has ended")


@pytest.mark.parametrize("engine", ["sqlite"])
def test_as_pid_1_it_reaps_orphans_and_stops(crew: Crew) -> None:
    """X6: in a container nothing else reaps the processes that a dead worker leaves behind."""
    first = namespace()
    assert first, "no PID namespace can be had here"
    supervisor = crew.supervisor(1, prefix=first)
    supervisor.become_inner()
    job = crew.enqueue("orphan", {"gate": "gate"})
    assert crew.ended(job).state == "done"
    until(lambda: len(supervisor.children()) == 2, "the orphan is the supervisor's now")
    crew.open_gate("gate")
    until(lambda: len(supervisor.children()) == 1, "the orphan was reaped")
    supervisor.signal(signal.SIGTERM)
    assert supervisor.ends() == 0
    supervisor.says("supervisor.stopped: exit code 0")


@pytest.mark.parametrize("engine", ["sqlite"])
def test_a_signal_to_the_whole_group_is_one_signal(crew: Crew) -> None:
    """X6: systemd sends SIGTERM to every process of a unit, and the supervisor passes it on; jobs keep their grace."""
    supervisor = crew.supervisor(2, lease=LONG, grace=LONG)
    job = crew.enqueue("hold", {"gate": "gate"})
    crew.runs(job)
    for pid in [supervisor.pid, *supervisor.children()]:
        os.kill(pid, signal.SIGTERM)
    until(lambda: sum("worker.draining" in line for line in supervisor.lines) == 2, "both workers stop")
    for pid in supervisor.children():
        os.kill(pid, signal.SIGINT)
    crew.open_gate("gate")
    assert supervisor.ends() == 0
    assert {(job.state, job.version) for job in crew.judge()} == {("done", 1)}


@pytest.mark.parametrize("engine", ["sqlite"])
def test_a_second_signal_stops_at_once_and_a_third_by_force(crew: Crew) -> None:
    """X6: as for one worker; what had to be killed is given up before the supervisor ends."""
    supervisor = crew.supervisor(2, lease=LONG, grace=LONG, concurrency=1)
    polite, deaf = crew.enqueue("hold", {"gate": "gate"}), crew.enqueue("grip", {"seconds": 3600})
    crew.runs(polite)
    crew.runs(deaf)
    for text in ("supervisor.stop: pid", "ended with exit code 0", "a third signal"):
        supervisor.signal(signal.SIGTERM)
        supervisor.says(text)
    assert supervisor.ends() == 1
    found = [crew.job(id) for id in (polite, deaf)]
    assert [(job.state, job.crashes, job.attempts, job.lease) for job in found] == [
        ("ready", 0, 0, None),
        ("ready", 1, 0, None),
    ]
