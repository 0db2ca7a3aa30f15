"""`taskharbor workflows`."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest

from taskharbor import chord, group

from .desk import Desk, in_terminal, unpainted


def workflow(desk: Desk, *texts: str) -> str:
    """The id of a workflow that has run: for each text a step that fails with it, then one that takes their results."""
    import shop  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]

    async def enqueue() -> str:
        async with shop.harbor.open():
            steps = [shop.explode.step(text) if text else shop.welcome.step(1) for text in texts]
            return str((await chord(group(steps), shop.merge).aenqueue()).id)

    id = asyncio.run(enqueue())
    desk.drain()
    return id


def application(desk: Desk) -> Any:
    """The module in the desk's folder."""
    sys.path.insert(0, str(desk.folder))
    return import_module("shop")


@pytest.fixture
def held(desk: Desk) -> tuple[Desk, str]:
    """A store with a workflow that a dead step holds up, and its id."""
    desk.enqueue("shop.welcome", "user_id=1", "--id", "alone")
    return desk, workflow(desk, "", "boom", "")


def test_the_list(held: tuple[Desk, str]) -> None:
    """K5: states and counts, the latest first; single jobs are none."""
    desk, id = held
    done = workflow(desk, "", "")
    first, second = desk.json("workflows", "ls", "--url", desk.url)
    assert set(first) == {"id", "state", "created_at", "jobs", "counts"}
    assert (first["id"], first["state"], first["counts"]) == (done, "done", {"done": 3})
    assert (second["id"], second["state"], second["jobs"]) == (id, "held", 4)
    assert second["counts"] == {"waiting": 1, "done": 2, "dlq": 1}
    head, *rows = desk.good("workflows", "ls", "--url", desk.url).splitlines()
    assert head.split() == ["ID", "STATE", "JOBS", "BY", "STATE", "CREATED"]
    assert [row.split()[:3] for row in rows] == [[done, "done", "3"], [id, "held", "4"]]
    result = desk.run("workflows", "ls", "--limit", "1", "--url", desk.url)
    assert f"--after {done}" in result.stderr
    (behind,) = desk.json("workflows", "ls", "--after", done, "--url", desk.url)
    assert behind["id"] == id
    assert desk.good("workflows", "ls", "--after", id, "--url", desk.url) == "No more workflows.\n"


def test_an_empty_list(desk: Desk) -> None:
    """K5: none is not an error."""
    desk.enqueue("shop.welcome", "user_id=1")
    assert desk.good("workflows", "ls", "--url", desk.url) == "No workflows yet.\n"
    assert desk.json("workflows", "ls", "--url", desk.url) == []


def test_the_graph(held: tuple[Desk, str]) -> None:
    """K5: each job with its state, and what it waits for."""
    desk, id = held
    shown = desk.json("workflows", "show", id, "--url", desk.url)
    assert (shown["id"], shown["state"], shown["jobs"]) == (id, "held", 4)
    *steps, last = shown["graph"]
    assert [(step["task"], step["state"]) for step in steps] == [
        ("shop.welcome", "done"),
        ("shop.explode", "dlq"),
        ("shop.welcome", "done"),
    ]
    assert steps[1]["error"] == "ValueError: boom"
    assert last["parents"] == [
        {"id": step["id"], "policy": "hold", "satisfied": step["state"] == "done"} for step in steps
    ]
    text = desk.good("workflows", "show", id, "--url", desk.url)
    names = [line.partition("  ")[0] for line in text.partition("\n\n")[0].splitlines()]
    assert names == ["workflow", "state", "to do", "jobs", "created"]
    assert f"to do     taskharbor workflows replay {id}\n" in text
    assert f"workflow  {id}\nstate     held\n" in text
    assert "4: 1 waiting, 2 done, 1 dlq" in text
    head, *rows = text.partition("Graph\n")[2].splitlines()
    assert head.split() == ["NO", "ID", "TASK", "STATE", "AFTER", "WAITS", "FOR", "ERROR"]
    assert rows[3].split() == ["4", last["id"], "shop.merge", "waiting", "1-3", "2"]
    result = desk.run("workflows", "show", id, "--limit", "2", "--url", desk.url)
    assert (result.exit_code, "The first 2 of 4 jobs" in result.stderr) == (0, True)


def test_what_a_failure_means_is_in_the_graph(desk: Desk) -> None:
    """K4, K5: beside the parents of a step, unless it is the default."""
    shop = application(desk)

    async def enqueue() -> str:
        first, second, third = (shop.welcome.using(delay=60).step(number) for number in range(3))
        mixed = group(first.on_failure("collect"), second.on_failure("cancel"), third)
        async with shop.harbor.open():
            return str((await mixed.then(shop.tell).aenqueue()).id)

    id = asyncio.run(enqueue())
    rows = desk.good("workflows", "show", id, "--url", desk.url).partition("Graph\n")[2].splitlines()
    assert rows[4].endswith("  waiting    3; collect 1; cancel 2  3; collect 1; cancel 2")


def test_a_step_that_is_done_shows_no_error(desk: Desk) -> None:
    """K5: after a good replay."""
    shop = application(desk)

    async def enqueue() -> str:
        async with shop.harbor.open():
            return str((await group([shop.once.step("seen"), shop.welcome.step(1)]).aenqueue()).id)

    id = asyncio.run(enqueue())
    desk.drain()
    assert "the first time" in desk.good("workflows", "show", id, "--url", desk.url)
    desk.good("workflows", "replay", id, "--url", desk.url)
    desk.drain()
    assert "the first time" not in desk.good("workflows", "show", id, "--url", desk.url)
    assert "the first time" in desk.good("jobs", "show", _first_step(desk, id), "--url", desk.url)


def _first_step(desk: Desk, id: str) -> str:
    return str(desk.json("workflows", "show", id, "--url", desk.url)["graph"][0]["id"])


def test_what_runs_is_called_running(desk: Desk) -> None:
    """T2, K5: as in lists of jobs, whatever the store calls it."""
    shop = application(desk)

    async def claim() -> str:
        async with shop.harbor.open():
            run = await group([shop.welcome.step(1), shop.welcome.step(2)]).aenqueue()
            driver = await shop.harbor.adriver()
            now = shop.harbor.admin.now()
            assert await driver.reserve(["mail"], now, timedelta(seconds=60), 1, "somebody")
            return str(run.id)

    id = asyncio.run(claim())
    for words in (["show", id], ["ls"]):
        text = desk.good("workflows", *words, "--url", desk.url)
        assert "1 ready, 1 running" in text
        assert "inflight" not in text


def test_a_workflow_is_not_a_job(held: tuple[Desk, str]) -> None:
    """C: exit 1, and it says where to look."""
    desk, id = held
    for command in ("jobs", "dlq"):
        complaint = desk.bad(1, command, "show", id, "--url", desk.url)
        assert complaint == f"{id} is a workflow, not a job: see `taskharbor workflows show {id}`"


def test_the_graph_fits_the_terminal(held: tuple[Desk, str]) -> None:
    """C: as other tables."""
    desk, id = held
    for width in (44, 80, 120):
        for words in (["workflows", "show", id], ["workflows", "ls"]):
            code, text = in_terminal(desk.folder, width, *words, "--url", desk.url)
            assert code == 0
            _, _, table = unpainted(text).rpartition("Graph")
            assert max(len(line) for line in table.splitlines()) <= width


def test_cancel(held: tuple[Desk, str]) -> None:
    """K5: what has not ended; a second time there is nothing, which is exit 1."""
    desk, id = held
    assert desk.good("workflows", "cancel", id, "--url", desk.url) == f"Cancelled 1 job of workflow {id}.\n"
    assert "it is failed" in desk.bad(1, "workflows", "cancel", id, "--url", desk.url)
    result = desk.run("workflows", "cancel", id, "--json", "--url", desk.url)
    assert (result.exit_code, '"cancelled": 0' in result.stdout) == (1, True)


def test_replay(held: tuple[Desk, str]) -> None:
    """K5, Q3: the dead step runs again, and the workflow goes on."""
    desk, id = held
    (dead,) = desk.json("dlq", "ls", "--url", desk.url)
    answer = desk.json("workflows", "replay", id, "--url", desk.url)
    assert answer == {"id": id, "replayed": [dead["id"]], "state": "running"}
    desk.drain()
    assert desk.good("workflows", "replay", id, "--url", desk.url) == f"Replayed 1 job of workflow {id}.\n"
    assert "it is running" in desk.bad(1, "workflows", "replay", id, "--url", desk.url)


def test_a_step_with_other_arguments(held: tuple[Desk, str]) -> None:
    """Q2, K3: a step that is given results keeps its place, and its arguments are checked without the first."""
    desk, _ = held
    id = workflow(desk, "")
    *_, last = desk.json("workflows", "show", id, "--url", desk.url)["graph"]
    (dead,) = desk.json("dlq", "ls", "--url", desk.url)
    replay = ["dlq", "replay", dead["id"], "-A", "shop:harbor"]
    assert "text" in desk.bad(2, *replay, "--args", "{}")
    assert desk.json(*replay, "--args", '{"text": "bang"}')[0]["outcome"] == "replayed"
    assert "workflow" in desk.bad(2, "dlq", "replay", dead["id"], "--key", "k", "--url", desk.url)
    cancelled = workflow(desk, "boom")
    desk.good("workflows", "cancel", cancelled, "--url", desk.url)
    *_, last = desk.json("workflows", "show", cancelled, "--url", desk.url)["graph"]
    replay[2] = last["id"]
    assert "results" in desk.bad(2, *replay, "--args", '{"results": []}')
    assert desk.json(*replay, "--args", '{"between": "+"}')[0]["outcome"] == "replayed"


def test_what_others_wait_for_is_not_purged(held: tuple[Desk, str]) -> None:
    """Q2: exit 1, and it says what to do."""
    desk, _ = held
    result = desk.run("dlq", "purge", "--all", "--yes", "--url", desk.url)
    assert (result.exit_code, result.stdout) == (1, "Deleted 0 jobs.\n")
    assert "was not deleted: others in its workflow wait for it" in result.stderr
    assert "workflows cancel" in result.stderr
    answer = desk.run("dlq", "purge", "--all", "--yes", "--json", "--url", desk.url)
    assert (answer.exit_code, '"needed": []' in answer.stdout) == (1, False)


@pytest.mark.parametrize("command", ["show", "cancel", "replay"])
def test_no_such_workflow(held: tuple[Desk, str], command: str) -> None:
    """C: exit 1."""
    desk, _ = held
    for words in ([], ["--json"]):
        complaint = desk.bad(1, "workflows", command, "nobody", *words, "--url", desk.url)
        assert "there is no workflow nobody" in complaint
