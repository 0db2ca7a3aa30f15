"""`taskharbor dlq`: look at dead jobs, and run them again."""

from __future__ import annotations

import sys
from typing import Any

import click

from taskharbor.cli import describe, output
from taskharbor.cli.exits import BAD, complain
from taskharbor.cli.jobs import WORDS_HELP, show_list
from taskharbor.cli.place import ask, here, place_options
from taskharbor.cli.types import json_object, json_option, limit_option
from taskharbor.core.job import JobRecord
from taskharbor.core.states import State
from taskharbor.errors import HarborError, JobNotFound
from taskharbor.harbor import Harbor
from taskharbor.runtime.admin import BULK_LIMIT

PREVIEW = 20
NOT_REPLAYED = {
    "missing": "there is no such job: the id is wrong, or its retention has run out",
    "not_dead": "it is neither dead nor cancelled",
}


@click.group()
def dlq() -> None:
    """Look at dead jobs, and run them again."""


@dlq.command("ls", help=f"List dead jobs, the newest first.\n{WORDS_HELP}")
@click.argument("words", nargs=-1)
@limit_option(50, 1000)
@click.option("--after", metavar="ID", help="Go on behind this job.")
@json_option
@place_options
def list_dead(words: tuple[str, ...], limit: int, after: str | None, as_json: bool) -> None:
    _refuse_states(words)
    harbor = here().store()
    found = ask(harbor, lambda harbor: harbor.admin.dlq.alist(words, limit=limit, after=after))
    if as_json:
        output.print_json([describe.brief(job, harbor.admin.now()) for job in found])
    else:
        nothing = "No dead jobs match." if words else "The dead-letter queue is empty."
        show_list(found, harbor.admin.now(), limit, nothing, dead=True)


@dlq.command("show")
@click.argument("id")
@json_option
@place_options
def show_dead(id: str, as_json: bool) -> None:
    """Show everything about a dead job: arguments, every kept failure with its traceback."""
    harbor = here().store()
    job = ask(harbor, lambda harbor: harbor.admin.jobs.aget(id))
    if job.state is not State.DLQ:
        raise JobNotFound(f"job {id} is {harbor.admin.jobs.shown(job)}, not dead: see `taskharbor jobs show {id}`")
    if as_json:
        output.print_json(describe.full(job, harbor.admin.now()))
    else:
        describe.page(job, harbor.admin.now())


@dlq.command("replay")
@click.argument("ids", nargs=-1, metavar="[ID]... | --all [WORDS]...")
@click.option("--all", "every", is_flag=True, help="Replay all dead jobs, or those that match the words.")
@click.option("--dry-run", is_flag=True, help="Only say what would be replayed.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--args", "edited", metavar="JSON", help="New arguments as a JSON object (for one job).")
@click.option("--key", metavar="KEY", help="A new idempotency key (for one job).")
@limit_option(BULK_LIMIT, BULK_LIMIT)
@json_option
@place_options
def replay(
    ids: tuple[str, ...],
    every: bool,
    dry_run: bool,
    yes: bool,
    edited: str | None,
    key: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Run dead jobs again, with all their attempts ahead of them.

    Name them by id, or say --all with the words of `dlq ls`. A cancelled job can be replayed by its id, too.
    """
    changed = edited is not None or key is not None
    if not every and not ids:
        raise click.UsageError("name the jobs by id, or say --all")
    if changed and (every or len(ids) != 1):
        raise click.UsageError("--args and --key are for one job: name it by its id")
    if every:
        _refuse_states(ids)
        _replay_matching(ids, limit, dry_run, yes, as_json)
    else:
        arguments = None if edited is None else json_object("--args", edited)
        _replay_named(ids, arguments, key, dry_run, as_json)


def _refuse_states(words: tuple[str, ...]) -> None:
    for word in words:
        if word.startswith("state:"):
            raise click.UsageError(f"{word!r}: the dead-letter queue holds dead jobs only")


def _replay_matching(words: tuple[str, ...], limit: int, dry_run: bool, yes: bool, as_json: bool) -> None:
    harbor = here().store()
    found = ask(harbor, lambda harbor: harbor.admin.dlq.alist(words, limit=limit))
    if not dry_run and found and not yes:
        _confirm(found)
    if dry_run or not found:
        replayed = [job.id for job in found]
    else:
        replayed = ask(harbor, lambda harbor: harbor.admin.dlq.areplay_ids([job.id for job in found]))
    if as_json:
        output.print_json({"matched": len(found), "replayed": [] if dry_run else replayed, "dry_run": dry_run})
        return
    output.say(f"{'Would replay' if dry_run else 'Replayed'} {output.count(len(replayed), 'job')}.")
    if dry_run and found:
        describe.table(found[:PREVIEW], harbor.admin.now(), dead=True)
    if len(found) == limit:
        click.echo(f"That is the limit of {limit:,}; more may match: run it again.", err=True)


def _confirm(found: list[JobRecord]) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"{output.count(len(found), 'job')} would be replayed: add --yes to do it, --dry-run to see them"
        )
    tasks = sorted({job.type for job in found})
    names = ", ".join(tasks[:3]) + (" …" if len(tasks) > 3 else "")
    click.confirm(f"Replay {output.count(len(found), 'job')} ({names})?", abort=True)


def _replay_named(
    ids: tuple[str, ...], arguments: dict[str, Any] | None, key: str | None, dry_run: bool, as_json: bool
) -> None:
    async def act(harbor: Harbor) -> dict[str, str]:
        if arguments is not None:
            await _check_arguments(harbor, ids[0], arguments)
        if dry_run:
            return {id: await _would_replay(harbor, id) for id in ids}
        return {
            id: await harbor.admin.dlq.areplay(id, arguments=arguments, idempotency_key=key)
            for id in dict.fromkeys(ids)
        }

    answers = ask(here().store(), act)
    if as_json:
        output.print_json([{"id": id, "outcome": answer} for id, answer in answers.items()])
    for id, answer in answers.items():
        if answer in NOT_REPLAYED:
            complain(f"{id} was not replayed: {NOT_REPLAYED[answer]}")
        elif not as_json:
            output.say(f"{'Would replay' if dry_run else 'Replayed'} {id}.")
    if set(answers.values()) & set(NOT_REPLAYED):
        click.get_current_context().exit(BAD)


async def _check_arguments(harbor: Harbor, id: str, arguments: dict[str, Any]) -> None:
    """With the application at hand, arguments that do not fit are refused here and not by a worker."""
    job = await harbor.admin.jobs.aget(id)
    if job.type in harbor.tasks:
        harbor.step(job.type, arguments)


async def _would_replay(harbor: Harbor, id: str) -> str:
    try:
        job = await harbor.admin.jobs.aget(id)
    except HarborError:
        return "missing"
    return "would_replay" if job.state in (State.DLQ, State.CANCELLED) else "not_dead"
