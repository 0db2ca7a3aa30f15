"""64 submitters of one idempotency key, over several processes."""

from __future__ import annotations

import json
from collections import Counter

from .crew import Crew

PROCESSES, TASKS, THREADS, KEYS = 4, 8, 8, 5


def test_64_submitters_of_one_key_create_one_job(crew: Crew) -> None:
    """I1, H8: tasks and threads of four processes all get the same id, and exactly one of them has created it."""
    each = [("quick", {"number": number}, {"idempotency_key": f"key {number}"}) for number in range(KEYS)]
    clients = [crew.client(each, beside=TASKS, threads=THREADS, wait=False) for _ in range(PROCESSES)]
    for client in clients:
        client.says("ready")
    for client in clients:
        client.go()
    answers: Counter[str] = Counter()
    created: list[str] = []
    for client in clients:
        assert client.ends() == 0, client.story
        for id, is_new in json.loads(client.lines[-1]):
            answers[id] += 1
            created += [id] if is_new else []
    assert sorted(answers.values()) == [PROCESSES * (TASKS + THREADS)] * KEYS
    assert sorted(created) == sorted(answers)
    crew.worker()
    crew.drained()
    assert sorted(job.id for job in crew.judge()) == sorted(answers)
