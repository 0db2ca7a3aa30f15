"""A load that goes on through outages of the server, and what must be so after them (X2, X3)."""

from __future__ import annotations

from .crew import PATIENCE, Crew, Member, until
from .storm import Job

RESUME_WITHIN = 5.0
LOAD: list[Job] = [
    ("quick", {"number": 1}, {}),
    ("nap", {"seconds": 0.1}, {}),
    ("mother", {"children": 1}, {}),
    ("flaky", {"failures": 1}, {}),
    ("quick_sync", {"number": 2}, {}),
]


def load(crew: Crew) -> Member:
    """A client that enqueues without end, and goes on whenever it was refused."""
    client = crew.client(LOAD, rounds=None, pause=0.05, insists=True)
    client.go()
    return client


def works_again(crew: Crew, workers: list[Member], since: float, what: str, within: float = RESUME_WITHIN) -> None:
    """Each of the workers has begun a job after that moment, and within the time that was promised."""

    def all_have() -> bool:
        return all(any(run.at > since * 1e6 for run in crew.began_by(worker)) for worker in workers)

    try:
        until(all_have, f"every worker works again after {what}", within)
    except AssertionError as error:
        stories = [f"{worker.name} said:\n{worker.story}" for worker in workers]
        raise AssertionError("\n".join([str(error), *stories])) from None


def finish(crew: Crew, workers: list[Member], client: Member, *, forgetful: bool = False) -> None:
    """No more faults: the processes of the beginning still run, and finish everything.

    A `forgetful` store has lost changes before outages. The checker would report those, so it does not read the
    histories. All that is stored must have ended all the same.
    """
    client.kill()
    assert all(worker.running for worker in workers)
    until(lambda: not crew.unfinished(), "every job has ended", PATIENCE)
    jobs = {job.id: job for job in (crew.stock() if forgetful else crew.judge())}
    assert forgetful or crew.acknowledged() <= set(jobs)
    assert {job.state for job in jobs.values()} == {"done"}
    assert {job.attempts for job in jobs.values() if job.type != "flaky"} == {0}
