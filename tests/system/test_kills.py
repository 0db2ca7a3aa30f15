"""Workers and clients killed by SIGKILL, again and again (X1)."""

from __future__ import annotations

from .crew import Crew
from .storm import Storm, seconds

LONGEST_POLL = 5.0


def test_a_killed_workers_job_runs_again_after_its_lease(crew: Crew) -> None:
    """X1, D5: the job of a killed worker is taken over once its lease has run out; leases of others are untouched."""
    victim = crew.worker(concurrency=1)
    killed = crew.enqueue("hold", {"gate": "killed"})
    crew.runs(killed)
    heir = crew.worker()
    other = crew.enqueue("hold", {"gate": "other"})
    assert crew.runs(other).who == heir.name
    victim.kill()

    again = crew.runs(killed, 2)
    assert (again.who, again.version) == (heir.name, 2)
    _, taken_over = crew.claims(killed)
    assert (taken_over.crashes, taken_over.attempts) == (1, 0)
    since_expiry = taken_over.expires_at / 1e6 - 1.0 - crew.last_expiry(killed, 1) / 1e6
    assert 0 <= since_expiry <= LONGEST_POLL + 1.0
    crew.open_gate("killed")
    crew.open_gate("other")
    crew.drained()
    assert [(claim.version, claim.crashes) for claim in crew.claims(other)] == [(1, 0)]
    assert {job.state for job in crew.judge()} == {"done"}


def test_workers_are_killed_again_and_again_under_load(crew: Crew) -> None:
    """X1, H1-H9: nothing is lost and no outcome is written twice, whichever process is killed, at any moment."""
    crew.max_crashes = None
    storm = Storm(crew, seed=1)
    storm.rage(seconds(6), ("kill", "kill", "kill", "kill client"))
    storm.calm()
    assert {job.dlq_reason for job in crew.judge()} == {None, "max_attempts"}


def test_a_storm_of_kills_pauses_and_deploys(crew: Crew) -> None:
    """X1, X6, X7, H1-H9: kills, stops beyond the lease and graceful stops all at once."""
    crew.max_crashes = None
    storm = Storm(crew, seed=2)
    storm.rage(seconds(6), ("kill", "freeze", "freeze", "terminate"))
    storm.calm()
    assert {job.dlq_reason for job in crew.judge()} == {None, "max_attempts"}
