"""`taskharbor dlq`: look at dead jobs, run them again, or delete them."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from taskharbor.admin.base import BULK_LIMIT
from taskharbor.admin.dead_letters import Purged, Replayed
from taskharbor.admin.why import Why
from taskharbor.cli import describe, lists, output
from taskharbor.cli.acts import MISSING, NOT_DEAD, REPLAY, first_jobs, say_changed, say_limit
from taskharbor.cli.exits import BAD, complain
from taskharbor.cli.ids import meant, place_after, search_hint, some, whole_id, whole_ids, whole_words
from taskharbor.cli.target import ask, here, target_options
from taskharbor.cli.types import age, json_object, json_option, limit_option, time_option, wide_option
from taskharbor.cli.words import WORDS_HELP, is_word
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.reserved import TASKS
from taskharbor.core.short_ids import UUID
from taskharbor.core.states import State
from taskharbor.driver import DeadGroup
from taskharbor.errors import IllegalMove, JobNotFound
from taskharbor.harbor import Harbor

PREVIEW = 20
KEYLESS = "without its key: another job holds it"
NOT_REPLAYED = {"missing": MISSING, "not_dead": NOT_DEAD, "is_task": REPLAY.bad["task"]}


@click.group()
def dlq() -> None:
    """Look at dead jobs, run them again, or delete them."""


@dlq.command("ls", help=f"List dead jobs, the newest first.\n{WORDS_HELP}")
@click.argument("words", nargs=-1)
@limit_option(50, 1000)
@click.option("--after", metavar="ID", help="Go on behind this job.")
@json_option
@wide_option
@target_options
def list_dead(words: tuple[str, ...], limit: int, after: str | None, as_json: bool, wide: bool) -> None:
    harbor = here().store()

    async def look(harbor: Harbor) -> list[JobRecord]:
        where, behind = await whole_words(harbor, words), await place_after(harbor, after)
        return await harbor.admin.dlq.alist(where, limit=limit + 1, after=behind)

    found = ask(harbor, look)
    if as_json:
        output.print_json([describe.brief(job, harbor.admin.now()) for job in found[:limit]])
    else:
        lists.jobs(found, harbor.admin.now(), limit, _nothing(words), dead=True, wide=wide)


def _nothing(words: tuple[str, ...]) -> str:
    return "No dead jobs match." if words else "The dead-letter queue is empty."


@dlq.command("show")
@click.argument("id")
@json_option
@target_options
def show_dead(id: str, as_json: bool) -> None:
    """Show everything about a dead job: arguments, every kept failure with its traceback."""

    async def look(harbor: Harbor) -> tuple[JobRecord, Why]:
        job = await harbor.admin.dlq.aget(await whole_id(harbor, id))
        return job, await harbor.admin.jobs.awhy(job)

    harbor = here().store()
    job, why = ask(harbor, look)
    if as_json:
        output.print_json(describe.full(job, why, harbor.admin.now()))
    else:
        describe.page(job, why, harbor.admin.now())


@dlq.command("groups", help=f"Group dead jobs by cause, the most frequent first.\n{WORDS_HELP}")
@click.argument("words", nargs=-1)
@limit_option(50, 1000)
@json_option
@wide_option
@target_options
def list_groups(words: tuple[str, ...], limit: int, as_json: bool, wide: bool) -> None:
    harbor = here().store()

    async def look(harbor: Harbor) -> list[DeadGroup]:
        return await harbor.admin.dlq.agroups(await whole_words(harbor, words), limit=limit + 1)

    found = ask(harbor, look)
    if as_json:
        output.print_json([asdict(group) for group in found[:limit]])
    elif not found:
        output.say(_nothing(words), "dim")
    else:
        lists.group_table(found[:limit], harbor.admin.now(), wide=wide)
        if len(found) > limit:
            click.echo(f"The first {limit}. More: --limit.", err=True)


@dlq.command("replay")
@click.argument("ids", nargs=-1, metavar="[ID]... | --all [WORDS]...")
@click.option("--all", "every", is_flag=True, help="Replay all dead jobs, or those that match the words.")
@click.option("--dry-run", is_flag=True, help="Only show what would be replayed.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--args", "edited", metavar="JSON", help="New arguments as a JSON object (for one job).")
@click.option("--key", metavar="KEY", help="A new idempotency key (for one job).")
@time_option("--key-ttl", "How long the new key holds (default: 24 h).")
@limit_option(BULK_LIMIT, BULK_LIMIT)
@json_option
@target_options
def replay(
    ids: tuple[str, ...],
    every: bool,
    dry_run: bool,
    yes: bool,
    edited: str | None,
    key: str | None,
    key_ttl: float | None,
    limit: int,
    as_json: bool,
) -> None:
    """Run dead jobs again, with all their attempts ahead of them.

    Name them by id, or use --all with the words of `dlq ls`; group:FINGERPRINT is a group of `dlq groups`. A cancelled
    job can be replayed by its id too. Tasks of a TaskManager are left out: they have a retry of their own.
    """
    if not every and not ids:
        raise click.UsageError("name the jobs by id, or use --all")
    if (edited is not None or key is not None) and (every or len(ids) != 1):
        raise click.UsageError("--args and --key are for one job: name it by its id")
    if key_ttl is not None and key is None:
        raise click.UsageError("--key-ttl needs a --key")
    if every:
        _replay_matching(ids, limit, dry_run, yes, as_json)
    else:
        changes: dict[str, Any] = {"idempotency_key": key} if key is not None else {}
        changes |= {"idempotency_ttl": key_ttl} if key_ttl is not None else {}
        changes |= {"arguments": json_object("--args", edited)} if edited is not None else {}
        _replay_named(ids, changes, dry_run, as_json)


def _replay_matching(words: tuple[str, ...], limit: int, dry_run: bool, yes: bool, as_json: bool) -> None:
    harbor = here().store()

    async def look(harbor: Harbor) -> tuple[list[str], Filter]:
        where = await meant(harbor, words)
        return (await harbor.admin.dlq.areplay_all(where, limit=limit, dry_run=True)).replayed, where

    ids, where = ask(harbor, look)
    done = Replayed([], [])
    if ids and not dry_run:
        _confirm(harbor, "replay", ids, yes)
        done = ask(harbor, lambda harbor: harbor.admin.dlq.areplay_all(where, among=ids))
    if as_json:
        output.print_json({"matched": len(ids), **asdict(done), "dry_run": dry_run})
        return
    number = len(ids) if dry_run else len(done.replayed)
    output.say(f"{'Would replay' if dry_run else 'Replayed'} {output.count(number, 'job')}.")
    if done.without_key:
        output.say(f"{output.count(len(done.without_key), 'job')} of them {KEYLESS}.")
    say_changed(len(done.changed))
    _show_rest(harbor, ids, limit, dry_run)


@dlq.command("purge", help=f"Delete dead jobs for good: those that match, or all.\n{WORDS_HELP}")
@click.argument("words", nargs=-1)
@time_option("--older-than", "Only jobs that died at least this long ago: 7d, 12h.", type=age)
@click.option("--id", "named", metavar="ID", multiple=True, help="This job, instead of those that match.")
@click.option("--all", "every", is_flag=True, help="All dead jobs, if neither words nor an age narrow them down.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@limit_option(BULK_LIMIT, BULK_LIMIT)
@json_option
@target_options
def purge(
    words: tuple[str, ...],
    older_than: float | None,
    named: tuple[str, ...],
    every: bool,
    dry_run: bool,
    yes: bool,
    limit: int,
    as_json: bool,
) -> None:
    narrowed = bool(words) or older_than is not None
    if not narrowed and not every and not named:
        raise click.UsageError("say which: words as in `dlq ls`, --older-than, --id, or --all")
    if named and (narrowed or every):
        raise click.UsageError("--id is for jobs by their ids: leave words, --older-than and --all out")
    if found := next(filter(UUID.fullmatch, words), None):
        raise click.UsageError(f"{found} is an id, and words name tasks: to delete that job, write --id {found}")

    async def look(harbor: Harbor) -> tuple[list[str], Filter]:
        where = await meant(harbor, words)
        if named:
            return [(await harbor.admin.dlq.aget(id)).id for id in await whole_ids(harbor, named)], where
        found = await harbor.admin.dlq.apurge(where, older_than=older_than, limit=limit, dry_run=True)
        return found.deleted, where

    harbor = here().store()
    ids, where = ask(harbor, look)
    purged = Purged([], [])
    if ids and not dry_run:
        _confirm(harbor, "delete", ids, yes, by_name=bool(named))
        purged = ask(harbor, lambda harbor: harbor.admin.dlq.apurge(where, older_than=older_than, among=ids))
    if as_json:
        output.print_json({"matched": len(ids), **asdict(purged), "dry_run": dry_run})
    else:
        jobs = output.count(len(ids if dry_run else purged.deleted), "job")
        which = f": {some(purged.deleted)}" if named and purged.deleted else ""
        output.say(f"{'Would delete' if dry_run else 'Deleted'} {jobs}{which}.")
        say_changed(len(purged.changed))
        _show_rest(harbor, ids, limit, dry_run)
    _complain_of_needed(purged)
    if named and purged.changed:
        click.get_current_context().exit(BAD)


def _complain_of_needed(purged: Purged) -> None:
    if purged.needed:
        complain(
            f"{output.count(len(purged.needed), 'job')} stayed, because others in their workflows wait for them: "
            f"{some(purged.needed)}; "
            "replay them, or cancel the workflows first (`taskharbor workflows cancel`)"
        )
        click.get_current_context().exit(BAD)


def _confirm(harbor: Harbor, verb: str, ids: list[str], yes: bool, *, by_name: bool = False) -> None:
    if yes:
        return
    number = output.count(len(ids), "job")
    if not sys.stdin.isatty():
        raise click.UsageError(f"{number} would be {verb.rstrip('e')}ed: add --yes to do it, --dry-run to see them")
    tasks = sorted({job.type for job in first_jobs(harbor, ids, PREVIEW)})
    names = ", ".join(tasks[:3]) + (" …" if len(tasks) > 3 else "")
    click.confirm(f"{verb.capitalize()} {number} ({names}){': ' + some(ids) if by_name else ''}?", abort=True)


def _show_rest(harbor: Harbor, ids: list[str], limit: int, dry_run: bool) -> None:
    """Show what would be affected, and whether there may be more."""
    if dry_run and ids:
        lists.job_table(first_jobs(harbor, ids, PREVIEW), harbor.admin.now(), dead=True)
    say_limit(len(ids), limit)


class Edit(Struct, frozen=True):
    """Arguments before and after; `checked` if the task is known here and its signature was applied."""

    before: msgspec.Raw | None
    after: dict[str, Any]
    checked: bool

    def show(self) -> None:
        """Show both, and whether they were checked."""
        old = "not readable" if self.before is None else bytes(self.before).decode()
        output.facts([("before", old), ("after", msgspec.json.encode(self.after).decode())])
        if not self.checked:
            output.say("The new arguments were not checked: name the application that knows the task with -A.")


class Answer(Struct, frozen=True, omit_defaults=True):
    """Report the result for one job, or what it would be."""

    id: str
    outcome: str
    arguments: Edit | None = None


def _replay_named(ids: tuple[str, ...], changes: dict[str, Any], dry_run: bool, as_json: bool) -> None:
    async def act(harbor: Harbor) -> list[Answer]:
        answer = _would_replay if dry_run else _replay_one
        return [await answer(harbor, id, changes) for id in await whole_ids(harbor, ids)]

    answers = ask(here().store(), act)
    if as_json:
        output.print_json(answers)
    for answer in answers:
        if answer.outcome in NOT_REPLAYED:
            complain(f"{answer.id} was not replayed: {_why_not(answer)}")
        elif not as_json:
            without = f" {KEYLESS}" if answer.outcome == "replayed_without_key" else ""
            output.say(f"{'Would replay' if dry_run else 'Replayed'} {answer.id}{without}.")
            if answer.arguments is not None:
                answer.arguments.show()
    if {answer.outcome for answer in answers} & set(NOT_REPLAYED):
        click.get_current_context().exit(BAD)


def _why_not(answer: Answer) -> str:
    if answer.outcome == "missing" and is_word(answer.id):
        return f"{answer.id} is a filter word, not an id; for all jobs that match, add --all"
    hint = search_hint(answer.id) if answer.outcome == "missing" else ""
    return NOT_REPLAYED[answer.outcome].format(id=answer.id) + hint


async def _replay_one(harbor: Harbor, id: str, changes: dict[str, Any]) -> Answer:
    try:
        return Answer(id, await harbor.admin.dlq.areplay(id, **changes))
    except IllegalMove:
        why = (await _would_replay(harbor, id, {})).outcome
        return Answer(id, why if why in NOT_REPLAYED else "not_dead")


async def _would_replay(harbor: Harbor, id: str, changes: dict[str, Any]) -> Answer:
    try:
        job = await harbor.admin.jobs.aget(id)
    except JobNotFound:
        return Answer(id, "missing")
    if job.queue == TASKS:
        return Answer(id, "is_task")
    if job.state not in (State.DLQ, State.CANCELLED):
        return Answer(id, "not_dead")
    edit = None
    if "arguments" in changes:
        harbor.admin.dlq.edited(job, changes["arguments"])
        edit = Edit(describe.arguments_of(job), changes["arguments"], job.type in harbor.tasks)
    return Answer(id, "would_replay", edit)
