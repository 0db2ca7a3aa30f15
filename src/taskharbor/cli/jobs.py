"""`taskharbor jobs`: look at jobs, and act on them."""

from __future__ import annotations

import click

from taskharbor.admin.why import Why
from taskharbor.cli import describe, lists, output
from taskharbor.cli.acts import cancel_jobs, dead_letter_jobs, delete_jobs, replay_jobs
from taskharbor.cli.ids import listed, place_after, whole_id, whole_words
from taskharbor.cli.run_now import run_now
from taskharbor.cli.target import ask, here, target_options
from taskharbor.cli.types import json_option, limit_option, wide_option
from taskharbor.cli.words import WORDS_HELP
from taskharbor.core.job import JobRecord
from taskharbor.harbor import Harbor


@click.group()
def jobs() -> None:
    """Look at jobs; cancel, delete, replay, run or dead-letter them."""


@jobs.command("ls", help=f"List jobs, the newest first.\n{WORDS_HELP}")
@click.argument("words", nargs=-1)
@limit_option(50, 1000)
@click.option("--after", metavar="ID", help="Continue after this job.")
@json_option
@wide_option
@target_options
def list_jobs(words: tuple[str, ...], limit: int, after: str | None, as_json: bool, wide: bool) -> None:
    harbor = here().store()

    async def look(harbor: Harbor) -> list[JobRecord]:
        where, behind = await whole_words(harbor, words), await place_after(harbor, after)
        return await listed(harbor, words, await harbor.admin.jobs.alist(where, limit=limit + 1, after=behind))

    found = ask(harbor, look)
    if as_json:
        output.print_json([describe.brief(job, harbor.admin.now()) for job in found[:limit]])
    else:
        lists.jobs(found, harbor.admin.now(), limit, "No jobs match." if words else "No jobs yet.", wide=wide)


@jobs.command("show")
@click.argument("id")
@json_option
@target_options
def show_job(id: str, as_json: bool) -> None:
    """Show everything about one job, and why it is in its state."""

    async def look(harbor: Harbor) -> tuple[JobRecord, Why]:
        job = await harbor.admin.jobs.aget(await whole_id(harbor, id))
        return job, await harbor.admin.jobs.awhy(job)

    harbor = here().store()
    job, why = ask(harbor, look)
    if as_json:
        output.print_json(describe.full(job, why, harbor.admin.now()))
    else:
        describe.page(job, why, harbor.admin.now())


for act in (cancel_jobs, delete_jobs, replay_jobs, dead_letter_jobs, run_now):
    jobs.add_command(act)
