"""Output in a terminal: tables by rich, colours unless NO_COLOR, and columns that give way when it is narrow."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import click
import pytest
from rich.cells import cell_len

from taskharbor import Retry, Step, Unrecoverable, chain
from taskharbor.cli import cli
from taskharbor.cli.logs import ForFiles, ForPeople
from taskharbor.cli.tables import Column, fitted, shortened
from taskharbor.cli.wrapping import wrapped
from taskharbor.driver import Registry, WorkerRecord, capability
from taskharbor.worker.outcome_log import JobFilter

from .desk import Desk, in_terminal, unpainted

# Every command that prints a table, and a word of the table in a busy store.
TABLES = {
    "jobs ls": "shop.explode",
    "dlq ls": "shop.explode",
    "dlq groups": "shop.explode",
    "stats": "shop.explode",
    "queues ls": "mail",
    "workers": "abc123",
    "recurring ls": "nightly",
    "workflows ls": "running",
}
ID = "00000000-0000-7000-8000-0000deadbeef"
LONG = "acme.notifications.email.send_welcome_message"


def shown(desk: Desk, width: int, *words: str, **environment: str) -> str:
    """The output of a successful command in a terminal of this width."""
    code, text = in_terminal(desk.folder, width, *words, "--url", desk.url, **environment)
    assert code == 0, text
    return text


@pytest.fixture
def busy(desk: Desk) -> Desk:
    """A store with a done job and a dead one."""
    desk.enqueue("shop.welcome", "user_id=1")
    desk.enqueue("shop.explode", 'text="[red]boom[/red]"', "--id", ID)
    desk.drain()
    asyncio.run(add_others(desk, "web-1:4242:abc123", "nightly", "fine"))
    return desk


async def add_others(desk: Desk, worker: str, recurring: str, task: str) -> None:
    """Add what is listed beside jobs: a worker that stops, a recurring task, and a workflow under way."""
    async with desk.harbor.open() as harbor:

        @harbor.task(name=task)
        async def work() -> None: ...

        await chain(work.using(queue="slow").step(), work.using(queue="slow").step()).aenqueue()
        await harbor.admin.recurring.acreate(recurring, task, cron="30 3 1,15 * *", tz="Europe/Berlin")
        await harbor.admin.recurring.arun(recurring)
        host, pid, _ = worker.split(":")
        now = harbor.admin.now()
        record = WorkerRecord(
            id=worker,
            host=host,
            pid=int(pid),
            queues=("transactional-email-high", "注文", "default"),
            slots=128,
            busy=128,
            started_at=now,
            seen_at=now,
            overruns=3,
            stopping=True,
        )
        await capability(await harbor.adriver(), Registry).beat(record)


def test_every_list_is_tested() -> None:
    """C: a command with `--wide` prints a table, which must fit."""
    context = click.Context(cli)

    def found(group: click.Group, *path: str) -> Iterator[str]:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                yield from found(command, *path, name)
            elif command is not None and any(parameter.name == "wide" for parameter in command.params):
                yield " ".join([*path, name])

    assert set(found(cli)) == TABLES.keys() | {"workflows show"}


@pytest.mark.parametrize("command", TABLES)
def test_colours_only_where_wanted(busy: Desk, command: str) -> None:
    """C: NO_COLOR is respected."""
    assert "\x1b[3" in shown(busy, 120, *command.split())
    plain = shown(busy, 120, *command.split(), NO_COLOR="1")
    assert "\x1b[3" not in plain
    assert TABLES[command] in plain


@pytest.mark.parametrize("width", [44, 80, 120])
@pytest.mark.parametrize("command", TABLES)
def test_tables_fit_the_terminal(busy: Desk, width: int, command: str) -> None:
    """C: no line is wider than the terminal; ids are shown by their endings."""
    text = unpainted(shown(busy, width, *command.split()))
    assert max(cell_len(line) for line in text.splitlines()) <= width
    if command in ("jobs ls", "dlq ls"):
        assert f"\n{ID[-8:]} " in text
        assert ID not in text


@pytest.fixture
def crowded(desk: Desk) -> Desk:
    """A store whose jobs have long names, long errors and wide characters, in every state that takes a column."""

    async def fill() -> None:
        async with desk.harbor.open() as harbor:

            async def run(*steps: Step[Any]) -> None:
                await harbor.aenqueue_many(steps)
                await harbor.adrain(["transactional-email-high", "注文"])

            @harbor.task(name=LONG, queue="transactional-email-high", retry=Retry.fixed(3600))
            async def send() -> None:
                raise OSError("no answer from mail-7.example.com within 30 seconds")

            @harbor.task(name="shop.受注処理", queue="注文")
            async def order() -> None:
                raise Unrecoverable("住所が見つかりません: 東京都千代田区丸の内一丁目")

            @harbor.task(name="fine", queue="注文")
            async def fine() -> None: ...

            await run(send.step(), order.step(), fine.step())
            await fine.using(delay=3600).aenqueue()
            await (await fine.aenqueue()).acancel()
            await chain(fine.using(queue="slow").step(), fine.using(queue="slow").step()).aenqueue()
            await fine.using(queue="claimed").aenqueue()
            driver = await harbor.adriver()
            await driver.reserve(["claimed"], harbor.admin.now(), timedelta(hours=1), 1, "web-1.example.com:4242:ab12")
            await harbor.admin.queues.apause("slow")

    asyncio.run(fill())
    worker = "transactional-email-worker-6f7c9d8b5-x2k4z:4242:abc123"
    asyncio.run(add_others(desk, worker, "acme.reports.nightly.send_summary_to_everybody", "acme.reports.summary"))
    return desk


@pytest.mark.parametrize("width", [44, 80])
@pytest.mark.parametrize("command", TABLES)
def test_tables_of_long_names_fit_the_terminal(crowded: Desk, width: int, command: str) -> None:
    """C: also the columns that are never left out."""
    text = unpainted(shown(crowded, width, *command.split()))
    assert max(cell_len(line) for line in text.splitlines()) <= width


def test_eighty_columns_keep_what_matters(crowded: Desk) -> None:
    """C: lists keep queue, time and error; stats keep the oldest due; the end of a task's name is kept."""
    jobs = unpainted(shown(crowded, 80, "jobs", "ls"))
    assert jobs.split()[:6] == ["ID", "TASK", "QUEUE", "STATE", "WHEN", "ERROR"]
    assert "lcome_message  transact" in jobs
    assert "OSError: no an" in jobs
    assert "Unrecoverable: " in jobs
    assert "taskharbor.errors" not in jobs
    for words in (["stats"], ["queues", "ls"]):
        text = unpainted(shown(crowded, 80, *words))
        (head,) = [line for line in text.splitlines() if line.startswith("QUEUE ")]
        assert {"PAUSED", "READY", "DLQ", "DUE"} <= set(head.split())
        assert max(cell_len(line) for line in text.splitlines()) <= 80
        assert "transactional-email-…" in text or "transactional-email-high" in text
    assert "send_summary_to_everybody  At" in unpainted(shown(crowded, 80, "recurring", "ls"))
    assert max(cell_len(line) for line in jobs.splitlines()) <= 80
    (head, _, row) = unpainted(shown(crowded, 80, "workers")).splitlines()
    assert head.split() == ["WORKER", "QUEUES", "BUSY", "SEEN"]
    assert row.startswith("…")
    assert "-x2k4z:4242:abc123  " in row


@pytest.mark.parametrize("words", [["jobs", "ls"], ["stats"], ["queues", "ls"], ["workflows", "ls"]], ids=" ".join)
def test_wide_tables_are_whole(crowded: Desk, words: list[str]) -> None:
    """C: --wide has every column, whole ids, and nothing cut."""
    text = unpainted(shown(crowded, 80, *words, "--wide"))
    assert "…" not in text
    if words == ["jobs", "ls"]:
        assert "FAILURES" in text
        assert LONG in text
        assert "taskharbor.errors.Unrecoverable: 住所が見つかりません: 東京都千代田区丸の内一丁目" in text
        assert all(len(line.split()[0]) == 36 for line in text.splitlines()[2:])
    if words[0] in ("stats", "queues"):
        assert "CANCELLED" in text


def test_one_long_error_widens_nothing_else(desk: Desk) -> None:
    """C: --wide cuts an error at 300 characters, pads no other row for it, and JSON has the whole."""
    desk.enqueue("shop.explode", f"text={'x' * 1900}")
    desk.enqueue("shop.explode", "text=short")
    desk.drain()
    for words in (["dlq", "groups"], ["dlq", "ls"], ["jobs", "ls"]):
        lines = unpainted(shown(desk, 80, *words, "--wide")).splitlines()
        assert len(lines[1]) == len(lines[0]) < 150
        assert sorted(len(line) > 300 for line in lines[2:]) == [False, True]
        assert max(len(line) for line in lines) < 450
    errors = [group["error"] for group in desk.json("dlq", "groups", "--url", desk.url)]
    assert max(len(error) for error in errors) > 1900


def test_columns_give_way_in_their_order() -> None:
    """C: soft columns are cut first, then columns are left out by rank; what has no rank stays."""
    columns = [
        Column("ID", str),
        Column("TASK", str, least=4),
        Column("WHEN", str, drop=2),
        Column("NO", str, drop=1),
    ]
    assert fitted(columns, [8, 20, 6, 2], 80) == {0: 8, 1: 20, 2: 6, 3: 2}
    assert fitted(columns, [8, 20, 6, 2], 40) == {0: 8, 1: 18, 2: 6, 3: 2}
    assert fitted(columns, [8, 20, 6, 2], 25) == {0: 8, 1: 7, 2: 6}
    assert fitted(columns, [8, 20, 6, 2], 15) == {0: 8, 1: 5}
    assert fitted(columns, [8, 20, 6, 2], 5) == {0: 8, 1: 4}
    heavy = [Column("A", str, least=4), Column("B", str, least=4, weight=2)]
    assert fitted(heavy, [40, 40], 32) == {0: 10, 1: 20}
    assert fitted([Column("WORKER", str, least=40), Column("BUSY", str)], [50, 5], 20) == {0: 13, 1: 5}


def test_help_and_hints_are_whole_words_at_eighty_columns(desk: Desk) -> None:
    """C: no summary is cut, and no word is broken by the edge of the terminal."""
    assert "..." not in shown_help(desk).partition("Commands:")[2]
    desk.enqueue("shop.welcome", "user_id=1")
    code, text = in_terminal(desk.folder, 80, "health", "--url", desk.url)
    assert code == 1
    lines = unpainted(text).splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(lines[1:]).endswith(": run `taskharbor worker MODULE:HARBOR`")
    narrow = unpainted(in_terminal(desk.folder, 40, "health", "--url", desk.url)[1]).splitlines()
    assert [line.strip() for line in narrow[:2]] == ["unhealthy: 0 workers, 1 due job, 0 dead", "jobs"]


def test_no_command_is_broken_by_the_edge_of_the_terminal(desk: Desk) -> None:
    """C: a command in a message, a note or a page is one line, which can be pasted."""
    id = desk.enqueue("shop.explode", "text=x", "--max-attempts", "1")
    desk.drain()
    for width in (50, 80):
        page = unpainted(in_terminal(desk.folder, width, "jobs", "show", id, "--url", desk.url)[1]).splitlines()
        assert any(line.endswith(f"taskharbor jobs replay {id}") for line in page)
        assert not any(line.endswith(" ") for line in page)
    desk.enqueue("shop.explode", "text=x", "--queue", "mail-for-the-customers-of-the-shop")
    asyncio.run(add_others(desk, "web-1:4242:abc123", "nightly", "fine"))
    complaint = unpainted(in_terminal(desk.folder, 80, "health", "--url", desk.url)[1])
    assert "`taskharbor worker MODULE:HARBOR -Q mail-for-the-customers-of-the-shop`" in complaint
    desk.good("queues", "pause", "mail-for-the-customers-of-the-shop", "--url", desk.url)
    note = unpainted(in_terminal(desk.folder, 80, "health", "--url", desk.url)[1])
    assert "`taskharbor queues resume mail-for-the-customers-of-the-shop`" in note


def test_the_name_of_a_fact_is_dim_and_its_value_is_not(desk: Desk) -> None:
    """C: on the first line of the value as on the others."""
    id = desk.enqueue("shop.welcome", "user_id=1")
    page = in_terminal(desk.folder, 80, "jobs", "show", id, "--url", desk.url)[1]
    assert re.search(r"\x1b\[2mqueue +\x1b\[0m[a-z]", page)
    assert re.search(r"\x1b\[2mstate +\x1b\[0m\x1b\[34mready", page)


def shown_help(desk: Desk) -> str:
    """The output of `taskharbor --help`."""
    return in_terminal(desk.folder, 80, "--help")[1]


def test_texts_are_cut_by_cells() -> None:
    """C: a wide character is never halved; the end is kept where that says more."""
    assert shortened("shop.welcome", 12) == "shop.welcome"
    assert shortened("shop.welcome", 8) == "shop.we…"
    assert shortened("shop.welcome", 8, keep_end=True) == "…welcome"
    assert shortened("東京都千代田区", 6) == "東京…"
    assert shortened("no answer from", 4) == "no…"


def test_stored_text_is_not_markup(busy: Desk) -> None:
    """X5: brackets stay what they are."""
    assert "[red]boom[/red]" in unpainted(shown(busy, 140, "dlq", "ls"))
    page = unpainted(shown(busy, 140, "dlq", "show", ID))
    assert "ValueError: [red]boom[/red]" in page
    assert '"text": "[red]boom[/red]"' in page


def test_log_lines_for_people_and_for_files() -> None:
    """C: in a terminal a coloured level, elsewhere fixed fields and one line."""
    record = logging.LogRecord("shop", logging.WARNING, __file__, 1, "sunk\n\x1b[0m by %s", ("rain",), None)
    JobFilter().filter(record)
    assert ForFiles().format(record).endswith(" WARNING shop job=- task=- attempt=- sunk\\n\\x1b[0m by rain")
    assert ForPeople(colour=False).format(record).endswith(" WARNING sunk\n\\x1b[0m by rain")
    assert "\x1b[33mWARNING" in ForPeople(colour=True).format(record)
    record.job_id, record.task, record.attempt = "one", "shop.welcome", 2
    assert ForPeople(colour=False).format(record).endswith("by rain  [shop.welcome one attempt 2]")


def test_lines_of_a_message_with_a_command_stay_apart() -> None:
    """C: such as those of a traceback."""
    text = "first line\n    second line\nthird: see `taskharbor jobs show 1234`"
    assert wrapped(text, 20) == "first line\n    second line\nthird: see\n`taskharbor jobs show 1234`"
