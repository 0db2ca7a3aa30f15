"""Lists of jobs and of dead groups as tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

import click

from taskharbor.cli import describe, output
from taskharbor.cli.ids import place_after, whole_id, whole_words
from taskharbor.cli.output import Cell, one_line
from taskharbor.cli.tables import Column, Row, short_ids, shortened, table
from taskharbor.cli.target import ask
from taskharbor.cli.words import is_word
from taskharbor.core.decide import by_hand
from taskharbor.core.durations import ago
from taskharbor.core.job import JobRecord
from taskharbor.core.reserved import TASKS
from taskharbor.core.run_times import overrun_since
from taskharbor.core.shown import due_since, shown
from taskharbor.core.states import Shown, State
from taskharbor.driver import DeadGroup
from taskharbor.errors import JobNotFound
from taskharbor.harbor import Harbor

LONGEST = 300  # width of an error in a table; JSON has all of it
OVERRUN = Cell("overrun", "bold red")  # a running job past its timeout
_MODULE = re.compile(r"\A(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_]\w*: )")
COLUMNS = (
    Column("ID"),
    Column("TASK", least=14, drop=5, keep_end=True),
    Column("QUEUE", least=8, drop=2),
    Column("STATE"),
    Column("FAILURES", right=True, drop=1),
    Column("WHEN", drop=3),
    Column("ERROR", least=20, drop=4, weight=2),
)
GROUP_COLUMNS = (
    Column("GROUP"),
    Column("JOBS", right=True),
    Column("FIRST", drop=1),
    Column("LAST", drop=2),
    Column("TASK", least=12, keep_end=True),
    Column("ERROR", least=14, drop=3, weight=2),
)


def jobs(
    harbor: Harbor,
    words: Sequence[str],
    nothing: str,
    *,
    limit: int,
    after: str | None,
    as_json: bool,
    wide: bool,
    dead: bool = False,
) -> None:
    """The first `limit` jobs that match, and how to see the rest. An id in place of a word lists its job."""
    part = harbor.admin.dlq if dead else harbor.admin.jobs

    async def look(harbor: Harbor) -> list[JobRecord]:
        where, behind = await whole_words(harbor, words), await place_after(harbor, after)
        found = await part.alist(where, limit=limit + 1, after=behind)
        if not found and len(words) == 1 and not is_word(words[0]):
            with suppress(JobNotFound):
                return [await part.aget(await whole_id(harbor, words[0]))]
        return found

    found = ask(harbor, look)
    now = harbor.admin.now()
    if as_json:
        output.print_json([describe.brief(job, now) for job in found[:limit]])
        return
    if not found:
        output.say(nothing, "dim")
        return
    job_table(found[:limit], now, dead=dead, wide=wide)
    if len(found) > limit:
        click.echo(f"The first {limit}. More: --after {found[limit - 1].id}, or --limit.", err=True)


def job_table(found: Sequence[JobRecord], now: datetime, *, dead: bool = False, wide: bool = False) -> None:
    """The jobs as a table; one of dead jobs has no column for the state."""
    columns = [column for column in COLUMNS if not dead or column.title != "STATE"]
    ids = short_ids(job.id for job in found)
    rows = [{"ID": id, **_row(job, now)} for id, job in zip(ids, found, strict=True)]
    table(columns, [[row[column.title] for column in columns] for row in rows], wide=wide)


def _row(job: JobRecord, now: datetime) -> dict[str, str | Cell]:
    return {
        "TASK": job.type,
        "QUEUE": job.queue,
        "STATE": OVERRUN if overrun_since(job, now) else output.state_cell(shown(job, now)),
        "FAILURES": f"{job.attempts}" if job.queue == TASKS else f"{job.attempts}/{job.max_attempts or '∞'}",
        "WHEN": _when(job, now),
        "ERROR": error_cell(_error(job)),
    }


def _error(job: JobRecord) -> str | None:
    if (reason := by_hand(job)) is not None:
        return f"by hand: {reason}"
    return job.last_error if job.state is not State.DONE else None


def error_cell(error: str | None) -> Cell:
    """An error; if short, without the module of its type."""
    text = shortened(one_line(error), LONGEST)
    return Cell(text, "red", _MODULE.sub("", text, count=1))


def _when(job: JobRecord, now: datetime) -> str:
    match shown(job, now):
        case Shown.SCHEDULED:
            return ago(job.due_at, now)
        case Shown.CLAIMED | Shown.RUNNING:
            return ago(job.claimed_at or job.created_at, now)
        case _:  # a lapsed one since its lease ran out
            return ago(job.completed_at or due_since(job, now) or job.created_at, now)


def group_table(found: Sequence[DeadGroup], now: datetime, *, wide: bool = False) -> None:
    """Groups of dead jobs as a table."""
    rows: list[Row] = [
        [
            Cell(group.fingerprint, "bold"),
            f"{group.count:,}",
            ago(group.first_at, now),
            ago(group.last_at, now),
            group.task,
            error_cell(group.error),
        ]
        for group in found
    ]
    table(GROUP_COLUMNS, rows, wide=wide)
