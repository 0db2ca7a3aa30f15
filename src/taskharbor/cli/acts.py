"""Commands that act on jobs, given by ids or by filter words: cancel, delete, replay, dead-letter; and run-now.

With words, they first show how many jobs match, and ask; `delete` always asks. `harbor.admin` acts, in batches.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, cast

import click

from taskharbor.admin.admin import Admin
from taskharbor.admin.bulk import APPLIES, MOST, Act, Bulk, OnProgress
from taskharbor.admin.jobs import Jobs
from taskharbor.cli.bulk import DELETE, MISSING, REPLAY, ActOptions, Answers, Wording, act_options, carry_out, report
from taskharbor.cli.ids import meant, whole_ids
from taskharbor.cli.target import ask
from taskharbor.cli.types import answer_options
from taskharbor.cli.words import WORDS_HELP, ids_or_words
from taskharbor.core.filter import Filter
from taskharbor.core.reserved import TASKS
from taskharbor.core.states import Shown
from taskharbor.errors import JobNotFound

IDS_HELP = (
    "Name jobs by their ids (endings of UUIDs are enough), or give filter words for all that match. Here a word needs "
    "a colon or a star: task:mail.send.\n"
)
CANCEL = Wording(
    "cancel",
    "cancelled",
    {"cancelled": "Cancelled {}.", "requested": "Asked {} to stop: claimed by a worker."},
    {"finished": "it has ended already", "missing": MISSING},
)
DEAD_LETTER = Wording(
    "dead-letter",
    "dead-lettered",
    {"dead": "Dead-lettered {}.", "requested": "Asked {} to stop and be dead-lettered: claimed by a worker."},
    {"finished": "it has ended already", "missing": MISSING},
)
RUN_NOW = Wording(
    "make due",
    "made due",
    {"due": "{} is due now.", "already_due": "{0} was due already: `taskharbor jobs show {0}` says why it waits."},
    {
        "running": "a worker has claimed it",
        "waiting": "it waits for other jobs of its workflow",
        "ended": "it has ended; `taskharbor jobs replay {id}` runs a dead or cancelled job again",
        "task": "it is a TaskManager's task: it waits until an agent claims it",
        "missing": MISSING,
    },
)
NOT_SCHEDULED = {Shown.READY: "already_due", Shown.WAITING: "waiting"} | dict.fromkeys(APPLIES["delete"], "ended")
ToNamed = Callable[..., Awaitable[Sequence[str]]]
ToMatching = Callable[..., Awaitable[Bulk]]


def act_command(name: str, summary: str) -> Callable[[Callable[..., None]], click.Command]:
    """A command that acts on jobs."""

    def command(function: Callable[..., None]) -> click.Command:
        given = click.argument("given", nargs=-1, metavar="[ID]... | [WORD]...")
        return click.command(name, help=f"{summary}\n\n{IDS_HELP}{WORDS_HELP}")(given(act_options(MOST)(function)))

    return command


@act_command("cancel", "Cancel jobs that wait, and ask those that run to stop.")
def cancel_jobs(**asked: Any) -> None:
    perform(CANCEL, ActOptions(**asked), Jobs.acancel, Jobs.acancel_all)


@act_command("delete", "Delete jobs that have ended, for good.")
def delete_jobs(**asked: Any) -> None:
    perform(DELETE, ActOptions(**asked), Jobs.adelete, Jobs.adelete_all)


@act_command("dead-letter", "Move jobs that have not ended to the dead-letter queue.")
@click.option("--reason", required=True, metavar="TEXT", help="Why; it is kept with the jobs, and groups them.")
def dead_letter_jobs(reason: str, **asked: Any) -> None:
    named, matching = partial(Jobs.adead_letter, reason=reason), partial(Jobs.adead_letter_all, reason=reason)
    perform(DEAD_LETTER, ActOptions(**asked), named, matching)


@act_command("replay", "Run dead and cancelled jobs again.")
def replay_jobs(**asked: Any) -> None:
    perform(REPLAY, ActOptions(**asked), Jobs.areplay, Jobs.areplay_all)


def perform(wording: Wording, asked: ActOptions, to_named: ToNamed, to_matching: ToMatching) -> None:
    """Find the jobs, and act on them."""
    ids, words = ids_or_words(asked.given, wording.verb)

    async def look(admin: Admin) -> tuple[list[str], Filter]:
        if not words:
            return await whole_ids(admin, ids), Filter()
        where = await meant(admin, words)
        return (await to_matching(admin.jobs, where, limit=asked.limit, dry_run=True)).matched, where

    found, where = ask(look)

    def previewed() -> Answers:
        act = cast("Act", wording.verb.replace("-", "_"))
        return dict(zip(found, ask(lambda admin: admin.jobs.apreview(act, found)), strict=True))

    def act(progress: OnProgress | None) -> Answers:
        if not words:
            return dict(zip(found, ask(lambda admin: to_named(admin.jobs, found, progress=progress)), strict=True))
        done = ask(lambda admin: to_matching(admin.jobs, where, among=found, progress=progress))
        answers = {id: answer for answer, ids in done.answers.items() for id in ids}
        return {id: answers[id] for id in found}

    carry_out(wording, asked, found, act, matching=bool(words), preview=previewed)


@click.command("run-now")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@answer_options
def run_now(ids: tuple[str, ...], as_json: bool) -> None:
    """Make scheduled jobs due now, and retries that wait.

    Name them by their ids (endings are enough). The number of attempts does not change.
    """

    async def act(admin: Admin) -> Answers:
        return {id: await _run_now(admin, id) for id in await whole_ids(admin, ids)}

    report(RUN_NOW, ask(act), ActOptions(ids, as_json=as_json), by_name=True)


async def _run_now(admin: Admin, id: str) -> str:
    try:
        job = await admin.jobs.aget(id)
    except JobNotFound:
        return "missing"
    if job.queue == TASKS:
        return "task"
    state = Shown(admin.jobs.shown(job))
    if state is Shown.SCHEDULED and await admin.jobs.areschedule(id, run_at=admin.now()):
        return "due"
    return NOT_SCHEDULED.get(state, "running")
