"""`taskharbor dlq`: look at dead jobs, run them again, or delete them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from taskharbor.admin.admin import Admin
from taskharbor.admin.base import BULK_LIMIT
from taskharbor.admin.bulk import WOULD, OnProgress
from taskharbor.cli import describe, job_lists, output
from taskharbor.cli.bulk import DELETE, REPLAY, ActOptions, Answers, act_options, carry_out, report
from taskharbor.cli.ids import meant, whole_ids, whole_words
from taskharbor.cli.output import Cell
from taskharbor.cli.tables import Column, list_options, listing
from taskharbor.cli.target import ask, here
from taskharbor.cli.types import age, answer_options, json_object, limit_option, time_option
from taskharbor.cli.words import WORDS_HELP, nothing_matches
from taskharbor.core.durations import ago
from taskharbor.core.filter import Filter
from taskharbor.core.short_ids import UUID, ending
from taskharbor.driver import DeadGroup
from taskharbor.errors import IllegalMove

OUTCOMES = {WOULD: "would_replay", "task": "is_task"}  # the names in the JSON of a replay


@click.group()
def dlq() -> None:
    """Look at dead jobs, run them again, or delete them."""


@dlq.command("ls", help=f"List dead jobs, the newest first.\n{WORDS_HELP}")
@click.argument("words", nargs=-1)
@limit_option(50, 1000)
@click.option("--after", metavar="ID", help="Continue after this job.")
@list_options
def list_dead(words: tuple[str, ...], **options: Any) -> None:
    job_lists.jobs(words, _nothing(words), dead=True, **options)


def _nothing(words: tuple[str, ...]) -> str:
    return nothing_matches(words, "No dead jobs") if words else "The dead-letter queue is empty."


@dlq.command("show")
@click.argument("id")
@answer_options
def show_dead(id: str, as_json: bool) -> None:
    """Show everything about a dead job, with all kept failures.

    Each failure has its traceback.
    """
    describe.show(id, lambda admin: admin.dlq, as_json)


@dlq.command("groups", help=f"Group dead jobs by cause, the most frequent first.\n{WORDS_HELP}")
@click.argument("words", nargs=-1)
@limit_option(50, 1000)
@list_options
def list_groups(words: tuple[str, ...], limit: int, **options: Any) -> None:
    async def look(admin: Admin) -> list[DeadGroup]:
        return await admin.dlq.agroups(await whole_words(admin, words), limit=limit + 1)

    found, now = ask(look), here().now()
    columns: list[Column[DeadGroup]] = [
        Column("GROUP", lambda group: Cell(group.fingerprint, "bold")),
        Column("JOBS", lambda group: f"{group.count:,}", right=True),
        Column("FIRST", lambda group: ago(group.first_at, now), drop=1),
        Column("LAST", lambda group: ago(group.last_at, now), drop=2),
        Column("TASK", lambda group: group.task, least=12, keep_end=True),
        Column("ERROR", lambda group: job_lists.error_cell(group.error), least=14, drop=3, weight=2),
    ]
    listing(found, columns, _nothing(words), asdict, limit=limit, **options)


@dlq.command("replay")
@click.argument("ids", nargs=-1, metavar="[ID]... | --all [WORDS]...")
@click.option("--all", "every", is_flag=True, help="Replay all dead jobs, or those that match the words.")
@click.option("--args", "edited", metavar="JSON", help="New arguments as a JSON object (for one job).")
@click.option("--key", metavar="KEY", help="A new idempotency key (for one job).")
@time_option("--key-ttl", help="How long the new key holds (default: 24 h).")
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
    asked = ActOptions(ids, **options, most=BULK_LIMIT)
    if every:
        _replay_matching(asked)
    else:
        changes: dict[str, Any] = {"idempotency_key": key} if key is not None else {}
        changes |= {"idempotency_ttl": key_ttl} if key_ttl is not None else {}
        changes |= {"arguments": json_object("--args", edited)} if edited is not None else {}
        _replay_named(asked, changes)


def _replay_matching(asked: ActOptions) -> None:
    async def look(admin: Admin) -> tuple[list[str], Filter]:
        where = await meant(admin, asked.given)
        return (await admin.dlq.areplay_all(where, limit=asked.limit, dry_run=True)).replayed, where

    ids, where = ask(look)

    def act(progress: OnProgress | None) -> Answers:
        done = ask(lambda admin: admin.dlq.areplay_all(where, among=ids, progress=progress))
        keyless = dict.fromkeys(done.without_key, "replayed_without_key")
        return {**dict.fromkeys(done.replayed, "replayed"), **keyless, **dict.fromkeys(done.changed, "changed")}

    by_answer = {"replayed": "replayed", "without_key": "replayed_without_key", "changed": "changed"}
    carry_out(REPLAY, asked, ids, act, matching=True, by_answer=by_answer)


@dlq.command("purge", help=f"Delete dead jobs for good: those that match, or all.\n{WORDS_HELP}")
@click.argument("words", nargs=-1)
@time_option("--older-than", help="Only jobs that died at least this long ago: 7d, 12h.", type=age)
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
    if found := next(filter(ending, words), None):
        raise click.UsageError(
            f"{found} reads like an id or a group, and words name tasks: "
            f"write --id {found}, group:{found} or task:{found}"
        )

    asked = ActOptions(words, **options, most=BULK_LIMIT)

    async def look(admin: Admin) -> tuple[list[str], Filter]:
        where = await meant(admin, words)
        if named:
            return [(await admin.dlq.aget(id)).id for id in await whole_ids(admin, named)], where
        found = await admin.dlq.apurge(where, older_than=older_than, limit=asked.limit, dry_run=True)
        return found.deleted, where

    ids, where = ask(look)

    def act(progress: OnProgress | None) -> Answers:
        done = ask(lambda admin: admin.dlq.apurge(where, older_than=older_than, among=ids, progress=progress))
        return {id: answer for answer, found in asdict(done).items() for id in found}

    by_answer = {"deleted": "deleted", "needed": "needed", "changed": "changed"}
    carry_out(DELETE, asked, ids, act, matching=not named, by_answer=by_answer)


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


def _replay_named(asked: ActOptions, changes: dict[str, Any]) -> None:
    async def act(admin: Admin) -> tuple[Answers, Edit | None]:
        ids, edit = await whole_ids(admin, asked.given), None
        answers: Sequence[str]
        if asked.dry_run:
            answers = await admin.jobs.apreview("replay", ids)
            if "arguments" in changes and WOULD in answers:
                edit = await _edit(admin, ids[0], changes["arguments"])
        elif changes:
            answers = [await _replay_changed(admin, ids[0], changes)]
        else:
            answers = await admin.jobs.areplay(ids)
        return dict(zip(ids, answers, strict=True)), edit

    answers, edit = ask(act)
    arguments = {} if edit is None else {"arguments": edit}
    value = [{"id": id, "outcome": OUTCOMES.get(answer, answer), **arguments} for id, answer in answers.items()]
    report(REPLAY, answers, asked, by_name=True, value=value)
    if edit is not None and not asked.as_json:
        edit.show()


async def _replay_changed(admin: Admin, id: str, changes: dict[str, Any]) -> str:
    try:
        return await admin.dlq.areplay(id, **changes)
    except IllegalMove:
        (why,) = await admin.jobs.apreview("replay", id)
        return "not_dead" if why == WOULD else why


async def _edit(admin: Admin, id: str, arguments: dict[str, Any]) -> Edit:
    job = await admin.jobs.aget(id)
    admin.dlq.edited(job, arguments)  # raises if they do not fit
    return Edit(describe.arguments_of(job), arguments, job.type in here().store.tasks)
