"""`taskharbor dlq`: look at dead jobs, run them again, or delete them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from taskharbor.admin.base import BULK_LIMIT
from taskharbor.admin.bulk import WOULD, Progress
from taskharbor.cli import describe, lists, output
from taskharbor.cli.bulk import DELETE, REPLAY, Answers, Asked, act_options, carry_out, report
from taskharbor.cli.ids import meant, whole_ids, whole_words
from taskharbor.cli.target import ask, here, target_options
from taskharbor.cli.types import age, json_object, json_option, limit_option, time_option, wide_option
from taskharbor.cli.words import WORDS_HELP
from taskharbor.core.filter import Filter
from taskharbor.core.reserved import TASKS
from taskharbor.core.short_ids import UUID
from taskharbor.core.states import State
from taskharbor.driver import DeadGroup
from taskharbor.errors import IllegalMove, JobNotFound
from taskharbor.harbor import Harbor

ANSWERS = {"would_replay": WOULD, "is_task": "task"}


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
def list_dead(words: tuple[str, ...], **options: Any) -> None:
    lists.jobs(here().store(), words, _nothing(words), dead=True, **options)


def _nothing(words: tuple[str, ...]) -> str:
    return "No dead jobs match." if words else "The dead-letter queue is empty."


@dlq.command("show")
@click.argument("id")
@json_option
@target_options
def show_dead(id: str, as_json: bool) -> None:
    """Show everything about a dead job: arguments, every kept failure with its traceback."""
    harbor = here().store()
    describe.show(harbor, id, harbor.admin.dlq.aget, as_json)


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
@click.option("--args", "edited", metavar="JSON", help="New arguments as a JSON object (for one job).")
@click.option("--key", metavar="KEY", help="A new idempotency key (for one job).")
@time_option("--key-ttl", "How long the new key holds (default: 24 h).")
@act_options(BULK_LIMIT)
def replay(
    ids: tuple[str, ...], every: bool, edited: str | None, key: str | None, key_ttl: float | None, **options: Any
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
    asked = Asked(ids, **options, most=BULK_LIMIT)
    if every:
        _replay_matching(asked)
    else:
        changes: dict[str, Any] = {"idempotency_key": key} if key is not None else {}
        changes |= {"idempotency_ttl": key_ttl} if key_ttl is not None else {}
        changes |= {"arguments": json_object("--args", edited)} if edited is not None else {}
        _replay_named(asked, changes)


def _replay_matching(asked: Asked) -> None:
    async def look(harbor: Harbor) -> tuple[list[str], Filter]:
        where = await meant(harbor, asked.given)
        return (await harbor.admin.dlq.areplay_all(where, limit=asked.limit, dry_run=True)).replayed, where

    harbor = here().store()
    ids, where = ask(harbor, look)

    def act(progress: Progress | None) -> Answers:
        done = ask(harbor, lambda harbor: harbor.admin.dlq.areplay_all(where, among=ids, progress=progress))
        keyless = dict.fromkeys(done.without_key, "replayed_without_key")
        return {**dict.fromkeys(done.replayed, "replayed"), **keyless, **dict.fromkeys(done.changed, "changed")}

    as_json = _lists(asked, len(ids), replayed="replayed", without_key="replayed_without_key", changed="changed")
    carry_out(REPLAY, asked, harbor, ids, act, matching=True, as_json=as_json)


def _lists(asked: Asked, matched: int, **lists: str) -> Callable[[Answers], dict[str, Any]]:
    """The JSON of an act: for each list, the ids whose answers begin so."""

    def value(answers: Answers) -> dict[str, Any]:
        found = {name: [id for id, given in answers.items() if given.startswith(lists[name])] for name in lists}
        return {"matched": matched, **found, "dry_run": asked.dry_run}

    return value


@dlq.command("purge", help=f"Delete dead jobs for good: those that match, or all.\n{WORDS_HELP}")
@click.argument("words", nargs=-1)
@time_option("--older-than", "Only jobs that died at least this long ago: 7d, 12h.", type=age)
@click.option("--id", "named", metavar="ID", multiple=True, help="This job, instead of those that match.")
@click.option("--all", "every", is_flag=True, help="All dead jobs, if neither words nor an age narrow them down.")
@act_options(BULK_LIMIT)
def purge(
    words: tuple[str, ...], older_than: float | None, named: tuple[str, ...], every: bool, **options: Any
) -> None:
    narrowed = bool(words) or older_than is not None
    if not narrowed and not every and not named:
        raise click.UsageError("say which: words as in `dlq ls`, --older-than, --id, or --all")
    if named and (narrowed or every):
        raise click.UsageError("--id is for jobs by their ids: leave words, --older-than and --all out")
    if found := next(filter(UUID.fullmatch, words), None):
        raise click.UsageError(f"{found} is an id, and words name tasks: to delete that job, write --id {found}")

    asked = Asked(words, **options, most=BULK_LIMIT)

    async def look(harbor: Harbor) -> tuple[list[str], Filter]:
        where = await meant(harbor, words)
        if named:
            return [(await harbor.admin.dlq.aget(id)).id for id in await whole_ids(harbor, named)], where
        found = await harbor.admin.dlq.apurge(where, older_than=older_than, limit=asked.limit, dry_run=True)
        return found.deleted, where

    harbor = here().store()
    ids, where = ask(harbor, look)

    def act(progress: Progress | None) -> Answers:
        done = ask(
            harbor,
            lambda harbor: harbor.admin.dlq.apurge(where, older_than=older_than, among=ids, progress=progress),
        )
        return {id: answer for answer, found in asdict(done).items() for id in found}

    in_lists = _lists(asked, len(ids), deleted="deleted", needed="needed", changed="changed")
    carry_out(DELETE, asked, harbor, ids, act, matching=not named, as_json=in_lists)


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


def _replay_named(asked: Asked, changes: dict[str, Any]) -> None:
    async def act(harbor: Harbor) -> list[Answer]:
        answer = _would_replay if asked.dry_run else _replay_one
        return [await answer(harbor, id, changes) for id in await whole_ids(harbor, asked.given)]

    found = ask(here().store(), act)
    answers = {answer.id: ANSWERS.get(answer.outcome, answer.outcome) for answer in found}
    report(REPLAY, answers, asked, by_name=True, value=found)
    for answer in found if not asked.as_json else ():
        if answer.arguments is not None:
            answer.arguments.show()


async def _replay_one(harbor: Harbor, id: str, changes: dict[str, Any]) -> Answer:
    try:
        return Answer(id, await harbor.admin.dlq.areplay(id, **changes))
    except IllegalMove:
        why = (await _would_replay(harbor, id, {})).outcome
        return Answer(id, "not_dead" if why == "would_replay" else why)


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
