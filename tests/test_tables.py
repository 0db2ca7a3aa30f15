"""The tables of the docs agree with the code."""

from __future__ import annotations

import inspect
import re
import shlex
from typing import Any

import click
import pytest

from pages import DOCS, ROOT, blocks, table, text_of
from taskharbor import Harbor, Recycle, Retry
from taskharbor.cli import cli
from taskharbor.cli.worker import CLOSE_PATIENCE
from taskharbor.client.declaration import TickOptions
from taskharbor.client.options import TASK_OPTIONS, JobOptions
from taskharbor.config import DEFAULT_URL
from taskharbor.core.decide import MAX_UNKNOWN_PUT_BACKS, UNKNOWN_TASK_RETRY
from taskharbor.core.recurrence import ANCHOR, Recurrence
from taskharbor.worker.shutdown import CANCEL_PATIENCE
from taskharbor.worker.worker import FLUSH_PATIENCE

COMMAND = re.compile(r"(?:^\$ |/bin/|command: +|CMD +)taskharbor +(.+)")
UNITS = {"s": 1, "min": 60, "h": 3600, "days": 24 * 3600, "KiB": 1024}


def spoken(seconds: float) -> str:
    """A length of time in the table's words: two digits, in the largest unit that fits."""
    for unit in ("h", "min"):
        if seconds >= 2 * UNITS[unit]:
            return f"{seconds / UNITS[unit]:.0f} {unit}"
    return f"{seconds:.2g} s"


def value(cell: str) -> float:
    """The number that a cell begins with, in seconds or bytes."""
    found = re.match(r"`?([\d.]+) (s|min|h|days|KiB)\b", cell)
    assert found, cell
    return float(found.group(1)) * UNITS[found.group(2)]


def code(cell: str) -> Any:
    """The value of the code in a cell."""
    return eval(cell.strip("`"), {"Retry": Retry})  # noqa: S307  it is our own page


@pytest.mark.parametrize("row", table("retries", "lasts on average"))
def test_the_policies_last_as_long_as_the_page_says(row: list[str]) -> None:
    """F2, F3: the limits of all delays between the first and the last run; jitter halves them on average."""
    policy, attempts, average, most = code(row[1]), code(row[2]), row[3], row[4]
    if attempts is None:
        assert (average, most) == ("for ever", "for ever")
    elif attempts == 1:
        assert (average, most) == ("one run", "one run")
    else:
        total = sum(policy.ceiling(failures) for failures in range(1, attempts))
        assert (average, most) == (spoken(total / 2 if policy.jitter else total), spoken(total))


def test_the_default_policy_is_the_one_in_the_table() -> None:
    """F2, F3: what the page calls the default."""
    (row,) = [row for row in table("retries", "lasts on average") if "the default" in row[0]]
    parameters = inspect.signature(Harbor).parameters
    assert (code(row[1]), code(row[2])) == (Retry(), parameters["max_attempts"].default)


@pytest.mark.parametrize("row", table("retries", "failures 1, 2, 3, 4"))
def test_delays_grow_as_the_page_says(row: list[str]) -> None:
    """F2: the limits after the first failures, and after very many."""
    if "lambda" in row[0]:
        return
    policy = code(row[0])
    *first, last = re.findall(r"[\d.]+", row[1])
    assert [policy.ceiling(failures) for failures in range(1, 5)] == [float(each) for each in first]
    assert policy.ceiling(10_000) == float(last)
    assert policy.jitter is row[2].startswith("yes")


@pytest.mark.parametrize("row", table("leases", "renewed every"))
def test_leases_are_renewed_as_the_page_says(row: list[str]) -> None:
    """L1: three times per lease."""
    lease, renewed, waits, cut_off = (value(cell.strip("*")) for cell in row[:4])
    assert renewed == pytest.approx(lease / 3, rel=0.02)
    assert waits == lease
    assert lease / 2 < cut_off <= lease * 2 / 3
    assert ("**" in row[0]) is (lease == _worker_defaults()["lease"])


def _worker_defaults() -> dict[str, Any]:
    return {
        name: parameter.default
        for name, parameter in inspect.signature(Harbor.worker).parameters.items()
        if name != "self"
    }


def test_platforms_wait_for_a_worker_to_stop() -> None:
    """X6: the units of docs/deploying.md leave time for every step of a stop, at the default grace."""
    steps = [value(row[1].partition(", ")[2] or row[1]) for row in table("deploying", "takes at most")]
    assert steps == [_worker_defaults()["grace"], CANCEL_PATIENCE, FLUSH_PATIENCE, CLOSE_PATIENCE]
    text = text_of("deploying")
    (least,) = re.findall(r"at least the grace and (\d+) seconds", text)
    assert int(least) == sum(steps[1:])
    for found in re.findall(r"(?:TimeoutStopSec=|terminationGracePeriodSeconds: |stop_grace_period: )(\d+)", text):
        assert int(found) >= sum(steps)


def _commands() -> list[tuple[str, str]]:
    """Every command of ours in a block of the docs that is to be typed or deployed."""
    found: list[tuple[str, str]] = []
    for page in sorted(path.stem for path in DOCS.glob("*.md")):
        for language in ("console", "ini", "dockerfile", "yaml"):
            for block in blocks(page, language):
                for line in block.splitlines():
                    plain = re.sub(r'", "|\["|"\]', " ", line)
                    found += [
                        (page, each) for each in re.findall(r"(?:^\$ |/bin/|command: +|CMD +)taskharbor +(.+)", plain)
                    ]
    return found


def _resolved(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """The command that these words name, and what is left of them."""
    command: click.Command = cli
    context = click.Context(command, info_name="taskharbor")
    while isinstance(command, click.Group):
        name, *words = words
        inner = command.get_command(context, name)
        assert inner is not None, f"there is no command {name!r}"
        command, context = inner, click.Context(inner, parent=context, info_name=name)
    return command, context, words


@pytest.mark.parametrize(("page", "line"), _commands())
def test_every_command_of_the_docs_is_understood(page: str, line: str) -> None:
    """C: commands and options exist, and their values fit."""
    command, context, words = _resolved(shlex.split(line.partition(" #")[0].removesuffix("&")))
    command.parse_args(context, words)


def test_every_command_that_the_docs_mention_exists() -> None:
    """C: also in the middle of a sentence."""
    for page in DOCS.glob("*.md"):
        for line in re.findall(r"`taskharbor ([a-z][^`]*)`", page.read_text(encoding="utf-8")):
            if " " in line or line not in ("jobs", "dlq", "queues", "recurring", "workflows"):
                _resolved(line.split())


def test_every_way_to_die_is_in_the_table_of_failures() -> None:
    """F1, F4, F6, F8, F9, R4: the reasons of dead letters, as the sources have them."""
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/taskharbor").glob("*/*.py"))
    reasons = set(re.findall(r'final ?= ?"(\w+)"|_fail\(.*, "(\w+)", |"(gave_up)"', source))
    named = {next(filter(None, found)) for found in reasons}
    assert {"max_attempts", "crash_loop", "interrupted", "unknown_task", "undecodable", "broken_retry_policy"} < named
    cells = " ".join(" ".join(row) for row in table("failures", "what is lost"))
    assert {reason for reason in named if f"`{reason}`" not in cells} == set()


def test_every_event_in_the_table_of_failures_is_logged() -> None:
    """The events that the page names are those that workers log."""
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/taskharbor/worker").glob("*.py"))
    events = set(re.findall(r"`((?:job|lease|store|worker|task)\.\w+)`", text_of("failures")))
    assert {event for event in events if event not in source} == set()


DEFAULTS = {name.strip("` "): row for row in table("guide", "set on") for name in row[0].split(",")}
NAMES = {"Retry": Retry, "Recycle": Recycle}
FOR_TESTS = {"harbor": {"clock", "rng", "driver"}, "worker": {"threads"}}


def _options() -> dict[str, set[str]]:
    """The options of the code, by where they can be set."""
    return {
        "harbor": set(inspect.signature(Harbor).parameters),
        "task": {"name", "retry", "process", "memory", *TASK_OPTIONS},
        "job": set(JobOptions.__annotations__),
        "worker": set(_worker_defaults()),
        "recurring": set(TickOptions.__annotations__),
    }


@pytest.mark.parametrize("place", ["harbor", "task", "job", "worker", "recurring"])
def test_the_table_of_defaults_names_every_option(place: str) -> None:
    """R5: and says where each can be set."""
    listed = {name for name, row in DEFAULTS.items() if place in row[2].split(", ")}
    assert listed == _options()[place] - FOR_TESTS.get(place, set())


def test_the_table_of_defaults_has_the_defaults_of_the_code() -> None:
    """F3, F6, L1, R4, R5, X6, X8: each number is the one that is used."""
    harbor = inspect.signature(Harbor).parameters
    code = {name: parameter.default for name, parameter in harbor.items()} | _worker_defaults()
    code |= {"queue": "default", "priority": 0, "retry": Retry(), "url": DEFAULT_URL}
    code |= {"recycle": Recycle(), "process": False}
    code |= {name: getattr(Recurrence(), name) for name in TickOptions.__annotations__}
    for name, (_, cell, *_) in DEFAULTS.items():
        if name in ("queues", "name", "delay", "run_at", "expires", "id", "anchor") or cell == "none":
            continue
        said = value(cell) if re.match(r"[\d.]+ ", cell) else eval(cell.strip("`"), NAMES)  # noqa: S307
        assert said == code[name], name
    assert DEFAULTS["anchor"][1] == f"{ANCHOR:%Y-%m-%d, %Z}"


def test_an_unset_option_has_the_default_of_the_table() -> None:
    """R5: a job that says nothing."""
    harbor = Harbor("memory://")

    @harbor.task
    def plain() -> None: ...

    record = plain.enqueue().record()
    harbor.close()
    assert (record.queue, record.priority, record.tags, record.headers) == ("default", 0, (), {})
    assert (record.max_attempts, record.max_crashes, record.timeout) == (4, 5, None)
    assert (record.idempotency_key, record.expires_at) == (None, None)


def test_unknown_tasks_are_put_back_for_as_long_as_the_pages_say() -> None:
    """F8: the delays and the bound of both tables."""
    minutes = sum(UNKNOWN_TASK_RETRY.ceiling(times) for times in range(1, MAX_UNKNOWN_PUT_BACKS + 1)) // 60
    assert f"{MAX_UNKNOWN_PUT_BACKS} times ({minutes:.0f} minutes)" in text_of("failures")
    assert f"for {minutes:.0f} minutes in all" in text_of("deploying")
