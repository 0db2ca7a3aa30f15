"""`taskharbor stats` and `taskharbor health`."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor.core.decide import token_of
from taskharbor.core.job import NewJob
from taskharbor.core.transition import Ack
from taskharbor.driver import Group, Increment, Registry, WorkerRecord, capability
from taskharbor.manager import TaskManager

from .desk import Desk, in_terminal, unpainted, until


def test_stats_of_a_busy_store(desk: Desk) -> None:
    """C: counts per queue, totals per task."""
    desk.enqueue("shop.welcome", "user_id=1")
    desk.enqueue("shop.explode", "text=x")
    desk.drain()
    desk.enqueue("shop.welcome", "user_id=2", "--delay", "1h")
    answer = desk.json("stats", "--url", desk.url)
    assert set(answer) == {"at", "queues", "workers", "since_seconds", "totals"}
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
            "oldest_due_seconds", "silent", "stopping",
        }  # fmt: skip
        (seen,) = desk.json("stats", "--url", desk.url)["workers"]
        assert (seen["queues"], seen["slots"]) == (["default"], 16)
        assert "0/16" in desk.good("stats", "--url", desk.url)

        desk.enqueue("shop.welcome", "user_id=1")
        said = "listens to it (1 worker on other queues: default): run `taskharbor worker MODULE:HARBOR -Q mail`"
        assert said in unhealthy(desk)
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


def test_workers_whose_runs_are_all_past_their_timeout_are_stuck(desk: Desk) -> None:
    """C, F5: with due jobs, that is not healthy: no slot of the queue becomes free by itself."""
    now = datetime.now(UTC)
    stuck = WorkerRecord(
        id="a:1",
        host="a",
        pid=1,
        queues=("mail",),
        slots=2,
        busy=2,
        started_at=now,
        seen_at=now,
        overruns=2,
        stuck=("mail",),
    )
    asyncio.run(beat(desk, stuck))
    assert desk.json("health", "--url", desk.url)["healthy"]
    desk.enqueue("shop.welcome", "user_id=1")
    assert "every slot that it may take runs past a timeout: restart a:1" in unhealthy(desk)
    asyncio.run(beat(desk, replace(stuck, id="b:2", stuck=("default",))))
    assert desk.json("health", "--url", desk.url)["healthy"]


def test_a_silent_worker_is_not_spoken_for(desk: Desk) -> None:
    """C: a worker that missed two reports is marked, and its runs and slots do not count."""
    now = datetime.now(UTC)
    alive = WorkerRecord(
        id="a:1", host="a", pid=1, queues=("mail",), slots=3, busy=2, started_at=now, seen_at=now, overruns=1
    )
    gone = replace(alive, id="b:2", host="b", busy=3, overruns=2, seen_at=now - timedelta(seconds=25))
    desk.enqueue("shop.welcome", "user_id=1")
    asyncio.run(beat(desk, alive, gone))
    answer = desk.json("health", "--url", desk.url)
    assert (answer["workers"], answer["silent"], answer["overrunning"]) == (2, 1, {"a:1": 1})
    text = desk.good("health", "--url", desk.url)
    assert text.startswith("healthy: 2 workers (1 of them silent), 1 due job, 0 dead jobs\nworker a:1 has 1 run past")
    assert "worker b:2 is silent: it was last seen 2" in text
    assert " ago, with 2 runs past the timeout" in " ".join(text.split())
    (queue,) = desk.json("queues", "ls", "--url", desk.url)
    assert queue["workers"] == 1
    for command in ("stats", "workers"):
        (row,) = (line for line in desk.good(command, "--url", desk.url).splitlines() if line.startswith("b:2"))
        assert "-/3" in row
        assert " s ago, silent" in row
    listed = desk.json("workers", "--url", desk.url)
    assert [(worker["id"], worker["silent"]) for worker in listed] == [("a:1", False), ("b:2", True)]
    assert desk.json("stats", "--url", desk.url)["workers"] == listed


def test_silent_workers_are_not_healthy_with_due_jobs(desk: Desk) -> None:
    """C: while every worker of the queue has missed two reports; it says who was seen last, and when."""
    seen = datetime.now(UTC) - timedelta(seconds=25)
    gone = WorkerRecord(id="b:2", host="b", pid=1, queues=("mail",), slots=3, busy=2, started_at=seen, seen_at=seen)
    asyncio.run(beat(desk, gone, replace(gone, id="c:3", queues=("default",), seen_at=datetime.now(UTC))))
    assert desk.json("health", "--url", desk.url)["healthy"]
    desk.enqueue("shop.welcome", "user_id=1")
    assert "queue mail has 1 due job, but the last worker on it, b:2, was seen 2" in unhealthy(desk)
    assert json.loads(desk.run("health", "--json", "--url", desk.url).stdout)["problems"][0]["code"] == "silent"


def test_a_stopping_worker_is_shown_as_stopping(desk: Desk) -> None:
    """C, X6: it takes no jobs: due jobs of its queue need another worker."""
    now = datetime.now(UTC)
    going = WorkerRecord(
        id="b:2", host="b", pid=1, queues=("mail",), slots=3, busy=2, started_at=now, seen_at=now, stopping=True
    )
    asyncio.run(beat(desk, going))
    text = desk.good("health", "--url", desk.url)
    assert text == "healthy: 1 worker, 0 due jobs, 0 dead jobs\nworker b:2 is stopping: 2 runs to end\n"
    desk.enqueue("shop.welcome", "user_id=1")
    assert "but the last worker on it, b:2, is stopping" in unhealthy(desk)
    for command in ("stats", "workers"):
        (row,) = (line for line in desk.good(command, "--url", desk.url).splitlines() if line.startswith("b:2"))
        assert ", stopping" in row
    assert desk.json("queues", "ls", "--url", desk.url)[0]["workers"] == 0
    assert desk.json("health", "--store-only", "--url", desk.url)["stopping"] == 1


def test_workers_are_listed(desk: Desk) -> None:
    """C: `taskharbor workers`."""
    desk.enqueue("shop.welcome", "user_id=1")
    assert desk.json("workers", "--url", desk.url) == []
    assert "taskharbor worker" in desk.good("workers", "--url", desk.url)
    now = datetime.now(UTC)
    one = WorkerRecord(
        id="host:1:abc", host="host", pid=1, queues=("a", "b"), slots=4, busy=2, started_at=now, seen_at=now, overruns=1
    )
    asyncio.run(beat(desk, one))
    head, row = desk.good("workers", "--url", desk.url).splitlines()
    assert head.split() == ["WORKER", "HOST", "PID", "QUEUES", "BUSY", "OVERRUNS", "SINCE", "SEEN"]
    assert row.split()[:7] == ["host:1:abc", "host", "1", "a,", "b", "2/4", "1"]
    code, text = in_terminal(desk.folder, 80, "workers", "--url", desk.url)
    assert code == 0
    assert max(len(line) for line in unpainted(text).splitlines()) <= 80


def test_health_says_which_due_jobs_no_worker_may_take(desk: Desk) -> None:
    """C: those of paused queues, and the lapsed ones."""
    desk.enqueue("shop.welcome", "user_id=1")
    now = datetime.now(UTC)
    asyncio.run(
        beat(
            desk, WorkerRecord(id="a", host="a", pid=1, queues=("mail",), slots=1, busy=0, started_at=now, seen_at=now)
        )
    )
    asyncio.run(lapse(desk, "mail"))
    desk.enqueue("shop.welcome", "user_id=2")
    assert desk.good("health", "--url", desk.url).startswith("healthy: 1 worker, 2 due jobs (1 lapsed job), ")
    pause(desk, "mail")
    expected = "healthy: 1 worker, 2 due jobs (2 of them in paused queues: mail; 1 lapsed job), 0 dead jobs\n"
    line, note = desk.good("health", "--url", desk.url).splitlines(keepends=True)
    assert line == expected
    assert note.startswith("queue mail is paused, with 2 due jobs, the oldest ")
    assert note.endswith(": `taskharbor queues resume mail`\n")


def test_commands_for_a_queue_can_be_pasted_whatever_its_name_is(desk: Desk) -> None:
    """C: a name may have spaces, and what a shell would run."""
    name = "mail of $(shop)"
    url = ("--url", desk.url)
    id = desk.enqueue("shop.explode", "text=x", "--queue", name, "--max-attempts", "1")
    now = datetime.now(UTC)
    asyncio.run(
        beat(desk, WorkerRecord(id="a", host="a", pid=1, queues=("q",), slots=1, busy=0, started_at=now, seen_at=now))
    )
    start = f"worker MODULE:HARBOR -Q '{name}'"
    assert start in desk.run("health", *url).output
    assert start in desk.run("jobs", "show", id, *url).output
    desk.good("queues", "pause", name, *url)
    resume = f"taskharbor queues resume '{name}'"
    assert f"`{resume}`" in desk.good("health", *url)
    assert resume in desk.run("jobs", "show", id, *url).output
    desk.good("jobs", "cancel", id, "--yes", *url)
    assert f"`{resume}`" in desk.run("jobs", "replay", id, "--yes", *url).stderr
    desk.good(*shlex.split(resume)[1:], *url)
    assert "paused" not in desk.run("jobs", "show", id, *url).output


def test_health_answers_in_json_whatever_is_wrong(desk: Desk) -> None:
    """C: a monitor that reads stdout gets an answer to wrong settings too."""
    result = desk.run("health", "--json", "--url", "ftp://jobs")
    (problem,) = json.loads(result.stdout)["problems"]
    assert (result.exit_code, problem["code"]) == (2, "wrong_settings")
    assert result.stderr == f"taskharbor: {problem['message']}\n"


async def lapse(desk: Desk, queue: str) -> None:
    """Claim a job with a lease that ends at once."""
    async with desk.harbor.open() as harbor:
        driver = await harbor.client.session.driver()
        await driver.reserve([queue], datetime.now(UTC), timedelta(microseconds=1), 1, "gone")


def test_the_mean_is_that_of_runs(desk: Desk) -> None:
    """C: jobs that never started have no part in it; `-` if there was none."""
    desk.enqueue("shop.welcome", "user_id=1")
    asyncio.run(count(desk, ("released", 9, None), ("done", 2, 4.0)))
    (total,) = desk.json("stats", "--url", desk.url)["totals"]
    assert (total["released"], total["done"], total["runs"], total["seconds"]) == (9, 2, 2, 8.0)
    assert desk.good("stats", "--url", desk.url).rstrip().endswith(" 4 s")
    asyncio.run(count(desk, ("dlq", 1, None), task="other"))
    rows = desk.good("stats", "--url", desk.url).splitlines()
    assert next(row for row in rows if row.startswith("other")).endswith(" -")


async def count(desk: Desk, *totals: tuple[str, int, float | None], task: str = "t") -> None:
    """Add to the totals of this minute: an outcome, how many, and seconds for each; None if they did not start."""
    async with desk.harbor.open() as harbor:
        driver, now = await harbor.client.session.driver(), datetime.now(UTC)
        for outcome, number, seconds in totals:
            ids = [f"{task}-{outcome}-{at}" for at in range(number)]
            jobs = [NewJob(id=id, type=task, queue="counted", payload=b"{}") for id in ids]
            await driver.enqueue([Group(jobs=tuple(jobs))], now)
            held = await driver.reserve([], now, timedelta(minutes=1), number, "w", ids)
            started_at = None if seconds is None else now - timedelta(seconds=seconds)
            add = Increment("mail", task, outcome, now)
            given: dict[str, Any] = {"keep_until": now, "started_at": started_at, "increment": add}
            await driver.settle([Ack(id=it.id, token=token_of(it), **given) for it in held], now)


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
