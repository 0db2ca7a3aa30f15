"""Handlers that kill their process (F6), and what that means for their neighbours (F6b)."""

from __future__ import annotations

import signal

import pytest

from .crew import Crew, Member, until

LEASE = 1.0
MAX_CRASHES = 5


class Supervisor:
    """Starts a worker whenever one is missing, as every deployment does."""

    def __init__(self, crew: Crew, workers: int = 1, **options: float) -> None:
        self._crew = crew
        self._workers = workers
        self._options = options
        self.started: list[Member] = []

    def tend(self) -> None:
        """Look after the workers once."""
        running = [member for member in self.started if member.running]
        for _ in range(self._workers - len(running)):
            self.started.append(self._crew.worker(ready=False, lease=LEASE, **self._options))  # type: ignore[arg-type]

    def drain(self) -> None:
        """Look after them until every job has ended."""

        def ended() -> bool:
            self.tend()
            return self._crew.unfinished() == 0

        until(ended, "every job has ended")

    def exits(self) -> list[int]:
        """How the workers that did not live on ended."""
        return [member.ends() for member in self.started if not member.running]


@pytest.mark.parametrize(
    ("engine", "task", "arguments", "exit_code"),
    [
        ("sqlite", "leave", {"gate": "gate"}, 1),
        ("sqlite", "crash", {}, -signal.SIGSEGV),
        ("postgres", "leave", {"gate": "gate"}, 1),
        ("redis", "leave", {"gate": "gate"}, 1),
        ("nats", "leave", {"gate": "gate"}, 1),
    ],
    ids=["sqlite-os._exit", "sqlite-segmentation fault", "postgres-os._exit", "redis-os._exit", "nats-os._exit"],
)
def test_a_job_that_kills_its_worker_ends_in_the_dlq(
    crew: Crew, task: str, arguments: dict[str, str], exit_code: int
) -> None:
    """F6, F7, H6: it runs at most max_crashes times, then is dead-lettered as crash_loop; other jobs go on."""
    crew.open_gate("gate")
    poison = crew.enqueue(task, arguments)
    others = crew.enqueue_many("quick", [{"number": number} for number in range(20)], priority=-1)
    supervisor = Supervisor(crew, workers=1, concurrency=1)
    supervisor.drain()
    assert set(supervisor.exits()) == {exit_code}
    assert 1 < len(crew.began(poison)) <= MAX_CRASHES
    by_id = {job.id: job for job in crew.judge()}
    dead = by_id[poison]
    assert (dead.state, dead.dlq_reason, dead.crashes, dead.attempts) == ("dlq", "crash_loop", MAX_CRASHES, 0)
    assert {by_id[id].state for id in others} == {"done"}


def test_one_attempt_and_one_crash_are_at_most_one_execution(crew: Crew) -> None:
    """F6: a handler that killed its worker is not started again, by any other worker."""
    crew.open_gate("gate")
    once = crew.enqueue("leave", {"gate": "gate"}, max_attempts=1, max_crashes=1)
    Supervisor(crew, workers=2).drain()
    assert len(crew.began(once)) == 1
    (dead,) = crew.judge()
    assert (dead.state, dead.dlq_reason, dead.crashes, dead.attempts) == ("dlq", "crash_loop", 1, 0)


def test_neighbours_of_jobs_that_kill_their_worker_all_finish(crew: Crew) -> None:
    """F6b: after its second crash in a row a job runs alone, so 30 innocents all finish and none is dead-lettered."""
    crew.open_gate("gate")
    innocents = crew.enqueue_many("nap", [{"seconds": 0.3}] * 30)
    poisons = [crew.enqueue("leave", {"gate": "gate"}, priority=10), crew.enqueue("crash", priority=10)]
    supervisor = Supervisor(crew, workers=2, concurrency=32)
    supervisor.drain()
    by_id = {job.id: job for job in crew.judge()}
    assert {by_id[id].state for id in innocents} == {"done"}
    crashes = {claim.crashes for claim in crew.claims(*innocents)}
    assert crashes > {0}, "the neighbours were never beside it: this run has shown nothing"
    assert max(crashes) <= 2
    assert {(by_id[id].dlq_reason, by_id[id].crashes) for id in poisons} == {("crash_loop", MAX_CRASHES)}
