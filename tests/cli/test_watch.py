"""`taskharbor stats` and `taskharbor health`."""

from __future__ import annotations

import asyncio
import signal
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from taskharbor.driver import Registry, WorkerRecord, capability
from taskharbor.manager import TaskManager

from .desk import Desk, until


def test_stats_of_a_busy_store(desk: Desk) -> None:
    """C: counts per queue, totals per task."""
    desk.enqueue("shop.welcome", "user_id=1")
    desk.enqueue("shop.explode", "text=x")
    desk.drain()
    desk.enqueue("shop.welcome", "user_id=2", "--delay", "1h")
    answer = desk.json("stats", "--url", desk.url)
    assert set(answer) == {"at", "queues", "workers", "since_seconds", "totals", "partial"}
    default, mail = answer["queues"]
    assert (default["queue"], default["dlq"]) == ("default", 1)
    assert (mail["queue"], mail["done"], mail["scheduled"], mail["paused"]) == ("mail", 1, 1, False)
    totals = {total["task"]: total for total in answer["totals"]}
    assert (totals["shop.explode"]["retried"], totals["shop.explode"]["dlq"]) == (1, 1)
    assert totals["shop.welcome"]["done"] == 1
    text = desk.good("stats", "--url", desk.url)
    for word in ("Queues", "mail", "SCHEDULED", "Workers", "none seen", "Runs of the last", "shop.explode", "RETRIED"):
        assert word in text


def test_stats_of_an_empty_store(desk: Desk) -> None:
    """C: no jobs, no workers, no totals."""
    desk.enqueue("shop.welcome", "user_id=1", "--id", "one")
    asyncio.run(forget(desk, "one"))
    assert "no jobs yet" in desk.good("stats", "--url", desk.url)


async def forget(desk: Desk, id: str) -> None:
    """Remove a job."""
    async with desk.harbor.open() as harbor:
        await harbor.admin.jobs.acancel([id])
        await harbor.admin.jobs.adelete([id])


def test_health_without_a_worker(desk: Desk) -> None:
    """C: exit 1 and what to do; with --store-only the store is enough."""
    desk.enqueue("shop.welcome", "user_id=1")
    result = desk.run("health", "--url", desk.url)
    assert (result.exit_code, result.stdout) == (1, "unhealthy: 0 workers, 1 due job, 0 dead jobs\n")
    assert "`taskharbor worker MODULE:HARBOR`" in result.stderr
    assert "`taskharbor worker shop:harbor`" in desk.run("health", "-A", "shop:harbor").stderr
    answer = desk.run("health", "--json", "--url", desk.url)
    assert answer.exit_code == 1
    assert '"no_worker"' in answer.stdout
    assert desk.good("health", "--store-only", "--url", desk.url).startswith("healthy")


def test_health_without_a_store(desk: Desk) -> None:
    """C: exit 3, in JSON too."""
    result = desk.run("health", "--json", "--url", "sqlite:///nothing.db")
    assert result.exit_code == 3
    assert '"store_unreachable"' in result.stdout
    assert "there is no store" in result.stderr


def test_health_with_wrong_usage(desk: Desk) -> None:
    """C: exit 2."""
    desk.bad(2, "health", "--url", "nonsense")
    desk.bad(2, "health", "--max-wait", "soon")


def test_health_with_a_worker(desk: Desk) -> None:
    """C: exit 0 while every queue with due jobs has a listener; exit 1 for a queue without, or one that is late."""
    with desk.process("worker", "shop:harbor", "--queues", "default", "--grace", "0") as worker:
        worker.says("worker.started")
        until(lambda: desk.run("health", "--url", desk.url).exit_code == 0)
        answer = desk.json("health", "--url", desk.url)
        assert (answer["healthy"], answer["workers"], answer["problems"]) == (True, 1, [])
        assert set(answer) == {
            "healthy", "problems", "workers", "due", "running", "dlq", "overruns", "overrunning", "paused", "lapsed",
            "oldest_due_seconds",
        }  # fmt: skip
        (seen,) = desk.json("stats", "--url", desk.url)["workers"]
        assert (seen["queues"], seen["slots"]) == (["default"], 16)
        assert "0/16" in desk.good("stats", "--url", desk.url)

        desk.enqueue("shop.welcome", "user_id=1")
        assert "no worker listens to it: run `taskharbor worker MODULE:HARBOR -Q mail`" in unhealthy(desk)
        pause(desk, "mail")
        assert desk.run("health", "--url", desk.url).exit_code == 0

        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0
    assert "no worker" in unhealthy(desk)


def test_health_counts_runs_past_their_timeout(desk: Desk) -> None:
    """C, F5: how many, and on which worker; the work is still being done."""
    now = datetime.now(UTC)
    idle = WorkerRecord(id="a:1", host="a", pid=1, queues=("default",), slots=2, busy=2, started_at=now, seen_at=now)
    asyncio.run(beat(desk, idle, replace(idle, id="b:2", overruns=2)))
    told = "healthy: 2 workers, 0 due jobs, 0 dead jobs\nworker b:2 has 2 runs past the timeout: "
    assert desk.good("health", "--url", desk.url).startswith(told)
    answer = desk.json("health", "--url", desk.url)
    assert (answer["healthy"], answer["overruns"], answer["overrunning"]) == (True, 2, {"b:2": 2})


async def beat(desk: Desk, *workers: WorkerRecord) -> None:
    """Report these workers."""
    async with desk.harbor.open() as harbor:
        registry = capability(await harbor.client.session.driver(), Registry)
        for worker in workers:
            await registry.beat(worker)


def test_health_leaves_tasks_to_their_agents(desk: Desk) -> None:
    """C, M1: no worker is due for them; they are counted once they are dead."""
    with desk.process("worker", "shop:harbor", "--grace", "0") as worker, TaskManager(desk.url) as tasks:
        worker.says("worker.started")
        id = tasks.submit(b"x", max_attempts=1)
        until(lambda: desk.run("health", "--max-wait", "0", "--url", desk.url).exit_code == 0)
        answer = desk.json("health", "--url", desk.url)
        assert (answer["problems"], answer["due"], answer["oldest_due_seconds"]) == ([], 0, None)
        tasks.claim(id, "agent")
        assert desk.json("health", "--url", desk.url)["running"] == 1
        tasks.fail(id, "agent", "no")
        assert desk.good("health", "--url", desk.url) == "healthy: 1 worker, 0 due jobs, 1 dead job\n"


def test_health_of_a_late_queue(desk: Desk) -> None:
    """C: --max-wait."""
    with desk.process("worker", "shop:harbor", "--concurrency", "1", "--grace", "0") as worker:
        desk.enqueue("shop.hang")
        worker.says("hanging")
        desk.enqueue("shop.hang")
        until(lambda: desk.run("health", "--url", desk.url).exit_code == 0)
        assert "queue default: a due job has waited" in unhealthy(desk, "--max-wait", "0")


def unhealthy(desk: Desk, *words: str) -> str:
    """The complaint of a health that is bad."""
    result = desk.run("health", *words, "--url", desk.url)
    assert result.exit_code == 1
    return result.stderr


def pause(desk: Desk, queue: str) -> None:
    """Pause a queue."""

    async def act() -> None:
        async with desk.harbor.open() as harbor:
            await harbor.admin.queues.apause(queue)

    asyncio.run(act())


@pytest.mark.parametrize("words", [["stats"], ["health"]])
def test_they_take_no_arguments(desk: Desk, words: list[str]) -> None:
    """X5: exit 2."""
    desk.bad(2, *words, "extra")
