"""`taskharbor dlq`."""

from __future__ import annotations

from typing import Any

import pytest

from taskharbor.manager import TaskManager

from .desk import Desk, in_terminal


@pytest.fixture
def dead(desk: Desk) -> Desk:
    """A store with three dead jobs and a done one."""
    for number in range(3):
        desk.enqueue("shop.explode", f"text=shot {number}", "--id", f"dead-{number}")
    desk.enqueue("shop.welcome", "user_id=1", "--id", "done")
    desk.drain()
    return desk


def job(desk: Desk, id: str) -> Any:
    """The job in full."""
    return desk.json("jobs", "show", id, "--url", desk.url)


def test_the_list(dead: Desk) -> None:
    """Q1: dead jobs only, narrowed by words."""
    listed = dead.json("dlq", "ls", "--url", dead.url)
    assert [entry["id"] for entry in listed] == ["dead-2", "dead-1", "dead-0"]
    assert {entry["state"] for entry in listed} == {"dlq"}
    (found,) = dead.json("dlq", "ls", "error:shot 1", "--url", dead.url)
    assert found["id"] == "dead-1"
    assert "ValueError: shot 2" in dead.good("dlq", "ls", "--url", dead.url)
    assert dead.good("dlq", "ls", "queue:x", "--url", dead.url) == "No dead jobs match.\n"


def test_an_empty_queue(desk: Desk) -> None:
    """Q1: nothing dead is not an error."""
    desk.enqueue("shop.welcome", "user_id=1")
    assert desk.good("dlq", "ls", "--url", desk.url) == "The dead-letter queue is empty.\n"


def test_states_make_no_sense_here(dead: Desk) -> None:
    """X5: exit 2 instead of another answer than asked for."""
    for command in (["ls"], ["groups"], ["replay", "--all"], ["purge"]):
        assert "dead jobs only" in dead.bad(2, "dlq", *command, "state:ready", "--url", dead.url)
    assert len(dead.json("dlq", "ls", "state:dlq", "--url", dead.url)) == 3


def test_one_dead_job(dead: Desk) -> None:
    """Q1: everything about it; a job that is not dead is exit 1."""
    assert dead.json("dlq", "show", "dead-0", "--url", dead.url) == job(dead, "dead-0")
    assert "Failure 2" in dead.good("dlq", "show", "dead-0", "--url", dead.url)
    assert "jobs show done" in dead.bad(1, "dlq", "show", "done", "--url", dead.url)
    assert "there is no job" in dead.bad(1, "dlq", "show", "nobody", "--url", dead.url)


def test_groups(dead: Desk) -> None:
    """Q1: one line for each cause, the most frequent first; its name is a word of the filter."""
    dead.enqueue("shop.explode", "text=disk full", "--id", "other")
    dead.drain()
    first, second = dead.json("dlq", "groups", "--url", dead.url)
    assert set(first) == {"fingerprint", "task", "error", "count", "first_at", "last_at", "last_id"}
    assert (first["task"], first["count"]) == ("shop.explode", 3)
    assert first["last_id"] in {"dead-0", "dead-1", "dead-2"}  # they ran side by side
    assert (second["count"], second["error"]) == (1, "ValueError: disk full")
    head, *rows = dead.good("dlq", "groups", "--url", dead.url).splitlines()
    assert head.split() == ["GROUP", "JOBS", "FIRST", "LAST", "TASK", "ERROR"]
    assert [row.split()[0] for row in rows] == [first["fingerprint"], second["fingerprint"]]
    (found,) = dead.json("dlq", "ls", f"group:{second['fingerprint']}", "--url", dead.url)
    assert found["id"] == "other"
    assert dead.json("dlq", "show", "other", "--url", dead.url)["fingerprint"] == second["fingerprint"]
    (narrowed,) = dead.json("dlq", "groups", "error:disk", "--url", dead.url)
    assert narrowed == second
    result = dead.run("dlq", "groups", "--limit", "1", "--url", dead.url)
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 2)
    assert "--limit" in result.stderr


def test_no_groups(desk: Desk) -> None:
    """Q1: nothing dead is not an error."""
    desk.enqueue("shop.welcome", "user_id=1")
    assert desk.good("dlq", "groups", "--url", desk.url) == "The dead-letter queue is empty.\n"
    assert desk.good("dlq", "groups", "queue:x", "--url", desk.url) == "No dead jobs match.\n"
    assert desk.json("dlq", "groups", "--url", desk.url) == []


def test_replay_of_a_group(dead: Desk) -> None:
    """Q2: by its name, previewed first."""
    (group,) = dead.json("dlq", "groups", "--url", dead.url)
    words = ["dlq", "replay", "--all", f"group:{group['fingerprint']}", "--url", dead.url]
    assert dead.good(*words, "--dry-run").endswith("\nWould replay 3 jobs.\n")
    assert dead.good(*words, "--yes") == "Replayed 3 jobs.\n"
    assert dead.json("dlq", "groups", "--url", dead.url) == []


def test_replay_by_id(dead: Desk) -> None:
    """Q2: attempts back to zero, lineage kept."""
    assert dead.good("dlq", "replay", "dead-0", "dead-1", "--url", dead.url) == "Replayed dead-0.\nReplayed dead-1.\n"
    replayed = job(dead, "dead-0")
    assert (replayed["state"], replayed["attempts"], replayed["replays"]) == ("ready", 0, 1)
    assert replayed["original_id"] == "dead-0"
    assert len(replayed["failures"]) == 2


def test_replay_with_other_arguments_and_a_key(dead: Desk) -> None:
    """Q2: edited arguments, checked by the signature if the application is there."""
    words = ["dlq", "replay", "dead-0", "--args", '{"text": "blank"}', "--key", "again", "-A", "shop:harbor"]
    assert dead.json(*words) == [{"id": "dead-0", "outcome": "replayed"}]
    replayed = job(dead, "dead-0")
    assert (replayed["arguments"], replayed["idempotency_key"]) == ({"text": "blank"}, "again")
    assert dead.json("dlq", "replay", "dead-2", "--key", "short", "--key-ttl", "1h", "--url", dead.url)
    assert job(dead, "dead-2")["key_expires_at"] < replayed["key_expires_at"]
    wrong = ["dlq", "replay", "dead-1", "--args", '{"sound": "bang"}']
    assert "sound" in dead.bad(2, *wrong, "-A", "shop:harbor")
    assert job(dead, "dead-1")["state"] == "dlq"


def test_what_cannot_be_replayed(dead: Desk) -> None:
    """Q2, C: exit 1 with a line for each; the others are replayed."""
    result = dead.run("dlq", "replay", "done", "nobody", "dead-0", "--url", dead.url)
    assert (result.exit_code, result.stdout) == (1, "Replayed dead-0.\n")
    first, second = result.stderr.splitlines()
    assert "done was not replayed: it is neither dead nor cancelled" in first
    assert "nobody was not replayed: there is no such job" in second
    outcomes = dead.run("dlq", "replay", "done", "nobody", "--json", "--url", dead.url)
    assert outcomes.exit_code == 1
    assert '"outcome": "not_dead"' in outcomes.stdout


def test_tasks_are_not_replayed(dead: Desk) -> None:
    """Q2, M2, C: by id it says what to do instead, and --all leaves them out, also of the preview."""
    with TaskManager(dead.url) as tasks:
        id = tasks.submit(b"x", max_attempts=1)
        tasks.claim(id, "agent")
        tasks.fail(id, "agent", "no")
        for more in ([], ["--dry-run"], ["--key", "k"]):
            assert "TaskManager.retry" in dead.bad(1, "dlq", "replay", id, *more, "--url", dead.url)
        words = ["dlq", "replay", "--all", "--url", dead.url]
        assert dead.json(*words, "--dry-run")["matched"] == 3
        assert dead.good(*words, "--yes") == "Replayed 3 jobs.\n"
        assert tasks.get(id).status == "failed"
        assert dead.good("dlq", "purge", "--all", "--yes", "--url", dead.url) == "Deleted 1 job.\n"


def test_a_dry_run_changes_nothing(dead: Desk) -> None:
    """Q2: previewed."""
    assert dead.good("dlq", "replay", "dead-0", "--dry-run", "--url", dead.url) == "Would replay dead-0.\n"
    preview = dead.good("dlq", "replay", "--all", "error:shot 1", "--dry-run", "--url", dead.url)
    assert preview.endswith("\nWould replay 1 job.\n")
    assert "dead-1" in preview
    words = ["dlq", "replay", "--all", "--dry-run", "--url", dead.url]
    answer = dead.json(*words)
    assert {*answer.pop("ids")} == {"dead-0", "dead-1", "dead-2"}
    assert answer == {"matched": 3, "replayed": [], "without_key": [], "changed": [], "dry_run": True}
    assert len(dead.json("dlq", "ls", "--url", dead.url)) == 3
    assert "nobody" in dead.bad(1, "dlq", "replay", "nobody", "--dry-run", "--url", dead.url)


def test_a_dry_run_shows_both_arguments(dead: Desk) -> None:
    """Q2: edited arguments are previewed, and the output says if they were not checked."""
    words = ["dlq", "replay", "dead-0", "--dry-run", "--args"]
    said = 'Would replay dead-0.\nbefore  {"text":"shot 0"}\nafter   {"text":"blank"}\n'
    assert dead.good(*words, '{"text": "blank"}', "-A", "shop:harbor") == said
    unchecked = dead.good(*words, '{"text": "blank"}', "--url", dead.url)
    assert unchecked.startswith(said)
    assert "were not checked: name the application that knows the task with -A" in unchecked
    assert dead.json(*words, '{"sound": "bang"}', "--url", dead.url) == [
        {
            "id": "dead-0",
            "outcome": "would_replay",
            "arguments": {"before": {"text": "shot 0"}, "after": {"sound": "bang"}, "checked": False},
        }
    ]
    assert "sound" in dead.bad(2, *words, '{"sound": "bang"}', "-A", "shop:harbor")
    assert job(dead, "dead-0")["arguments"] == {"text": "shot 0"}


def test_filter_words_are_no_ids(dead: Desk) -> None:
    """X5: it says what is missing, and nothing is replayed; an id that looks like one is an id."""
    for words in ([], ["--dry-run"], ["--args", "{}"]):
        complaint = dead.bad(1, "dlq", "replay", "group:8e49355beec6", *words, "--url", dead.url)
        assert "group:8e49355beec6 is a filter word, not an id; for all jobs that match, add --all" in complaint
    assert "no such job" in dead.bad(1, "dlq", "replay", "order:7", "--url", dead.url)
    dead.enqueue("shop.explode", "text=x", "--id", "task:7")
    dead.drain()
    assert dead.good("dlq", "replay", "task:7", "--url", dead.url) == "Replayed task:7.\n"


def test_letters_are_small_or_capital(dead: Desk) -> None:
    """Q1: they differ, and the help says so."""
    assert len(dead.json("dlq", "ls", "error:ValueError", "--url", dead.url)) == 3
    assert dead.json("dlq", "ls", "error:valueerror", "--url", dead.url) == []
    for command in (["jobs", "ls"], ["dlq", "ls"], ["dlq", "groups"], ["dlq", "purge"]):
        assert "case matters" in dead.good(*command, "--help")


def test_replay_all_that_match(dead: Desk) -> None:
    """Q2: with words; without a question only with --yes."""
    assert dead.good("dlq", "replay", "--all", "error:shot 1", "--yes", "--url", dead.url) == "Replayed 1 job.\n"
    assert job(dead, "dead-1")["state"] == "ready"
    answer = dead.json("dlq", "replay", "--all", "--yes", "--url", dead.url)
    assert (answer["matched"], sorted(answer["replayed"])) == (2, ["dead-0", "dead-2"])
    assert dead.good("dlq", "replay", "--all", "--url", dead.url) == "No jobs match.\n"


def test_the_limit_bounds_it(dead: Desk) -> None:
    """Q2: bounded, and it says so."""
    result = dead.run("dlq", "replay", "--all", "--yes", "--limit", "2", "--url", dead.url)
    assert (result.exit_code, result.stdout) == (0, "Replayed 2 jobs.\n")
    assert "run it again" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "use --all"),
        (["--all"], "3 jobs would be replayed: add --yes"),
        (["--all", "--args", "{}"], "for one job"),
        (["dead-0", "dead-1", "--key", "k"], "for one job"),
        (["dead-0", "--key-ttl", "1h"], "needs a --key"),
        (["dead-0", "--args", "[1]"], "JSON object"),
        (["dead-0", "--args", "{"], "JSON object"),
        (["--all", "colour:red"], "unknown filter word"),
    ],
)
def test_wrong_usage(dead: Desk, words: list[str], said: str) -> None:
    """X5: exit 2, nothing replayed."""
    assert said in dead.bad(2, "dlq", "replay", *words, "--url", dead.url)
    assert len(dead.json("dlq", "ls", "--url", dead.url)) == 3


def test_purge_what_matches(dead: Desk) -> None:
    """Q2: previewed, confirmed, for good."""
    words = ["dlq", "purge", "error:shot 1", "--url", dead.url]
    preview = dead.good(*words, "--dry-run")
    assert preview.endswith("\nWould delete 1 job.\n")
    assert "dead-1" in preview
    nothing: dict[str, list[str]] = {"deleted": [], "needed": [], "changed": []}
    assert dead.json(*words, "--dry-run") == {"matched": 1, **nothing, "dry_run": True, "ids": ["dead-1"]}
    assert "1 job would be deleted: add --yes" in dead.bad(2, *words)
    assert dead.good(*words, "--yes") == "Deleted 1 job.\n"
    assert "there is no job dead-1" in dead.bad(1, "dlq", "show", "dead-1", "--url", dead.url)
    answer = dead.json("dlq", "purge", "--all", "--yes", "--url", dead.url)
    assert (answer["matched"], sorted(answer["deleted"]), answer["needed"]) == (2, ["dead-0", "dead-2"], [])
    assert dead.good("dlq", "purge", "--all", "--url", dead.url) == "No jobs match.\n"
    assert job(dead, "done")["state"] == "done"


def test_purge_by_age(dead: Desk) -> None:
    """Q2: since they died; the limit bounds it, and it says so."""
    assert dead.good("dlq", "purge", "--older-than", "1h", "--yes", "--url", dead.url) == "No jobs match.\n"
    result = dead.run("dlq", "purge", "--older-than", "0s", "--limit", "2", "--yes", "--url", dead.url)
    assert (result.exit_code, result.stdout) == (0, "Deleted 2 jobs.\n")
    assert "run it again" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--older-than, --id, or --all"),
        (["colour:red"], "unknown filter word"),
        (["--older-than", "soon"], "15m"),
        (["--older-than", "7"], "'7' is not a length of time: write a number and s, m, h, d or w"),
        (["--older-than", "-5d"], "is not a length of time"),
        (["since:7"], "'7' is not a length of time: write a number and s, m, h, d or w"),
        (["--id", "dead-0", "--all"], "leave words, --older-than and --all out"),
        (["--id", "dead-0", "queue:mail"], "leave words, --older-than and --all out"),
        (["0198C5D2-0000-7000-8000-0123456789ab"], "write --id 0198C5D2-0000-7000-8000-0123456789ab"),
        (["456789ab"], "write --id 456789ab, group:456789ab or task:456789ab"),
        (["8e49355beec6"], "group:8e49355beec6"),
    ],
)
def test_wrong_usage_of_purge(dead: Desk, words: list[str], said: str) -> None:
    """X5: exit 2, nothing deleted."""
    assert said in dead.bad(2, "dlq", "purge", *words, "--url", dead.url)
    assert len(dead.json("dlq", "ls", "--url", dead.url)) == 3


def test_purge_by_id(dead: Desk) -> None:
    """Q2: dead jobs only, previewed and confirmed like any others."""
    words = ["dlq", "purge", "--id", "dead-1", "--url", dead.url]
    assert dead.good(*words, "--dry-run").endswith("\nWould delete dead-1.\n")
    assert "1 job would be deleted: add --yes" in dead.bad(2, *words)
    assert "there is no job nobody" in dead.bad(1, *words, "--id", "nobody", "--yes")
    assert "done is done, not dead" in dead.bad(1, *words, "--id", "done", "--yes")
    assert len(dead.json("dlq", "ls", "--url", dead.url)) == 3
    assert dead.good(*words, "--id", "dead-2", "--id", "dead-1", "--yes") == "Deleted dead-1.\nDeleted dead-2.\n"
    assert [entry["id"] for entry in dead.json("dlq", "ls", "--url", dead.url)] == ["dead-0"]


@pytest.mark.parametrize("words", [["replay", "--all"], ["purge", "--all"]], ids=" ".join)
def test_a_terminal_is_asked_first(dead: Desk, words: list[str]) -> None:
    """Q2: without an answer nothing happens."""
    code, text = in_terminal(dead.folder, 100, "dlq", *words, "--url", dead.url, given="n\n")
    assert code == 1
    assert "3 jobs (shop.explode)?" in text
    assert len(dead.json("dlq", "ls", "--url", dead.url)) == 3
    code, _ = in_terminal(dead.folder, 100, "dlq", *words, "--url", dead.url, given="y\n")
    assert code == 0
    assert dead.json("dlq", "ls", "--url", dead.url) == []
