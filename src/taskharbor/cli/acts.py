"""Commands that act on jobs, given by ids or by filter words: cancel, delete, replay, dead-letter.

With words, they first show how many jobs match, and ask; `delete` always asks. `harbor.admin` acts, in batches.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import click

from taskharbor.admin.base import BULK_LIMIT
from taskharbor.admin.bulk import MOST, Act, Bulk, Progress
from taskharbor.cli import lists, output
from taskharbor.cli.exits import BAD, complain
from taskharbor.cli.ids import meant, search_hint, some, whole_ids
from taskharbor.cli.target import ask, here, target_options
from taskharbor.cli.types import json_option, limit_option
from taskharbor.cli.words import WORDS_HELP, ids_or_words
from taskharbor.core.filter import KNOWN_WORDS, Filter
from taskharbor.core.job import JobRecord
from taskharbor.errors import JobNotFound
from taskharbor.harbor import Harbor

C = TypeVar("C", bound=Callable[..., Any])
PREVIEW = 10
MISSING = "there is no such job: the id is wrong, or its retention has run out"
NOT_DEAD = "it is neither dead nor cancelled; if it is scheduled, `taskharbor jobs run-now {id}` makes it due"
IDS_HELP = (
    "Name jobs by their ids (endings of UUIDs are enough), or give filter words for all that match. Here a word needs "
    "a colon or a star: task:mail.send.\n"
)


class Asked(NamedTuple):
    """The options given on the command line."""

    given: Sequence[str]
    limit: int
    yes: bool
    dry_run: bool
    as_json: bool


class Wording(NamedTuple):
    """The texts of an act: one for each answer, good ones first; and whether it asks about named jobs too."""

    act: Act
    verb: str
    good: dict[str, str]
    bad: dict[str, str]
    always_asks: bool = False


CANCEL = Wording(
    "cancel",
    "cancel",
    {"cancelled": "Cancelled {}.", "requested": "Asked {} to stop: claimed by a worker."},
    {"finished": "it has ended already", "missing": MISSING},
)
DELETE = Wording(
    "delete",
    "delete",
    {"deleted": "Deleted {}."},
    {
        "live": "it has not ended: cancel it first",
        "needed": "others in its workflow wait for it: cancel the workflow first (`taskharbor workflows cancel`)",
        "missing": MISSING,
    },
    always_asks=True,
)
DEAD_LETTER = Wording(
    "dead_letter",
    "dead-letter",
    {"dead": "Dead-lettered {}.", "requested": "Asked {} to stop and be dead-lettered: claimed by a worker."},
    {"finished": "it has ended already", "missing": MISSING},
)
REPLAY = Wording(
    "replay",
    "replay",
    {"replayed": "Replayed {}.", "replayed_without_key": "Replayed {} without its key: another job holds it."},
    {
        "not_dead": NOT_DEAD,
        "task": "it is a TaskManager's task: put it back with TaskManager.retry, or delete it and submit it again",
        "missing": MISSING,
    },
)


def act_options(command: C) -> C:
    """The options of every act on jobs."""
    for option in (
        target_options,
        json_option,
        limit_option(BULK_LIMIT, MOST),
        click.option("--dry-run", is_flag=True, help="Only show which jobs match."),
        click.option("--yes", "-y", is_flag=True, help="Do not ask."),
        click.argument("given", nargs=-1, metavar="[ID]... | [WORD]..."),
    ):
        command = option(command)
    return command


@click.command("cancel", help=f"Cancel jobs that wait, and ask those that run to stop.\n\n{IDS_HELP}{WORDS_HELP}")
@act_options
def cancel_jobs(**asked: Any) -> None:
    perform(
        CANCEL,
        Asked(**asked),
        lambda harbor: harbor.admin.jobs.acancel_all,
        lambda harbor, ids, progress: harbor.admin.jobs.acancel(ids, progress=progress),
    )


@click.command("delete", help=f"Delete jobs that have ended, for good.\n\n{IDS_HELP}{WORDS_HELP}")
@act_options
def delete_jobs(**asked: Any) -> None:
    perform(
        DELETE,
        Asked(**asked),
        lambda harbor: harbor.admin.jobs.adelete_all,
        lambda harbor, ids, progress: harbor.admin.jobs.adelete(ids, progress=progress),
    )


@click.command("dead-letter", help=f"Move jobs that have not ended to the dead-letter queue.\n\n{IDS_HELP}{WORDS_HELP}")
@act_options
@click.option("--reason", required=True, metavar="TEXT", help="Why; it is kept with the jobs, and groups them.")
def dead_letter_jobs(reason: str, **asked: Any) -> None:
    perform(
        DEAD_LETTER,
        Asked(**asked),
        lambda harbor: partial(harbor.admin.jobs.adead_letter_all, reason=reason),
        lambda harbor, ids, progress: harbor.admin.jobs.adead_letter(ids, reason=reason, progress=progress),
    )


@click.command("replay", help=f"Run dead and cancelled jobs again.\n\n{IDS_HELP}{WORDS_HELP}")
@act_options
def replay_jobs(**asked: Any) -> None:
    perform(
        REPLAY,
        Asked(**asked),
        lambda harbor: harbor.admin.jobs.areplay_all,
        lambda harbor, ids, progress: harbor.admin.jobs.areplay(ids, progress=progress),
    )


ToMatching = Callable[[Harbor], Callable[..., Awaitable[Bulk]]]
ToNamed = Callable[[Harbor, Sequence[str], Progress | None], Awaitable[Sequence[str]]]


def perform(wording: Wording, asked: Asked, to_matching: ToMatching, to_named: ToNamed) -> None:
    """Find the jobs, preview and ask, act, and report the results."""
    ids, words = ids_or_words(asked.given, wording.verb)
    harbor, where = here().store(), Filter()
    if words:
        found, where = ask(harbor, lambda harbor: _matching(harbor, words, asked.limit, to_matching))
    else:
        found = ask(harbor, lambda harbor: whole_ids(harbor, ids))
    if asked.dry_run:
        answers = _previewed(harbor, wording, found)
    else:
        if found and not asked.yes and (words or wording.always_asks):
            _confirm(wording, found, asked, matching=bool(words))
        answers = _done_to_matching(harbor, found, where, to_matching) if words else _done(harbor, found, to_named)
    if words:
        say_limit(len(found), asked.limit, ", or raise --limit")
    if asked.dry_run and not asked.as_json:
        _show_some(harbor, [id for id, answer in answers.items() if answer == "would"])
    report(wording, answers, asked, by_name=not words)


def _previewed(harbor: Harbor, wording: Wording, ids: Sequence[str]) -> dict[str, str]:
    answers = ask(harbor, lambda harbor: harbor.admin.jobs.apreview(wording.act, ids)) if ids else []
    return dict(zip(ids, answers, strict=True))


def _done(harbor: Harbor, ids: Sequence[str], do: ToNamed) -> dict[str, str]:
    answers: Sequence[str] = ask(harbor, lambda harbor: do(harbor, ids, _progress(len(ids)))) if ids else ()
    return dict(zip(ids, answers, strict=True))


def _done_to_matching(harbor: Harbor, ids: Sequence[str], where: Filter, do: ToMatching) -> dict[str, str]:
    """The jobs that were found before the question and still match."""
    if not ids:
        return {}
    done = ask(harbor, lambda harbor: do(harbor)(where, among=ids, progress=_progress(len(ids))))
    answers = {id: answer for answer, found in done.answers.items() for id in found}
    return {id: answers[id] for id in ids}


async def _matching(harbor: Harbor, words: Sequence[str], limit: int, look: ToMatching) -> tuple[list[str], Filter]:
    where = await meant(harbor, words)
    return (await look(harbor)(where, limit=limit, dry_run=True)).matched, where


def _confirm(wording: Wording, ids: Sequence[str], asked: Asked, *, matching: bool) -> None:
    number = len(ids)
    jobs = output.count(number, "job")
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"{jobs} {'match' if matching else 'named'}: add --yes to {wording.verb} them, --dry-run to see them"
        )
    at_least = "at least " if matching and number == asked.limit else ""
    question = f"{at_least}{jobs} {'matches' if number == 1 else 'match'}; {wording.verb} {_them(number)}?"
    named = f"{wording.verb.capitalize()} {ids[0] if number == 1 else jobs + ': ' + some(ids)}?"
    click.confirm(question if matching else named, abort=True, err=True)


def _them(number: int) -> str:
    return "it" if number == 1 else "them"


def _progress(total: int) -> Progress | None:
    """Shows progress in a terminal, if the act takes more than a moment."""
    if total <= BULK_LIMIT // 10 or not sys.stderr.isatty():
        return None

    def tell(done: int) -> None:
        click.echo(f"\r{done:,} of {total:,} jobs", nl=done >= total, err=True)

    return tell


def report(wording: Wording, answers: dict[str, str], asked: Asked, *, by_name: bool) -> None:
    """Report the results. A named job that was not changed is an error; a matching one may have moved on."""
    if asked.as_json:
        output.print_json([{"id": id, "answer": answer} for id, answer in answers.items()])
    elif by_name:
        _say_each(wording, answers)
    else:
        _say_numbers(wording, answers, asked.dry_run)
    refused = {id: answer for id, answer in answers.items() if answer in wording.bad}
    if by_name or "needed" in refused.values():
        for id, answer in list(refused.items())[:PREVIEW]:
            hint = _hint(id) if answer == "missing" else ""
            complain(f"{id} was not {_past(wording)}: {wording.bad[answer].format(id=id)}{hint}")
        if len(refused) > PREVIEW:
            complain(f"and {output.count(len(refused) - PREVIEW, 'more job')}")
        if refused:
            click.get_current_context().exit(BAD)


def _hint(missing: str) -> str:
    if ":" in missing:
        return f"; filter words are {KNOWN_WORDS}"
    return f"; the jobs of a task are task:{missing}" if "." in missing else search_hint(missing)


def _past(wording: Wording) -> str:
    return next(iter(wording.good.values())).partition(" ")[0].lower()


def _say_each(wording: Wording, answers: dict[str, str]) -> None:
    for id, answer in answers.items():
        if answer == "would":
            output.say(f"Would {wording.verb} {id}.")
        elif answer in wording.good:
            output.say(wording.good[answer].format(id))


def _say_numbers(wording: Wording, answers: dict[str, str], dry_run: bool) -> None:
    if not answers:
        output.say("No jobs match.", "dim")
        return
    counts = {answer: list(answers.values()).count(answer) for answer in dict.fromkeys(answers.values())}
    if dry_run:
        output.say(f"Would {wording.verb} {output.count(counts.get('would', 0), 'job')}.")
    for answer, text in wording.good.items():
        if counts.get(answer):
            output.say(text.format(output.count(counts[answer], "job")))
    say_changed(sum(number for answer, number in counts.items() if answer not in (*wording.good, "would", "needed")))


def say_changed(number: int) -> None:
    """The number of jobs that matched before the question but no longer right before the act."""
    if number:
        was = "was" if number == 1 else "were"
        output.say(f"{output.count(number, 'job')} had changed in the meantime and {was} left alone.")


def first_jobs(harbor: Harbor, ids: Sequence[str], most: int) -> list[JobRecord]:
    """The first of these jobs that still exist."""

    async def look(harbor: Harbor) -> list[JobRecord]:
        found: list[JobRecord] = []
        for id in ids[:most]:
            with suppress(JobNotFound):
                found.append(await harbor.admin.jobs.aget(id))
        return found

    return ask(harbor, look) if ids else []


def say_limit(found: int, limit: int, more: str = "") -> None:
    """Say so if a limit has cut the jobs that match."""
    if found == limit:
        click.echo(f"That is the limit of {limit:,}; more may match: run it again{more}.", err=True)


def _show_some(harbor: Harbor, ids: Sequence[str]) -> None:
    if some := first_jobs(harbor, ids, PREVIEW):
        lists.job_table(some, harbor.admin.now())
    if len(ids) > PREVIEW:
        click.echo(f"and {output.count(len(ids) - PREVIEW, 'more job')}", err=True)
