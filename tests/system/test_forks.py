"""Forks with an open harbor (P1)."""

from __future__ import annotations

import json

import pytest

from .crew import Crew

FORK = """
import asyncio, json, os, sys
from system.app import Settings, opened
from taskharbor.errors import DriverForked

harbor = asyncio.run(opened(Settings.given()))

def enqueue(number):
    (job,) = harbor.enqueue_many([harbor.step("quick", {"number": number})])
    return job.id

def tried(act):
    try:
        return act()
    except DriverForked as error:
        return f"refused: {error}"

def sockets():
    places = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sorted(os.readlink(it) for it in places if os.path.exists(it) and os.readlink(it).startswith("socket:"))

ids = [enqueue(1)]
before = sockets()
read, write = os.pipe()
child = os.fork()
if child == 0:
    found = [tried(lambda: enqueue(2)), tried(lambda: asyncio.run(harbor.adrain()))]
    os.write(write, json.dumps(found).encode())
    sys.exit(0)
_, status = os.waitpid(child, 0)
found = json.loads(os.read(read, 100_000))
ids.append(enqueue(3))
kept = sockets() == before
runs = asyncio.run(harbor.adrain())
harbor.close()
print(json.dumps({"child": found, "status": status, "ids": ids, "runs": runs, "kept": kept}))
"""


@pytest.mark.parametrize("engine", ["sqlite", "redis", "nats"])
def test_a_child_refuses_and_the_parent_goes_on(crew: Crew) -> None:
    """P1, H1: a child neither enqueues nor works on the parent's connection; the parent and others lose nothing."""
    crew.worker()
    stranger = crew.enqueue("hold", {"gate": "gate"})
    crew.runs(stranger)
    parent = crew.start(crew.name("parent"), ["-c", FORK])
    assert parent.ends() == 0, parent.story
    said = json.loads(parent.lines[-1])
    assert said["status"] == 0
    assert all(answer.startswith("refused: ") and "fork" in answer for answer in said["child"])
    crew.open_gate("gate")
    crew.drained()
    jobs = {job.id: job for job in crew.judge()}
    assert set(jobs) == {stranger, *said["ids"]}
    assert {(job.state, job.version) for job in jobs.values()} == {("done", 1)}


@pytest.mark.parametrize("engine", ["postgres"])
def test_a_child_makes_connections_of_its_own_and_leaves_the_parents_alone(crew: Crew) -> None:
    """P1, H1: parent and child both enqueue and work; the parent goes on with the very sessions that it had."""
    parent = crew.start(crew.name("parent"), ["-c", FORK])
    assert parent.ends() == 0, parent.story
    said = json.loads(parent.lines[-1])
    assert said["status"] == 0
    in_child, runs_in_child = said["child"]
    assert (runs_in_child, said["runs"], said["kept"]) == (2, 1, True)
    jobs = {job.id: job for job in crew.judge()}
    assert set(jobs) == {in_child, *said["ids"]}
    assert {(job.state, job.version) for job in jobs.values()} == {("done", 1)}
