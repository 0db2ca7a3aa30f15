"""Workflows whose workers and clients are killed (K1, K2)."""

from __future__ import annotations

import pytest

from taskharbor import Run, chain, chord, group

from .crew import Crew, until

MEMBERS = 200
KILLS = 6


def test_a_chord_of_200_ends_once_whichever_process_is_killed(crew: Crew) -> None:
    """K1, K2, H10: with every result in its place, under kills of one worker after the other."""
    crew.max_crashes = None
    tasks = crew.harbor.by_name
    run = chord(group(tasks["amble"].step(number) for number in range(MEMBERS)), tasks["total"]).enqueue()
    workers = [crew.worker(concurrency=4), crew.worker(concurrency=4)]
    kills = 0
    while kills < KILLS and (before := _done(crew, run.id)) < MEMBERS:
        until(lambda before=before: _done(crew, run.id) > min(before + 5, MEMBERS - 1), "some members end")  # type: ignore[misc]
        workers.pop(0).kill()
        workers.append(crew.worker(concurrency=4))
        kills += 1
    assert kills >= 2, "the members ended before anybody could be killed"
    assert run.result(timeout=60) == sum(range(MEMBERS))
    records = crew.judge()
    assert [job.state for job in records] == ["done"] * (MEMBERS + 1)
    assert sum(job.crashes or job.version > 1 for job in records) > 0


def _done(crew: Crew, id: str) -> int:
    return crew.harbor.admin.workflows.get(id).counts.get("done", 0)


def test_a_client_that_is_killed_leaves_whole_workflows_or_none(crew: Crew) -> None:
    """D1, K1: whatever was stored of a flow is all of it, and runs to its end."""
    for _ in range(3):
        client = crew.client([], members=20, rounds=None)
        before = len(crew.harbor.admin.workflows.list(limit=1000))
        client.go()
        until(lambda stored=before: len(crew.harbor.admin.workflows.list(limit=1000)) > stored + 2, "flows are stored")  # type: ignore[misc]
        client.kill()
    crew.worker(concurrency=32)
    crew.drained()
    found = crew.harbor.admin.workflows.list(limit=1000)
    assert {(workflow.state, workflow.jobs) for workflow in found} == {("done", 21)}
    crew.judge()


def test_a_chain_survives_the_death_of_each_of_its_workers(crew: Crew) -> None:
    """K1, K3, X1: every step is killed once, and goes on with the result before."""
    tasks = crew.harbor.by_name
    run: Run[int] = chain(tasks["amble"].step(7), tasks["amble"], tasks["amble"], tasks["amble"]).enqueue()
    ids = [node.id for node in crew.harbor.admin.workflows.graph(run.id)]
    for id in ids:
        worker = crew.worker(concurrency=1)
        crew.runs(id)
        worker.kill()
    crew.worker()
    assert run.result(timeout=60) == 7
    assert {job.state for job in crew.judge()} == {"done"}


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["redis", "nats"])
def test_a_chord_of_2000_by_three_workers(crew: Crew) -> None:
    """K1, K2: every end of a member changes the same dependant, so that the workers conflict without end."""
    tasks = crew.harbor.by_name
    workers = [crew.worker(concurrency=32) for _ in range(3)]
    run = chord(group(tasks["quick"].step(number) for number in range(2_000)), tasks["total"]).enqueue()
    assert run.result(timeout=60) == sum(range(2_000))
    assert len({event.who for worker in workers for event in crew.began_by(worker)}) == 3
    assert not any(worker.has_said("store.unavailable") for worker in workers)
    assert {(job.state, job.crashes) for job in crew.judge()} == {("done", 0)}
