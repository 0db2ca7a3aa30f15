"""`taskharbor jobs`: look at jobs, and cancel them."""

from __future__ import annotations

import click

from taskharbor.cli import describe, lists, output
from taskharbor.cli.exits import BAD, complain
from taskharbor.cli.ids import place_after, whole_id, whole_ids, whole_words
from taskharbor.cli.place import ask, here, place_options
from taskharbor.cli.types import json_option, limit_option, wide_option
from taskharbor.core.job import JobRecord
from taskharbor.harbor import Harbor

WORDS_HELP = """
    WORDS narrow the list; all of them must hold:

    \b
      mail.*            tasks by name, * stands for anything (also task:mail.*)
      queue:mail        a queue
      state:dlq,ready   scheduled, ready, waiting, claimed, running, done, dlq, cancelled
      tag:vip           a tag
      error:Timeout     part of the last error; small and capital letters differ
      reason:crash_*    why it is in the dead-letter queue
      group:1f0c2ab3d4  dead jobs of one cause, as `dlq groups` lists them
      workflow:ID       the jobs of a workflow
      since:1h          created within the last hour; until:1h before that
    """


@click.group()
def jobs() -> None:
    """Look at jobs, and cancel them."""


@jobs.command("ls", help=f"List jobs, the newest first.\n{WORDS_HELP}")
@click.argument("words", nargs=-1)
@limit_option(50, 1000)
@click.option("--after", metavar="ID", help="Go on behind this job.")
@json_option
@wide_option
@place_options
def list_jobs(words: tuple[str, ...], limit: int, after: str | None, as_json: bool, wide: bool) -> None:
    harbor = here().store()

    async def look(harbor: Harbor) -> list[JobRecord]:
        where, behind = await whole_words(harbor, words), await place_after(harbor, after)
        return await harbor.admin.jobs.alist(where, limit=limit, after=behind)

    found = ask(harbor, look)
    if as_json:
        output.print_json([describe.brief(job, harbor.admin.now()) for job in found])
    else:
        lists.jobs(found, harbor.admin.now(), limit, "No jobs match." if words else "No jobs yet.", wide=wide)


@jobs.command("show")
@click.argument("id")
@json_option
@place_options
def show_job(id: str, as_json: bool) -> None:
    """Show everything about one job."""

    async def look(harbor: Harbor) -> JobRecord:
        return await harbor.admin.jobs.aget(await whole_id(harbor, id))

    harbor = here().store()
    job = ask(harbor, look)
    if as_json:
        output.print_json(describe.full(job, harbor.admin.now()))
    else:
        describe.page(job, harbor.admin.now())


@jobs.command("cancel")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@json_option
@place_options
def cancel_jobs(ids: tuple[str, ...], as_json: bool) -> None:
    """Cancel jobs that wait, and ask those that run to stop."""

    async def act(harbor: Harbor) -> dict[str, str]:
        named = await whole_ids(harbor, ids)
        return dict(zip(named, await harbor.admin.jobs.acancel(named), strict=True))

    answers = ask(here().store(), act)
    if as_json:
        output.print_json([{"id": id, "answer": answer} for id, answer in answers.items()])
    for id, answer in answers.items():
        if answer in ("finished", "missing"):
            complain(f"{id} has ended already" if answer == "finished" else f"there is no job {id}")
        elif not as_json:
            output.say(f"Cancelled {id}." if answer == "cancelled" else f"Asked {id} to stop: it is running.")
    if {"finished", "missing"} & set(answers.values()):
        click.get_current_context().exit(BAD)
