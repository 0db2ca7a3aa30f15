"""Acts on jobs: the preview, the question, the progress and the closing sentence, alike for `jobs` and `dlq`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import click

from taskharbor.admin.base import BULK_LIMIT
from taskharbor.admin.bulk import MOST, WOULD, Act, Progress
from taskharbor.cli import lists, output
from taskharbor.cli.exits import BAD, complain
from taskharbor.cli.ids import search_hint, some
from taskharbor.cli.target import ask, target_options
from taskharbor.cli.types import json_option, limit_option
from taskharbor.cli.words import is_word
from taskharbor.core.filter import KNOWN_WORDS
from taskharbor.core.job import JobRecord
from taskharbor.core.states import State
from taskharbor.errors import HarborError, JobNotFound
from taskharbor.harbor import Harbor

C = TypeVar("C", bound=Callable[..., Any])
PREVIEW = 10
MISSING = "there is no such job: the id is wrong, or its retention has run out"
Answers = dict[str, str]


class Asked(NamedTuple):
    """The options given on the command line; `most` is the largest limit."""

    given: Sequence[str]
    limit: int = BULK_LIMIT
    yes: bool = False
    dry_run: bool = False
    as_json: bool = False
    most: int = MOST


class Wording(NamedTuple):
    """The texts of an act: one for each answer, good ones first; and whether it asks about named jobs too."""

    act: Act | None
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
        return dry_run(yes(limit_option(BULK_LIMIT, most)(json_option(target_options(command)))))

    return add


DELETE = Wording(
    "delete",
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
    asked: Asked,
    harbor: Harbor,
    ids: Sequence[str],
    act: Callable[[Progress | None], Answers],
    *,
    matching: bool,
    preview: Callable[[], Answers] | None = None,
    as_json: Callable[[Answers], Any] | None = None,
) -> None:
    """Preview, or ask and act on jobs that match or were named; then report the answers."""
    if asked.dry_run:
        answers = dict.fromkeys(ids, WOULD) if preview is None else preview()
        if not asked.as_json:
            _show_some(harbor, [id for id, answer in answers.items() if answer == WOULD])
    else:
        if ids and not asked.yes and (matching or wording.always_asks):
            confirm(harbor, wording, ids, asked, matching=matching)
        answers = act(_progress(len(ids))) if ids else {}
    if matching and len(ids) == asked.limit:
        more = ", or raise --limit" if asked.limit < asked.most else ""
        click.echo(f"That is the limit of {asked.limit:,}; more may match: run it again{more}.", err=True)
    try:
        report(wording, answers, asked, by_name=not matching, value=None if as_json is None else as_json(answers))
    finally:  # the report of a named job that was refused ends the command
        if wording is REPLAY and not asked.as_json:
            _say_paused(harbor, [id for id, answer in answers.items() if answer in wording.good])


def confirm(harbor: Harbor, wording: Wording, ids: Sequence[str], asked: Asked, *, matching: bool) -> None:
    """Ask in a terminal; elsewhere, refuse to act without --yes."""
    jobs = output.count(len(ids), "job")
    if not sys.stdin.isatty():
        raise click.UsageError(f"{jobs} would be {wording.past}: add --yes to do it, --dry-run to see them")
    tasks = sorted({job.type for job in _first(harbor, ids)})
    names = ", ".join(tasks[:3]) + (" …" if len(tasks) > 3 or len(ids) > PREVIEW else "")
    at_least = "at least " if matching and len(ids) == asked.limit else ""
    which = "" if matching else f": {some(ids)}"
    what = f"{ids[0]} ({names})" if not matching and len(ids) == 1 else f"{at_least}{jobs} ({names}){which}"
    click.confirm(f"{wording.verb.capitalize()} {what}?", abort=True, err=True)


def _say_paused(harbor: Harbor, ids: Sequence[str]) -> None:
    """Say so if replayed jobs will wait, by the first of them; nothing if the store cannot tell now."""
    if not ids:
        return
    with suppress(HarborError):
        paused = {counts.queue for counts in ask(harbor, lambda harbor: harbor.admin.queues.alist()) if counts.paused}
        for queue in sorted(paused & {job.queue for job in _first(harbor, ids)}):
            click.echo(f"Queue {queue} is paused: its jobs wait for `taskharbor queues resume {queue}`.", err=True)


def _progress(total: int) -> Progress | None:
    """Shows progress in a terminal, if the act takes more than a moment."""
    if total <= BULK_LIMIT // 10 or not sys.stderr.isatty():
        return None

    def tell(done: int) -> None:
        click.echo(f"\r{done:,} of {total:,} jobs", nl=done >= total, err=True)

    return tell


def report(wording: Wording, answers: Answers, asked: Asked, *, by_name: bool, value: Any = None) -> None:
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
        return
    for id, answer in list(refused.items())[:PREVIEW]:
        why = _why_missing(id) if answer == "missing" else wording.bad[answer].format(id=id)
        complain(f"{id} was not {wording.past}: {why}")
    if len(refused) > PREVIEW:
        complain(f"and {output.count(len(refused) - PREVIEW, 'more job')}")
    if refused:
        click.get_current_context().exit(BAD)


def _why_missing(id: str) -> str:
    if is_word(id):
        return f"{id} is a filter word, not an id; for all jobs that match, add --all"
    if ":" in id:
        return f"{MISSING}; filter words are {KNOWN_WORDS}"
    return MISSING + (f"; the jobs of a task are task:{id}" if "." in id else search_hint(id))


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
    counts = {answer: list(answers.values()).count(answer) for answer in dict.fromkeys(answers.values())}
    if dry_run:
        output.say(f"Would {wording.verb} {output.count(counts.get(WOULD, 0), 'job')}.")
    first, *others = wording.good
    for answer, text in wording.good.items():
        if counts.get(answer) or (answer == first and not dry_run and not any(map(counts.get, others))):
            output.say(text.format(output.count(counts.get(answer, 0), "job")))
    changed = sum(number for answer, number in counts.items() if answer not in (*wording.good, WOULD, "needed"))
    if changed:
        was = "was" if changed == 1 else "were"
        output.say(f"{output.count(changed, 'job')} had changed in the meantime and {was} left alone.")


def _first(harbor: Harbor, ids: Sequence[str]) -> list[JobRecord]:
    """The first of these jobs that still exist."""

    async def look(harbor: Harbor) -> list[JobRecord]:
        found: list[JobRecord] = []
        for id in ids[:PREVIEW]:
            with suppress(JobNotFound):
                found.append(await harbor.admin.jobs.aget(id))
        return found

    return ask(harbor, look) if ids else []


def _show_some(harbor: Harbor, ids: Sequence[str]) -> None:
    if some := _first(harbor, ids):
        lists.job_table(some, harbor.admin.now(), dead=all(job.state is State.DLQ for job in some))
    if len(ids) > PREVIEW:
        click.echo(f"and {output.count(len(ids) - PREVIEW, 'more job')}", err=True)
