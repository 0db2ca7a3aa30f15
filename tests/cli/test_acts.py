"""`taskharbor jobs cancel|delete|replay`: by ids and by filter words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import pytest

from taskharbor import chain
from taskharbor.admin.queues import Queues
from taskharbor.cli import bulk
from taskharbor.core.reserved import TASKS
from taskharbor.errors import DriverError
from taskharbor.manager import TaskManager

from .desk import Desk, in_terminal, unpainted


@pytest.fixture
def busy(desk: Desk) -> Desk:
    """A store with done, dead, ready, scheduled jobs and a task of a TaskManager."""
    desk.enqueue("shop.welcome", "user_id=1", "--id", "done")
    for number in (1, 2, 3):
        desk.enqueue("shop.explode", "text=no", "--id", f"dead{number}")
    desk.drain()
    for number in (1, 2, 3):
        desk.enqueue("shop.welcome", "user_id=2", "--id", f"ready{number}", "--tag", "vip")
    desk.enqueue("shop.welcome", "user_id=3", "--id", "later", "--delay", "1h")
    with TaskManager(desk.url) as tasks:
        tasks.submit(b"x")
    return desk


def states(desk: Desk) -> dict[str, str]:
    """The state of every job."""
    jobs = desk.json("jobs", "ls", "--url", desk.url)
    return {"task" if job["queue"] == TASKS else job["id"]: job["state"] for job in jobs}


def task_of(desk: Desk) -> str:
    """The id of the TaskManager's task."""
    (job,) = desk.json("jobs", "ls", f"queue:{TASKS}", "--url", desk.url)
    return str(job["id"])


def test_cancel_what_matches(busy: Desk) -> None:
    """C, T3: only what has not ended; a TaskManager's tasks are left alone unless their queue is named."""
    assert busy.good("jobs", "cancel", "*", "--yes", "--url", busy.url) == "Cancelled 4 jobs.\n"
    found = states(busy)
    assert [found[id] for id in ("done", "dead1", "ready1", "later", "task")] == [
        "done", "dlq", "cancelled", "cancelled", "ready"
    ]  # fmt: skip
    assert busy.good("jobs", "cancel", "*", "--yes", "--url", busy.url) == "No jobs match.\n"
    assert busy.good("jobs", "cancel", "queue:taskharbor.tasks", "-y", "--url", busy.url) == "Cancelled 1 job.\n"


def test_delete_what_matches(busy: Desk) -> None:
    """C: only what has ended, and nothing without an answer."""
    complaint = busy.bad(2, "jobs", "delete", "state:dlq", "--url", busy.url)
    assert complaint.startswith("3 jobs would be deleted: add --yes to do it, --dry-run to see them")
    assert busy.good("jobs", "delete", "state:dlq", "--yes", "--url", busy.url) == "Deleted 3 jobs.\n"
    assert "cannot be deleted" in busy.bad(2, "jobs", "delete", "state:ready", "--yes", "--url", busy.url)
    assert set(states(busy)) == {"done", "ready1", "ready2", "ready3", "later", "task"}


def test_replay_what_matches(busy: Desk) -> None:
    """C, Q2: dead and cancelled jobs alike."""
    busy.good("jobs", "cancel", "ready1", "--url", busy.url)
    assert busy.good("jobs", "replay", "task:shop.*", "--yes", "--url", busy.url) == "Replayed 4 jobs.\n"
    assert {"ready"} == {state for id, state in states(busy).items() if id.startswith(("dead", "ready"))}


@pytest.mark.parametrize("act", ["cancel", "delete", "replay"])
def test_a_bulk_act_wants_to_know_which_jobs(busy: Desk, act: str) -> None:
    """C, X5: not without ids or words, and not with both."""
    assert "say which jobs" in busy.bad(2, "jobs", act, "--yes", "--url", busy.url)
    assert "give either" in busy.bad(2, "jobs", act, "shop.welcome", "queue:mail", "--yes", "--url", busy.url)
    assert "filter words are state:, queue:" in busy.bad(2, "jobs", act, "quue:mail", "tag:x", "--url", busy.url)
    assert "; the jobs of a task are task:shop.welcome" in busy.bad(
        1, "jobs", act, "shop.welcome", "--yes", "--url", busy.url
    )
    assert "; the jobs of a queue are queue:mail" in busy.bad(1, "jobs", act, "mail", "--yes", "--url", busy.url)
    assert "unknown filter word" in busy.bad(2, "jobs", act, "colour:*", "--yes", "--url", busy.url)
    assert "filter words are state:, queue:" in busy.bad(1, "jobs", act, "colour:red", "--yes", "--url", busy.url)
    assert "say which jobs" in busy.bad(2, "jobs", act, "", "--yes", "--url", busy.url)


def test_a_dry_run_only_looks(busy: Desk) -> None:
    """C: what would happen, by words and by ids; nothing does."""
    before = states(busy)
    text = busy.good("jobs", "cancel", "tag:vip", "--dry-run", "--url", busy.url)
    assert text.endswith("Would cancel 3 jobs.\n")
    assert {"ready1", "ready2", "ready3"} == {line.split()[0] for line in text.splitlines()[1:-1]}
    result = busy.run("jobs", "delete", "ready1", "done", "nobody", "--dry-run", "--json", "--url", busy.url)
    assert (result.exit_code, json.loads(result.stdout)) == (
        1,
        [{"id": "ready1", "answer": "live"}, {"id": "done", "answer": "would"}, {"id": "nobody", "answer": "missing"}],
    )
    assert "nobody was not deleted: there is no such job" in result.stderr
    assert states(busy) == before


def test_no_question_about_jobs_that_cannot_be_deleted(busy: Desk) -> None:
    """C: they are refused at once; the question is about the others alone."""
    for id, why in (("ready1", "it has not ended"), ("nobody", "there is no such job")):
        assert f"{id} was not deleted: {why}" in busy.bad(1, "jobs", "delete", id, "--url", busy.url)
    assert "1 job would be deleted: add --yes" in busy.bad(2, "jobs", "delete", "ready1", "done", "--url", busy.url)
    assert states(busy)["done"] == "done"


def test_a_replay_into_a_paused_queue_says_so(busy: Desk) -> None:
    """C, Q2: its jobs wait; by words, by ids, and from the dead-letter queue."""
    busy.good("queues", "pause", "default", "--url", busy.url)
    for words in (
        ["jobs", "replay", "dead1"],
        ["jobs", "replay", "state:dlq", "--limit", "1"],
        ["dlq", "replay", "--all"],
    ):
        result = busy.run(*words, "--yes", "--url", busy.url)
        assert result.exit_code == 0
        assert "Queue default is paused: its jobs wait for `taskharbor queues resume default`." in result.stderr


@pytest.mark.parametrize("changes", [[], ["--args", '{"text": "again"}']])
def test_a_replay_of_a_dead_letter_by_id_says_so_too(busy: Desk, changes: list[str]) -> None:
    """C, Q2: with its own arguments, and with others."""
    busy.good("queues", "pause", "default", "--url", busy.url)
    result = busy.run("dlq", "replay", "dead1", *changes, "--url", busy.url)
    assert (result.exit_code, result.stdout) == (0, "Replayed dead1.\n")
    assert "Queue default is paused: its jobs wait for `taskharbor queues resume default`." in result.stderr


def test_only_replayed_jobs_are_reported_as_waiting(busy: Desk) -> None:
    """C, Q2: not those of a dry run or those refused; a refusal of others does not hide it."""
    busy.good("queues", "pause", "default", "--url", busy.url)
    for words in (["state:dlq", "--dry-run"], ["dead1", "--dry-run"], ["done"]):
        for group in ("jobs", "dlq") if "state:dlq" not in words else ("jobs",):
            assert "is paused" not in busy.run(group, "replay", *words, "--url", busy.url).stderr
    result = busy.run("jobs", "replay", "dead1", "done", "--url", busy.url)
    assert (result.exit_code, result.stdout) == (1, "Replayed dead1.\n")
    assert "Queue default is paused" in result.stderr


@pytest.mark.parametrize(
    "words", [["jobs", "replay", "dead1"], ["jobs", "replay", "state:dlq"], ["dlq", "replay", "--all"]]
)
def test_a_replay_is_reported_if_the_store_fails_right_after_it(
    busy: Desk, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C: the jobs were replayed, so the command says so and ends well."""

    async def fail(_: Queues) -> NoReturn:
        raise DriverError("the store is gone")

    monkeypatch.setattr(Queues, "alist", fail)
    result = busy.run(*words, "--yes", "--url", busy.url)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("Replayed ")
    assert states(busy)["dead1"] == "ready"


def test_named_jobs(busy: Desk) -> None:
    """C: each is answered for; one that stays as it was makes it an error, without stopping the others."""
    task = task_of(busy)
    result = busy.run("jobs", "replay", "dead1", "done", task, "nobody", "--url", busy.url)
    assert (result.exit_code, result.stdout) == (1, "Replayed dead1.\n")
    done, theirs, nobody = [line.removeprefix("taskharbor: ") for line in result.stderr.splitlines()]
    assert done == (
        "done was not replayed: it is neither dead nor cancelled; if it is scheduled, `taskharbor jobs run-now done` "
        "makes it due"
    )
    assert theirs.startswith(f"{task} was not replayed: it is a TaskManager's task")
    assert nobody.startswith("nobody was not replayed: there is no such job")
    assert busy.good("jobs", "delete", "dead2", "--yes", "--url", busy.url) == "Deleted dead2.\n"
    assert "has not ended: cancel it first" in busy.bad(1, "jobs", "delete", "ready1", "--yes", "--url", busy.url)


def test_a_task_counts_claims(busy: Desk) -> None:
    """M2, C: the attempts of a TaskManager's task are its claims; failures are failures."""
    page = busy.good("jobs", "show", task_of(busy), "--url", busy.url)
    assert "claims    0 of any number" in page
    assert "failures  0\n" in page


def test_a_limit_is_reported(busy: Desk) -> None:
    """C: bounded, and never silently."""
    result = busy.run("jobs", "cancel", "queue:mail", "--limit", "2", "--yes", "--url", busy.url)
    assert (result.exit_code, result.stdout) == (0, "Cancelled 2 jobs.\n")
    assert "That is the limit of 2; more may match" in result.stderr


def test_jobs_that_are_needed_stay(busy: Desk) -> None:
    """C, Q2: a job that others wait for is named, and makes it an error."""
    import shop  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]

    async def flow() -> None:
        async with shop.harbor.open():
            await chain(shop.explode.step("no"), shop.hang.step()).aenqueue()

    asyncio.run(flow())
    busy.drain()
    result = busy.run("jobs", "delete", "task:shop.explode", "--yes", "--url", busy.url)
    assert (result.exit_code, result.stdout) == (1, "Deleted 3 jobs.\n")
    assert "others in its workflow wait for it" in result.stderr


def typed(folder: Path, answer: str, *words: str) -> tuple[int, str]:
    """A command in a terminal, and what is typed there."""
    code, text = in_terminal(folder, 80, *words, given=answer)
    return code, unpainted(text)


def test_a_terminal_is_asked(busy: Desk) -> None:
    """C: with the number; "no" changes nothing."""
    code, text = typed(busy.folder, "n\n", "jobs", "cancel", "tag:vip", "--url", busy.url)
    assert code == 1
    assert "Cancel 3 jobs (shop.welcome)? [y/N]" in text
    assert states(busy)["ready1"] == "ready"
    code, text = typed(busy.folder, "y\n", "jobs", "cancel", "tag:vip", "--url", busy.url)
    assert (code, "Cancelled 3 jobs." in text) == (0, True)


def during_the_question(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Answer the question of a command with yes, once this has happened."""
    monkeypatch.setattr(bulk, "confirm", lambda *_, **__: act())


@pytest.mark.parametrize("words", [["jobs", "delete", "state:dlq"], ["dlq", "purge", "--all"]], ids=" ".join)
def test_jobs_that_change_during_the_question_are_left_alone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """C: who says yes means the jobs as they were counted."""
    desk.enqueue("shop.once", "file=seen", "--id", "mended")
    desk.enqueue("shop.explode", "text=no", "--id", "dead")
    desk.drain()

    def meanwhile() -> None:
        desk.good("jobs", "replay", "mended", "--url", desk.url)
        desk.drain()

    during_the_question(monkeypatch, meanwhile)
    said = "Deleted 1 job.\n1 job had changed in the meantime and was left alone.\n"
    assert desk.good(*words, "--url", desk.url) == said
    assert states(desk) == {"mended": "done"}


def test_a_replay_leaves_what_changed_during_the_question(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """C, Q2: by words of jobs and of dead letters."""
    for id in ("one", "two", "three", "four"):
        desk.enqueue("shop.explode", "text=no", "--id", id)
    desk.drain()

    def delete(*ids: str) -> None:
        desk.good("jobs", "delete", *ids, "--yes", "--url", desk.url)

    during_the_question(monkeypatch, lambda: delete("one", "two"))
    said = desk.good("dlq", "replay", "--all", "--url", desk.url)
    assert said == "Replayed 2 jobs.\n2 jobs had changed in the meantime and were left alone.\n"
    desk.drain()
    during_the_question(monkeypatch, lambda: delete("three"))
    said = desk.good("jobs", "replay", "state:dlq", "--url", desk.url)
    assert said == "Replayed 1 job.\n1 job had changed in the meantime and was left alone.\n"


def test_a_missing_id_does_not_stop_the_others(busy: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """C: also where there are more jobs than are searched for endings; only an ending gets the hint about it."""
    monkeypatch.setattr("taskharbor.admin.endings.SEARCHED", 2)
    gone = "0198c5d2-0000-7000-8000-0000deadbeef"
    for act in ("jobs", "dlq"):
        result = busy.run(act, "replay", gone, "dead1" if act == "jobs" else "dead2", "deadbeef", "--url", busy.url)
        assert result.exit_code == 1
        assert result.stdout == f"Replayed {'dead1' if act == 'jobs' else 'dead2'}.\n"
        first, second = result.stderr.splitlines()
        assert first.endswith(
            f"{gone} was not replayed: there is no such job: the id is wrong, or its retention has run out"
        )
        assert "deadbeef was not replayed: there is no such job" in second
        assert "endings are searched among the newest 50,000: write the whole id" in second


def test_the_full_id_behind_an_ending_is_shown(desk: Desk) -> None:
    """C: the whole id, in the question and in the answer; of a job and of a workflow."""
    one, other = (f"0198c5d2-0000-7000-8000-000{number}deadbeef" for number in (1, 2))
    for id in (one, other):
        desk.enqueue("shop.explode", "text=no", "--id", id)
    desk.drain()
    code, text = typed(desk.folder, "n\n", "jobs", "delete", "1deadbeef", "--url", desk.url)
    assert (code, f"Delete {one} (shop.explode)? [y/N]" in text) == (1, True)
    assert desk.good("jobs", "delete", "1deadbeef", "--yes", "--url", desk.url) == f"Deleted {one}.\n"
    code, text = typed(desk.folder, "n\n", "dlq", "purge", "--id", "2deadbeef", "--url", desk.url)
    assert (code, f"Delete {other} (shop.explode)? [y/N]" in text) == (1, True)
    assert desk.good("dlq", "purge", "--id", "deadbeef", "--yes", "--url", desk.url) == f"Deleted {other}.\n"

    import shop  # pyright: ignore[reportMissingImports]

    async def flow() -> str:
        async with shop.harbor.open():
            return str((await chain(shop.explode.step("no"), shop.hang.step()).aenqueue()).id)

    id = asyncio.run(flow())
    result = desk.run("jobs", "cancel", f"workflow:{id[-8:]}", "--yes", "--url", desk.url)
    assert (result.exit_code, result.stdout) == (0, "Cancelled 2 jobs.\n")
    assert result.stderr == f"workflow:{id[-8:]} is workflow:{id}.\n"


def test_large_acts_run_in_batches_and_report_progress(desk: Desk) -> None:
    """C: bounded bites with progress."""

    async def fill() -> None:
        async with desk.harbor.open() as harbor:
            await harbor.aenqueue_many([harbor.step("shop.welcome", {"user_id": 1}) for _ in range(1001)])

    asyncio.run(fill())
    code, text = typed(desk.folder, "", "jobs", "cancel", "*", "--yes", "--url", desk.url)
    assert code == 0
    assert "500 of 1,001 jobs" in text
    assert "1,001 of 1,001 jobs" in text
    assert "Cancelled 1,001 jobs." in text
    desk.good("jobs", "replay", "*", "--yes", "--url", desk.url)
    desk.good("jobs", "dead-letter", "*", "--reason", "wrong", "--yes", "--url", desk.url)
    for act, said in ((("replay", "--all"), "Replayed"), (("purge", "--all"), "Deleted")):
        code, text = typed(desk.folder, "", "dlq", *act, "--yes", "--url", desk.url)
        assert (code, "1,000 of 1,001 jobs" in text, f"{said} 1,001 jobs." in text) == (0, True, True)
        desk.run("jobs", "dead-letter", "*", "--reason", "wrong", "--yes", "--url", desk.url)


def test_dead_letter_by_hand(busy: Desk) -> None:
    """Q4: with a reason that is kept and groups them; by ids and by words."""
    assert "--reason" in busy.bad(2, "jobs", "dead-letter", "ready1", "--url", busy.url)
    assert "a dead letter needs a reason" in busy.bad(
        2, "jobs", "dead-letter", "ready1", "--reason", " ", "--url", busy.url
    )
    by = ("--reason", "wrong customers", "--url", busy.url)
    assert busy.good("jobs", "dead-letter", "ready1", *by) == "Dead-lettered ready1.\n"
    assert "it has ended already" in busy.bad(1, "jobs", "dead-letter", "ready1", *by)
    assert busy.good("jobs", "dead-letter", "tag:vip", *by, "--dry-run").endswith("Would dead-letter 2 jobs.\n")
    assert busy.good("jobs", "dead-letter", "tag:vip", *by, "--yes") == "Dead-lettered 2 jobs.\n"
    job = busy.json("jobs", "show", "ready1", "--url", busy.url)
    assert (job["state"], job["dlq_reason"], job["last_error"]) == ("dlq", "wrong customers", None)
    assert job["why"]["text"].endswith("dead-lettered by hand just now: wrong customers")
    groups = busy.json("dlq", "groups", "reason:wrong*", "--url", busy.url)
    assert [(group["count"], group["error"]) for group in groups] == [(3, "by hand: wrong customers")]
    for words in (["jobs", "ls", "state:dlq"], ["dlq", "ls"], ["dlq", "groups"]):
        assert "  by hand: wrong customers\n" in busy.good(*words, "--url", busy.url)


def test_a_running_job_shows_its_dead_letter_request(desk: Desk) -> None:
    """Q4, T3: the request is shown while it runs."""
    desk.enqueue("shop.welcome", "user_id=1", "--id", "one")
    hold(desk, "mail", 60)
    assert desk.good("jobs", "dead-letter", "one", "--reason", "wrong", "--url", desk.url) == (
        "Asked one to stop and be dead-lettered: claimed by a worker.\n"
    )
    text = desk.good("jobs", "show", "one", "--url", desk.url)
    assert "and is to be dead-lettered (wrong)" in text
    assert "dead letter asked" in text
    desk.good("jobs", "cancel", "one", "--url", desk.url)
    assert "cancel asked" in desk.good("jobs", "show", "one", "--url", desk.url)


def test_a_replay_says_when_a_key_was_dropped(desk: Desk) -> None:
    """Q2: another job has it by then; by id, by words, and for dead letters."""
    for id in ("one", "two", "three", "four"):
        desk.enqueue("shop.explode", "text=no", "--id", id, "--key", id, "--key-ttl", "0.001")
    desk.drain()
    for id in ("one", "two", "three", "four"):
        desk.enqueue("shop.welcome", "user_id=1", "--id", f"new-{id}", "--key", id)
    without = "without its key: another job holds it.\n"
    assert desk.good("jobs", "replay", "one", "--url", desk.url) == f"Replayed one {without}"
    assert desk.good("dlq", "replay", "two", "--url", desk.url) == f"Replayed two {without}"
    result = desk.run("jobs", "replay", "task:shop.explode", "--limit", "1", "-y", "--url", desk.url)
    assert result.stdout == f"Replayed 1 job {without}"
    assert desk.json("dlq", "replay", "--all", "--yes", "--url", desk.url) == {
        "matched": 1, "replayed": ["three"], "without_key": ["three"], "changed": [], "dry_run": False
    }  # fmt: skip
    desk.drain()
    assert desk.good("dlq", "replay", "--all", "--yes", "--url", desk.url) == "Replayed 4 jobs.\n"


def hold(desk: Desk, queue: str, seconds: float) -> None:
    """Claim a job of the queue as a worker would that is then killed."""

    async def claim() -> None:
        async with desk.harbor.open() as harbor:
            driver = await harbor.adriver()
            await driver.reserve([queue], harbor.admin.now(), timedelta(seconds=seconds), 1, "web-1:42")

    asyncio.run(claim())


def test_lapsed_jobs_are_shown_as_due(desk: Desk) -> None:
    """C, T: a job whose lease ran out is not running: it is due, and may be the oldest, in paused queues too."""
    desk.enqueue("shop.welcome", "user_id=1", "--id", "one")
    hold(desk, "mail", 0.001)
    desk.good("queues", "pause", "mail", "--url", desk.url)
    (job,) = desk.json("jobs", "ls", "state:lapsed", "--url", desk.url)
    assert (job["id"], job["state"], job["worker"]) == ("one", "lapsed", "web-1:42")
    assert "lapsed" in desk.good("jobs", "ls", "--url", desk.url)
    (queue,) = desk.json("queues", "ls", "--url", desk.url)
    assert (queue["lapsed"], queue["running"], queue["paused"]) == (1, 0, True)
    assert queue["oldest_due"] == desk.json("jobs", "show", "one", "--url", desk.url)["lease"]["expires_at"]
    assert desk.json("stats", "--url", desk.url)["queues"][0]["oldest_due"] == queue["oldest_due"]
    assert "LAPSED" in desk.good("stats", "--url", desk.url)
    health = json.loads(desk.run("health", "--json", "--url", desk.url).stdout)
    assert (health["due"], health["lapsed"], health["running"]) == (1, 1, 0)
    assert health["oldest_due_seconds"] >= 0
    assert desk.good("queues", "resume", "mail", "--url", desk.url) == "mail is resumed, with 1 due job.\n"
    assert "the lease of web-1:42 ran out" in desk.good("jobs", "show", "one", "--url", desk.url)
    assert desk.good("jobs", "cancel", "state:lapsed", "--yes", "--url", desk.url).startswith("Asked 1 job to stop")
