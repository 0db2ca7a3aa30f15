"""`taskharbor enqueue`."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from servers.nats import NatsServer
from servers.valkey import ValkeyServer

from .desk import Desk, in_terminal


def stored(desk: Desk, id: str) -> Any:
    """The job as `jobs show` prints it."""
    return desk.json("jobs", "show", id, "--url", desk.url)


def test_with_an_application_its_options_apply(desk: Desk) -> None:
    """C, R5: the task's own queue and tags; the signature reads the arguments."""
    id = desk.enqueue("shop.welcome", "user_id=42", "locale=de")
    job = stored(desk, id)
    assert job["arguments"] == {"user_id": 42, "locale": "de"}
    assert (job["queue"], job["tags"], job["state"]) == ("mail", ["letter"], "ready")
    assert desk.drain() == 1
    assert stored(desk, id)["result"] == "de:42"


def test_without_one_it_is_stored_as_given(desk: Desk) -> None:
    """C: by name, for a worker elsewhere."""
    words = ["a=1", "b=text", "c=[1, 2]", 'd="7"', "e=null", "f=", "g=a=b", "h=ünï"]
    id = desk.json("enqueue", "far.away", *words, "--url", desk.url)["id"]
    job = stored(desk, id)
    assert job["task"] == "far.away"
    assert job["arguments"] == {
        "a": 1, "b": "text", "c": [1, 2], "d": "7", "e": None, "f": "", "g": "a=b", "h": "ünï"
    }  # fmt: skip


def test_without_one_it_says_that_the_name_is_not_checked(desk: Desk) -> None:
    """C: beside what it prints, where scripts do not read it."""
    result = desk.run("enqueue", "shop.welcom", "user_id=1", "--json", "--url", desk.url)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["created"] is True
    assert result.stderr == (
        "The name shop.welcom was not checked: name the application by -A module:harbor, or app in [tool.taskharbor].\n"
    )


def test_the_application_of_the_project_checks_the_name(desk: Desk) -> None:
    """C, P4: `[tool.taskharbor] app` is as good as -A."""
    (desk.folder / "pyproject.toml").write_text('[tool.taskharbor]\napp = "shop:harbor"\n', encoding="utf-8")
    assert "there is shop.explode" in desk.bad(2, "enqueue", "shop.welcom", "user_id=1", "--url", desk.url)
    result = desk.run("enqueue", "shop.welcome", "user_id=1", "--url", desk.url)
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize("words", [["far.away"], ["-A", "shop", "shop.welcome", "user_id=1"]])
def test_a_store_in_memory_is_refused(desk: Desk, words: list[str]) -> None:
    """G2: the job would be gone with the command."""
    said = desk.bad(2, "enqueue", *words, "--url", "memory://")
    assert "memory:// is a store inside one process" in said
    assert "--url sqlite:///jobs.db" in said


@pytest.mark.parametrize("words", [["jobs", "ls"], ["stats"], ["dlq", "replay", "--all"], ["health"]], ids=" ".join)
def test_a_look_into_memory_is_refused(desk: Desk, words: list[str]) -> None:
    """G2, C: an empty answer would look like the truth."""
    said = desk.bad(2, *words, "--url", "memory://")
    assert "memory:// is a store inside one process: this command cannot see its jobs" in said
    assert "--url sqlite:///jobs.db" in said


def test_it_prints_the_id(desk: Desk) -> None:
    """C: for people, the id and whether it was created."""
    assert desk.good("enqueue", "far.away", "--id", "mine", "--url", desk.url) == "mine created\n"


def test_every_option(desk: Desk) -> None:
    """C, N1, I1: options are stored with the job."""
    id = desk.enqueue(
        "shop.welcome", "user_id=1", "--queue", "slow", "--delay", "15m", "--priority", "7", "--key", "k",
        "--key-ttl", "1h", "--id", "one", "--max-attempts", "9", "--max-crashes", "1", "--timeout", "1.5", "--tag", "x",
        "--tag", "y", "--expires", "2h",
    )  # fmt: skip
    job = stored(desk, id)
    expected = {
        "id": "one", "queue": "slow", "priority": 7, "idempotency_key": "k", "max_attempts": 9, "max_crashes": 1,
        "timeout": 1.5, "tags": ["x", "y"], "state": "scheduled",
    }  # fmt: skip
    assert {name: job[name] for name in expected} == expected
    created = datetime.fromisoformat(job["created_at"])
    for name, after in {"run_at": 15, "key_expires_at": 60, "expires_at": 120}.items():
        assert abs(datetime.fromisoformat(job[name]) - created - timedelta(minutes=after)) < timedelta(minutes=1)


def test_run_at(desk: Desk) -> None:
    """N1: a moment with its zone, kept in UTC."""
    id = desk.enqueue("shop.welcome", "user_id=1", "--run-at", "2040-01-31T09:00:00+02:00")
    assert stored(desk, id)["run_at"] == "2040-01-31T07:00:00Z"


def test_a_known_key_stores_nothing(desk: Desk) -> None:
    """I1, I3: the existing id, and whether the arguments were the same."""
    id = desk.enqueue("shop.welcome", "user_id=1", "--key", "k")
    again = desk.json("enqueue", "-A", "shop", "shop.welcome", "user_id=1", "--key", "k")
    other = desk.json("enqueue", "-A", "shop", "shop.welcome", "user_id=2", "--key", "k")
    assert again == {"id": id, "created": False, "same_payload": True}
    assert other == {"id": id, "created": False, "same_payload": False}
    assert "existed already" in desk.good("enqueue", "-A", "shop", "shop.welcome", "user_id=1", "--key", "k")
    assert "other arguments" in desk.good("enqueue", "-A", "shop", "shop.welcome", "user_id=2", "--key", "k")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["shop.nothing"], "shop.explode, shop.hang, shop.merge, shop.once, shop.tell, shop.welcome"),
        (["welcome", "user_id=1"], "(did you mean 'shop.welcome'?)"),
        (["shop:harbor", "shop.welcome"], "'shop:harbor' is read as the name of a task: an application is named by -A"),
        (["shop.welcome"], "user_id"),
        (["shop.welcome", "user_id=many"], "task shop.welcome: parameter user_id wants int, got str"),
        (["shop.welcome", "user_id=1", "colour=red"], "colour"),
        (["shop.welcome", "user_id=1", "delay=5"], "'delay' is an option of the job: write --delay 5"),
        (["shop.welcome", "user_id=1", "idempotency_key=k"], "is an option of the job: write --key k"),
        (["shop.explode", "text=5"], """wants str, got int; to give a text, quote it twice: 'text="5"'"""),
        (["shop.welcome", "user_id"], "write name=value"),
        (["shop.welcome", "=1"], "write name=value"),
        (["shop.welcome", "user_id=1", "user_id=2"], "given twice"),
        (["shop.welcome", 'user_id={"a":'], "looks like JSON but is not"),
        (["shop.welcome", "user_id=1", "--priority", "101"], "priority must be"),
        (["shop.welcome", "user_id=1", "--max-attempts", "0"], "max_attempts must be"),
        (["shop.welcome", "user_id=1", "--max-crashes", "0"], "max_crashes must be"),
        (["shop.welcome", "user_id=1", "--delay", "later"], "15m"),
        (["shop.welcome", "user_id=1", "--delay", "-5"], "delay must be"),
        (["shop.welcome", "user_id=1", "--run-at", "tomorrow"], "2030-01-31T09:00:00Z"),
        (["shop.welcome", "user_id=1", "--run-at", "2040-01-31T09:00:00"], "time zone"),
        (["shop.welcome", "user_id=1", "--run-at", "2040-01-31T09:00:00Z", "--delay", "1"], "not both"),
        (["shop.welcome", "user_id=1", "--key-ttl", "1h"], "idempotency_ttl needs"),
        (["shop.welcome", "user_id=1", "--queue", "a\tb"], "control characters"),
        (["shop.explode", f"text={'x' * 600_000}"], "the limit is 524,288"),
    ],
)
def test_bad_input_stores_nothing(desk: Desk, words: list[str], said: str) -> None:
    """X5: exit 2, one line that names the rule, nothing stored."""
    desk.enqueue("shop.welcome", "user_id=1")
    assert said in desk.bad(2, "enqueue", "-A", "shop:harbor", *words)
    assert len(desk.json("jobs", "ls", "--url", desk.url)) == 1


def test_a_taken_id_is_refused(desk: Desk) -> None:
    """R2: exit 1."""
    desk.enqueue("shop.welcome", "user_id=1", "--id", "one")
    assert "one" in desk.bad(1, "enqueue", "-A", "shop", "shop.welcome", "user_id=1", "--id", "one")


def test_a_folder_that_is_not_there(desk: Desk) -> None:
    """X5: a store cannot be made in a folder that is missing."""
    assert "no folder" in desk.bad(2, "enqueue", "far.away", "--url", "sqlite:///no/where/jobs.db")


@pytest.mark.parametrize("engine", ["valkey", "nats"])
def test_not_every_command_warns_of_what_the_store_may_lose(
    desk: Desk, engine: str, request: pytest.FixtureRequest
) -> None:
    """C: `health --deep` says it."""
    server: ValkeyServer | NatsServer = request.getfixturevalue(engine)
    name = server.new_namespace()
    url = server.url(namespace=name)
    code, text = in_terminal(desk.folder, 80, "enqueue", "-A", "shop:harbor", "shop.welcome", "user_id=1", "--url", url)
    assert (code, len(text.splitlines())) == (0, 1), text
    server.drop_namespace(name)
