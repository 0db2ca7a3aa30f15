"""TaskManagers in real processes: one key, one claim, and agents that die or stop while they hold a task."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import Any

import msgspec

from taskharbor.errors import TaskAlreadyClaimed
from taskharbor.manager import Task, TaskManager

from .agent import Order
from .crew import Crew, Member, until

PROCESSES, THREADS, KEYS = 8, 8, 3
LEASE = 1.0


def agent(crew: Crew, **order: Any) -> Member:
    """A process of agents."""
    told = msgspec.json.encode(Order(**order)).decode()
    return crew.start(crew.name("agent"), ["-m", "system.agent", told])


def held(crew: Crew, tasks: TaskManager) -> tuple[Member, Task]:
    """An agent in a process of its own that holds a task."""
    id = tasks.submit(b"work", idempotency_key="k", max_attempts=2)
    first = agent(crew, task=id, lease=LEASE)
    first.says("ready")
    first.go()
    first.says("claimed")
    return first, tasks.get(id)


def taken_over(tasks: TaskManager, id: str) -> Task:
    """The task, once its claim has run out."""

    def claimed() -> Task | None:
        with suppress(TaskAlreadyClaimed):
            return tasks.claim(id, "heir")
        return None

    task = until(claimed, "the claim has run out")
    assert task is not None
    return task


def test_64_agents_submit_one_key_and_claim_one_task(crew: Crew) -> None:
    """M1, M4, I1, D12: 64 managers in eight processes at the same moment: one task with one id for all, and of 64 who
    claim it exactly one has it. Where a key is looked up before it is stored, both are lost."""
    members = [agent(crew, keys=[f"key {n}" for n in range(KEYS)], threads=THREADS) for _ in range(PROCESSES)]
    for member in members:
        member.says("ready")
    for member in members:
        member.go()
    ids: Counter[str] = Counter()
    outcomes: Counter[tuple[str, str]] = Counter()
    for member in members:
        for each in json.loads(member.says("[[")):
            ids.update(id for id, _ in each)
            outcomes.update((id, outcome) for id, outcome in each)
    for member in members:
        member.go()
    assert [member.ends() for member in members] == [0] * PROCESSES
    agents = PROCESSES * THREADS
    assert list(ids.values()) == [agents] * KEYS
    assert {outcomes[id, "claimed"] for id in ids} == {1}
    assert {outcomes[id, "TaskAlreadyClaimed"] for id in ids} == {agents - 1}
    jobs = crew.judge()
    assert sorted(job.id for job in jobs) == sorted(ids)
    assert {(job.state, job.version) for job in jobs} == {("done", 1)}


def test_the_task_of_a_killed_agent_can_be_claimed_after_its_lease(crew: Crew) -> None:
    """M4, X1, G1: kill -9 while it holds the task; not before its claim has run out, and nothing is lost."""
    tasks = TaskManager(crew.harbor, lease=LEASE)
    first, task = held(crew, tasks)
    first.kill()
    again = taken_over(tasks, task.id)
    assert task.claim_expires_at is not None
    assert again.claimed_at is not None
    assert again.claimed_at >= task.claim_expires_at
    assert (again.attempts, again.claimed_by) == (2, "heir")
    done = tasks.complete(task.id, "heir", b"by the heir")
    assert (done.status, done.result) == ("completed", b"by the heir")
    assert tasks.submit(b"work", idempotency_key="k") == task.id
    assert [(job.state, job.version) for job in crew.judge()] == [("done", 2)]


def test_another_process_goes_on_with_the_claim_of_a_killed_agent(crew: Crew) -> None:
    """M1, X1: by the token that it had passed on, long before the lease ends; it is the same attempt."""
    tasks = TaskManager(crew.harbor)
    id = tasks.submit(b"work", max_attempts=1)
    first = agent(crew, task=id)
    first.says("ready")
    first.go()
    _, token = first.says("claimed").split(" ", 1)
    first.kill()
    assert tasks.claim(id, "agent", token=token.strip()).attempts == 1
    assert tasks.complete(id, "agent", b"by the second").result == b"by the second"
    assert [(job.state, job.version, job.worker) for job in crew.judge()] == [("done", 1, "agent")]


def test_a_stopped_agent_comes_too_late(crew: Crew) -> None:
    """M4, L5, X7: SIGSTOP for longer than its lease; what it says afterwards changes nothing."""
    tasks = TaskManager(crew.harbor, lease=LEASE)
    first, task = held(crew, tasks)
    first.stop()
    taken_over(tasks, task.id)
    first.go_on()
    first.go()
    first.says("refused: ")
    tasks.heartbeat(task.id, "heir")
    assert tasks.complete(task.id, "heir", b"by the heir").result == b"by the heir"
    assert first.ends() == 0, first.story
    assert [(job.state, job.version) for job in crew.judge()] == [("done", 2)]
