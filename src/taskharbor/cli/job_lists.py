"""Lists of jobs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from operator import attrgetter

from taskharbor.admin.admin import Admin
from taskharbor.cli import describe, output
from taskharbor.cli.ids import whole_id, whole_words
from taskharbor.cli.output import Cell, one_line
from taskharbor.cli.tables import Column, listing, shortened, table
from taskharbor.cli.target import ask, here
from taskharbor.cli.words import is_word
from taskharbor.core.decide import MAX_UNKNOWN_PUT_BACKS, by_hand
from taskharbor.core.durations import ago
from taskharbor.core.job import JobRecord
from taskharbor.core.reserved import TASKS
from taskharbor.core.shown import due_since, overrun_since, shown
from taskharbor.core.states import Shown, State
from taskharbor.errors import JobNotFound

LONGEST = 300  # width of an error in a table; JSON has all of it
OVERRUN = Cell("overrun", "bold red")  # a running job past its timeout
_MODULE = re.compile(r"\A(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_]\w*: )")


def jobs(
    words: Sequence[str], nothing: str, *, limit: int, after: str | None, as_json: bool, wide: bool, dead: bool = False
) -> None:
    """The first `limit` jobs that match, and how to see the rest. An id in place of a word lists its job."""

    async def look(admin: Admin) -> list[JobRecord]:
        part = admin.dlq if dead else admin.jobs
        where = await whole_words(admin, words)
        behind = None if after is None else (await admin.jobs.aget(await whole_id(admin, after))).id
        found = await part.alist(where, limit=limit + 1, after=behind)
        if not found and len(words) == 1 and not is_word(words[0]):
            with suppress(JobNotFound):
                return [await part.aget(await whole_id(admin, words[0]))]
        return found

    found, now = ask(look), here().now()
    brief, after_id = partial(describe.brief, now=now), attrgetter("id")
    listing(found, _columns(now, dead), nothing, brief, after=after_id, limit=limit, as_json=as_json, wide=wide)


def job_table(found: Sequence[JobRecord], *, dead: bool) -> None:
    """The jobs as a table; one of dead jobs has no column for the state."""
    table(_columns(here().now(), dead), found)


def _columns(now: datetime, dead: bool) -> list[Column[JobRecord]]:
    def state(job: JobRecord) -> Cell:
        return OVERRUN if overrun_since(job, now) else output.state_cell(shown(job, now))

    return [
        Column("ID", lambda job: job.id, ids=True),
        Column("TASK", lambda job: job.type, least=14, drop=5, keep_end=True),
        Column("QUEUE", lambda job: job.queue, least=8, drop=2),
        *([] if dead else [Column("STATE", state)]),
        Column("FAILURES", _failures, right=True, drop=1),
        Column("WHEN", lambda job: _when(job, now), drop=3),
        Column("ERROR", lambda job: error_cell(_error(job)), least=20, drop=4, weight=2),
    ]


def _failures(job: JobRecord) -> str:
    return f"{job.attempts}" if job.queue == TASKS else f"{job.attempts}/{job.max_attempts or '∞'}"


def _error(job: JobRecord) -> str | None:
    if (reason := by_hand(job)) is not None:
        return f"by hand: {reason}"
    if job.state in (State.READY, State.INFLIGHT):
        if job.unknown_put_backs:
            return f"no worker knows the task: put back {job.unknown_put_backs}/{MAX_UNKNOWN_PUT_BACKS}"
        if job.crashes:
            return f"crashes in a row: {job.crashes}/{job.max_crashes or '∞'}"
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
