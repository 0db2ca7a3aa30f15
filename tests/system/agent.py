"""Agents in a process of their own: they say `ready`, wait for a line, and use a TaskManager each, one per thread.

`python -m system.agent ORDER`, a JSON object. With `keys`, every thread submits each key at the same moment as all
others of the process, then claims what it got; a line has a list of [id, outcome] for each thread. After
another line, what was claimed is completed. With `task`, one agent claims that task, says so with the token, waits for
one more line and completes it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import msgspec
from msgspec.structs import replace

from taskharbor.errors import TaskError
from taskharbor.manager import TaskManager

from .app import Settings, opened


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The order of an agent."""

    keys: list[str] = []
    threads: int = 1
    task: str = ""
    lease: float = 30.0


def manager(name: str, lease: float) -> TaskManager:
    """One with a connection of its own, under recorder."""
    return TaskManager(asyncio.run(opened(replace(Settings.given(), who=name))), lease=lease)


def wait() -> None:
    """For the word to go on."""
    if not sys.stdin.readline():
        sys.exit("nobody is there any more")


def rush(order: Order) -> None:
    """Submit and claim, all threads together."""
    who = Settings.given().who
    names = [f"{who}-{number}" for number in range(order.threads)]
    managers = [manager(name, order.lease) for name in names]
    together = Barrier(order.threads)

    def one(name: str, tasks: TaskManager) -> list[tuple[str, str]]:
        got: list[tuple[str, str]] = []
        for key in order.keys:
            together.wait()
            id = tasks.submit(name.encode(), idempotency_key=key)
            together.wait()
            got.append((id, outcome(tasks, id, name)))
        return got

    print("ready", flush=True)
    wait()
    with ThreadPoolExecutor(order.threads) as pool:
        answers = list(pool.map(one, names, managers))
    print(json.dumps(answers), flush=True)
    wait()
    for name, tasks, got in zip(names, managers, answers, strict=True):
        for id, led_to in got:
            if led_to == "claimed":
                tasks.complete(id, name)


def outcome(tasks: TaskManager, id: str, worker: str) -> str:
    """The outcome of a claim."""
    try:
        return tasks.claim(id, worker).status
    except TaskError as error:
        return type(error).__name__


def hold(order: Order) -> None:
    """Claim one task, and complete it on request."""
    tasks = manager(Settings.given().who, order.lease)
    print("ready", flush=True)
    wait()
    claimed = tasks.claim(order.task, "agent")
    print(f"{claimed.status} {claimed.claim_token}", flush=True)
    wait()
    try:
        print(tasks.complete(order.task, "agent", b"by the first").status, flush=True)
    except TaskError as error:
        print(f"refused: {type(error).__name__}", flush=True)


if __name__ == "__main__":
    given = msgspec.json.decode(sys.argv[1], type=Order)
    (hold if given.task else rush)(given)
