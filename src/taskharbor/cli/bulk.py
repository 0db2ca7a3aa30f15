"""Acts on jobs: the preview, the question, the progress and the closing sentence, alike for `jobs` and `dlq`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from shlex import quote
from typing import Any, NamedTuple, TypeVar

import click

from taskharbor.admin.admin import Admin
from taskharbor.admin.base import BULK_LIMIT
from taskharbor.admin.bulk import MOST, WOULD, OnProgress
from taskharbor.admin.endings import NAMED, SEARCHED
from taskharbor.cli import job_lists, output
from taskharbor.cli.exits import BAD, complain
from taskharbor.cli.output import confirm
from taskharbor.cli.target import ask
from taskharbor.cli.types import answer_options, limit_option
from taskharbor.cli.words import is_word
from taskharbor.core.durations import count
from taskharbor.core.filter import KNOWN_WORDS
from taskharbor.core.job import JobRecord
from taskharbor.core.short_ids import ending
from taskharbor.core.states import State
from taskharbor.errors import HarborError, JobNotFound

C = TypeVar("C", bound=Callable[..., Any])
PREVIEW = 10
MISSING = "there is no such job: the id is wrong, or its retention has run out"
Answers = dict[str, str]


class ActOptions(NamedTuple):
    """The options given on the command line; `most` is the largest limit."""

    given: Sequence[str]
    limit: int = BULK_LIMIT
    yes: bool = False
    dry_run: bool = False
    as_json: bool = False
    most: int = MOST


class Wording(NamedTuple):
    """The texts of an act: one for each answer, good ones first; and whether it asks about named jobs too."""

    verb: str
    past: str
    good: dict[str, str]
    bad: dict[str, str]
    always_asks: bool = False


def act_options(most: int) -> Callable[[C], C]:
    """The options of every act on jobs; `most` is the largest limit."""

    def add(command: C) -> C:
        yes = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
        dry_run = click.option("--dry-run", is_flag=True, help="Only show which jobs match.")
        return dry_run(yes(limit_option(BULK_LIMIT, most)(answer_options(command))))

    return add


DELETE = Wording(
    "delete",
    "deleted",
    {"deleted": "Deleted {}."},
    {
        "live": "it has not ended: cancel it first",
        "needed": "others in its workflow wait for it: cancel the workflow first (`taskharbor workflows cancel`)",
        "missing": MISSING,
        "changed": "it had changed in the meantime",
    },
    always_asks=True,
)
REPLAY = Wording(
    "replay",
    "replayed",
    {"replayed": "Replayed {}.", "replayed_without_key": "Replayed {} without its key: another job holds it."},
    {
        "not_dead": "it is neither dead nor cancelled; if it is scheduled, `taskharbor jobs run-now {id}` makes it due",
        "task": "it is a TaskManager's task: put it back with TaskManager.retry, or delete it and submit it again",
        "missing": MISSING,
    },
)


def carry_out(
    wording: Wording,
    asked: ActOptions,
    ids: Sequence[str],
    act: Callable[[OnProgress | None], Answers],
    *,
    matching: bool,
    preview: Callable[[], Answers] | None = None,
    by_answer: Mapping[str, str] | None = None,
) -> None:
    """Preview, or ask and act on jobs that match or were named; then report the answers.

    `by_answer`: the lists of ids in the JSON, and how their answers begin; without it, there is an answer for each id.
    """
    if asked.dry_run:
        answers = dict.fromkeys(ids, WOULD) if preview is None else preview()
        if not asked.as_json:
            _show_some([id for id, answer in answers.items() if answer == WOULD])
    else:
        if not asked.yes and (matching or wording.always_asks):
            _ask_first(wording, asked, ids, matching, preview)
        answers = act(_progress(len(ids))) if ids else {}
    if matching and len(ids) == asked.limit:
        more = ", or raise --limit" if asked.limit < asked.most else ""
        click.echo(f"That is the limit of {asked.limit:,}; more may match: run it again{more}.", err=True)
    value = None
    if by_answer is not None:
        found = {name: [id for id in answers if answers[id].startswith(start)] for name, start in by_answer.items()}
        value = {"matched": len(ids), **found, "dry_run": asked.dry_run}
        if asked.dry_run:
            value["ids"] = list(ids)
    report(wording, answers, asked, by_name=not matching, value=value)


def _ask_first(
    wording: Wording, asked: ActOptions, ids: Sequence[str], matching: bool, preview: Callable[[], Answers] | None
) -> None:
    """Ask about the jobs that the act would change. Named ones that it would refuse need no question."""
    if not matching and preview is not None:
        ids = [id for id, answer in preview().items() if answer == WOULD]
    if ids:
        would = f"{count(len(ids), 'job')} would be {wording.past}"
        confirm(would, lambda: _question(wording, ids, asked, matching), also=", --dry-run to see them")


def _question(wording: Wording, ids: Sequence[str], asked: ActOptions, matching: bool) -> str:
    tasks = sorted({job.type for job in _first(ids)})
    names = ", ".join(tasks[:3]) + (" …" if len(tasks) > 3 or len(ids) > PREVIEW else "")
    if not matching and len(ids) == 1:
        return f"{wording.verb.capitalize()} {ids[0]} ({names})?"
    at_least = "at least " if matching and len(ids) == asked.limit else ""
    which = "" if matching else f": {', '.join(ids[:NAMED])}{' …' if len(ids) > NAMED else ''}"
    return f"{wording.verb.capitalize()} {at_least}{count(len(ids), 'job')} ({names}){which}?"


def _say_paused(ids: Sequence[str]) -> None:
    """Say so if replayed jobs will wait, by the first of them; nothing if the store cannot tell now."""
    with suppress(HarborError):
        queues = {job.queue for job in _first(ids)}
        for found in ask(lambda admin: admin.queues.alist()) if queues else ():
            if found.paused and found.queue in queues:
                resume = f"taskharbor queues resume {quote(found.queue)}"
                click.echo(f"Queue {found.queue} is paused: its jobs wait for `{resume}`.", err=True)


def _progress(total: int) -> OnProgress | None:
    """Shows progress in a terminal, if the act takes more than a moment."""
    if total <= BULK_LIMIT // 10 or not sys.stderr.isatty():
        return None

    def tell(done: int) -> None:
        click.echo(f"\r{done:,} of {total:,} jobs", nl=done >= total, err=True)

    return tell


def report(wording: Wording, answers: Answers, asked: ActOptions, *, by_name: bool, value: Any = None) -> None:
    """Report the answers. A named job that was not changed is an error; a matching one may have moved on."""
    if asked.as_json:
        plain = [{"id": id, "answer": answer} for id, answer in answers.items()]
        output.print_json(plain if value is None else value)
    elif by_name:
        _say_each(wording, answers)
    else:
        _say_numbers(wording, answers, asked.dry_run)
    refused = {id: answer for id, answer in answers.items() if answer in wording.bad}
    if not by_name and "needed" not in refused.values():
        refused = {}
    for id, answer in list(refused.items())[:PREVIEW]:
        why = _why_missing(id) if answer == "missing" else wording.bad[answer].format(id=id)
        complain(f"{id} was not {wording.past}: {why}")
    if len(refused) > PREVIEW:
        complain(f"and {count(len(refused) - PREVIEW, 'more job')}")
    if wording is REPLAY and not asked.as_json:
        _say_paused([id for id, answer in answers.items() if answer in wording.good])
    if refused:
        click.get_current_context().exit(BAD)


def _why_missing(id: str) -> str:
    if is_word(id):
        return f"{id} is a filter word, not an id; for all jobs that match, add --all"
    if ":" in id:
        return f"{MISSING}; filter words are {KNOWN_WORDS}"
    if "." in id:
        return f"{MISSING}; the jobs of a task are task:{id}"
    if ending(id) is None:
        is_name = not any(character.isdigit() for character in id)
        return f"{MISSING}; the jobs of a queue are queue:{id}" if is_name else MISSING
    return f"{MISSING}; endings are searched among the newest {SEARCHED:,}: write the whole id to look further back"


def _say_each(wording: Wording, answers: Answers) -> None:
    for id, answer in answers.items():
        if answer == WOULD:
            output.say(f"Would {wording.verb} {id}.")
        elif answer in wording.good:
            output.say(wording.good[answer].format(id))


def _say_numbers(wording: Wording, answers: Answers, dry_run: bool) -> None:
    if not answers:
        output.say("No jobs match.", "dim")
        return
    counts = Counter(answers.values())
    if dry_run:
        output.say(f"Would {wording.verb} {count(counts[WOULD], 'job')}.")
    first, *others = wording.good
    for answer, text in wording.good.items():
        if counts[answer] or (answer == first and not dry_run and not any(counts[other] for other in others)):
            output.say(text.format(count(counts[answer], "job")))
    changed = counts.total() - sum(counts[answer] for answer in (*wording.good, WOULD, "needed"))
    if changed:
        was = "was" if changed == 1 else "were"
        output.say(f"{count(changed, 'job')} had changed in the meantime and {was} left alone.")


def _first(ids: Sequence[str]) -> list[JobRecord]:
    """The first of these jobs that still exist."""

    async def look(admin: Admin) -> list[JobRecord]:
        found: list[JobRecord] = []
        for id in ids[:PREVIEW]:
            with suppress(JobNotFound):
                found.append(await admin.jobs.aget(id))
        return found

    return ask(look) if ids else []


def _show_some(ids: Sequence[str]) -> None:
    if some := _first(ids):
        job_lists.job_table(some, dead=all(job.state is State.DLQ for job in some))
    if len(ids) > PREVIEW:
        click.echo(f"and {count(len(ids) - PREVIEW, 'more job')}", err=True)
