"""The command line as a whole: help, exit codes, and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from limits import LIMIT
from taskharbor.cli import cli

from .desk import Desk


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with the words that name it."""
    yield path, group
    if isinstance(group, click.Group):
        for name, command in group.commands.items():
            yield from commands(command, (*path, name))


ALL = dict(commands(cli))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_explains_itself(desk: Desk, path: tuple[str, ...]) -> None:
    """C: help for each command, without touching a store or an application."""
    text = desk.good(*path, "--help")
    assert text.startswith(f"Usage: {' '.join(('taskharbor', *path))}")
    assert ALL[path].get_short_help_str()
    assert not (desk.folder / "jobs.db").exists()


@pytest.mark.parametrize("path", [path for path in ALL if isinstance(ALL[path], click.Group)], ids=" ".join)
def test_a_list_of_commands_fits_the_terminal(
    desk: Desk, path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C: no summary is cut at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    commands = desk.good(*path, "--help").partition("Commands:")[2]
    assert commands
    assert "..." not in commands


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_option_explains_itself(path: tuple[str, ...]) -> None:
    """C: no option without a help text."""
    for option in ALL[path].params:
        assert not isinstance(option, click.Option) or option.help, option


@pytest.mark.parametrize(
    "path",
    [
        *(path for path in ALL if len(path) == 2 and path[0] in ("jobs", "dlq", "workflows")),
        ("stats",),
        ("health",),
    ],
    ids=" ".join,
)
def test_reading_commands_take_json_app_and_url(path: tuple[str, ...]) -> None:
    """C: every reading command has --json, and what changes jobs has it too."""
    names = {name for option in ALL[path].params for name in option.opts}
    assert {"--json", "--app", "-A", "--url"} <= names


def test_the_version(desk: Desk) -> None:
    """C: `--version`."""
    assert desk.good("--version").startswith("taskharbor 0.")


def test_no_command_shows_the_help(desk: Desk) -> None:
    """C: wrong usage, but a friendly one."""
    result = desk.run()
    assert result.exit_code == 2
    assert "Commands:" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sink"], "'sink'"),
        (["jobs", "sink"], "'sink'"),
        (["jobs", "ls", "--sink"], "--sink"),
        (["jobs", "ls", "--limit", "0"], "--limit"),
        (["jobs", "ls", "--limit", "many"], "--limit"),
        (["jobs", "show"], "ID"),
        (["stats", "--since", "soon"], "15m"),
        (["stats", "extra"], "extra"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(desk: Desk, words: list[str], said: str) -> None:
    """C, X5: exit 2, no traceback."""
    complaint = desk.bad(2, *words)
    assert said in complaint
    assert "--help`" in complaint


URL = "postgresql://me:hunter2@127.0.0.1:1/db"
NO_URL = "me:hunter2@127.0.0.1/db"


@pytest.mark.parametrize(
    "words",
    [
        [URL],
        ["stats", URL],
        ["jobs", "ls", "--limit", URL],
        ["jobs", "ls", "-A", URL],
        ["bench", f"x{URL}"],
        ["migrate", NO_URL],
        ["jobs", "ls", "-A", NO_URL],
        ["bench", NO_URL],
        ["health", "--url", NO_URL],
    ],
)
def test_a_url_in_the_wrong_place_is_shown_without_its_password(desk: Desk, words: list[str]) -> None:
    """C, X5: also where click repeats what was typed."""
    assert "hunter2" not in desk.bad(2, *words)


@pytest.mark.parametrize("url", [URL, NO_URL])
def test_a_worker_behaves_the_same(desk: Desk, url: str) -> None:
    """C, X5: it is a process of its own, whose every line counts."""
    with desk.process("worker", url) as worker:
        worker.says("names no application")
        assert worker.exit_code() == 2
    assert "hunter2" not in "".join(worker.lines)


def test_a_worker_whose_store_cannot_be_made_says_so(desk: Desk) -> None:
    """C, X5: one line and exit 2, no traceback."""
    with desk.process("worker", "shop:harbor", "--url", "sqlite:////proc/jobs.db") as worker:
        worker.says("cannot use /proc/jobs.db as a store: no files can be made in /proc; choose another folder")
        assert worker.exit_code() == 2
    assert "Traceback" not in "".join(worker.lines)


def loaded_after(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after a statement."""
    code = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LIMIT)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_command_line_imports_no_rich_and_no_engine() -> None:
    """C: it starts quickly."""
    modules = loaded_after("import taskharbor.cli")
    assert not {"rich", "apsw", "sqlite3", "taskharbor.cli.demo.tasks"} & modules


def test_json_needs_no_rich(desk: Desk) -> None:
    """C: scripts do not pay for what they do not see."""
    desk.enqueue("shop.welcome", "user_id=1")
    run = "taskharbor.cli.cli(['jobs', 'ls', '--json', '--url', 'sqlite:///jobs.db'], standalone_mode=False)"
    assert "rich" not in loaded_after(f"import taskharbor.cli; {run}")


def test_python_dash_m_is_the_same_program() -> None:
    """C: `python -m taskharbor`."""
    done = subprocess.run(
        [sys.executable, "-m", "taskharbor", "--help"], capture_output=True, text=True, check=True, timeout=LIMIT
    )
    assert done.stdout.startswith("Usage: taskharbor [OPTIONS] COMMAND")


def test_a_reader_that_goes_away_is_not_an_error(desk: Desk) -> None:
    """C: `taskharbor jobs ls | head -1` shows no traceback."""
    desk.enqueue("shop.welcome", "user_id=1")
    command = f"{sys.executable} -m taskharbor jobs ls --json --url sqlite:///jobs.db | true"
    done = subprocess.run(
        ["/bin/sh", "-c", command], cwd=desk.folder, capture_output=True, text=True, check=False, timeout=LIMIT
    )
    assert "Traceback" not in done.stderr
