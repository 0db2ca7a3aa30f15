"""`taskharbor jobs run-now`: scheduled jobs become due."""

from __future__ import annotations

import json

from .desk import Desk
from .test_acts import busy, hold, task_of

__all__ = ["busy"]

ID = "00000000-0000-7000-8000-0000deadbeef"


def test_scheduled_jobs_become_due(desk: Desk) -> None:
    """C: by id or ending, each with its own answer; a job that is due already stays where it is."""
    desk.enqueue("shop.welcome", "user_id=1", "--id", ID, "--delay", "2h")
    desk.enqueue("shop.welcome", "user_id=2", "--id", "ready")
    shown = desk.good("jobs", "show", ID, "--url", desk.url)
    assert f"to do     taskharbor jobs run-now {ID}" in shown
    assert desk.good("jobs", "run-now", "deadbeef", "ready", "--url", desk.url) == (
        f"{ID} is due now.\nready was due already: `taskharbor jobs show ready` says why it waits.\n"
    )
    assert desk.json("jobs", "show", ID, "--url", desk.url)["state"] == "ready"
    assert desk.drain() == 2


def test_a_retry_keeps_its_failures(desk: Desk) -> None:
    """C, F1: a job that waits for its next try runs now, and has one attempt less left."""
    (desk.folder / "shop.py").write_text(
        (desk.folder / "shop.py").read_text(encoding="utf-8").replace("Retry.fixed(0)", "Retry.fixed(3600)"),
        encoding="utf-8",
    )
    id = desk.enqueue("shop.explode", "text=boom")
    assert desk.drain() == 1
    assert f"`taskharbor jobs run-now {id}` makes it due" in desk.bad(1, "jobs", "replay", id, "--url", desk.url)
    assert desk.json("jobs", "run-now", id, "--url", desk.url) == [{"id": id, "answer": "due"}]
    assert desk.drain() == 1
    assert desk.json("jobs", "show", id, "--url", desk.url)["state"] == "dlq"


def test_jobs_that_are_not_scheduled_are_refused(desk: Desk) -> None:
    """C: exit 1 with a line for each that names what to do."""
    desk.enqueue("shop.welcome", "user_id=1", "--id", "done")
    desk.drain()
    desk.enqueue("shop.welcome", "user_id=1", "--id", "claimed")
    hold(desk, "mail", 60)
    result = desk.run("jobs", "run-now", "done", "claimed", "nobody", "--json", "--url", desk.url)
    answers = [each["answer"] for each in json.loads(result.stdout)]
    assert (result.exit_code, answers) == (1, ["ended", "running", "missing"])
    assert "done was not made due: it has ended; `taskharbor jobs replay done`" in result.stderr


def test_a_task_of_an_agent_is_refused(busy: Desk) -> None:
    """C, M2: an agent claims it by its id."""
    task = task_of(busy)
    assert "is a TaskManager's task" in busy.bad(1, "jobs", "run-now", task, "--url", busy.url)
