"""`taskharbor jobs`: look at jobs, and act on them."""

from __future__ import annotations

from typing import Any

import click

from taskharbor.cli import describe, job_lists
from taskharbor.cli.acts import cancel_jobs, dead_letter_jobs, delete_jobs, replay_jobs, run_now
from taskharbor.cli.tables import list_options
from taskharbor.cli.types import answer_options, limit_option
from taskharbor.cli.words import WORDS_HELP, nothing_matches


@click.group()
def jobs() -> None:
    """Look at jobs; cancel, delete, replay, run or dead-letter them."""


@jobs.command("ls", help=f"List jobs, the newest first.\n{WORDS_HELP}")
@click.argument("words", nargs=-1)
@limit_option(50, 1000)
@click.option("--after", metavar="ID", help="Continue after this job.")
@list_options
def list_jobs(words: tuple[str, ...], **options: Any) -> None:
    job_lists.jobs(words, nothing_matches(words, "No jobs") if words else "No jobs yet.", **options)


@jobs.command("show")
@click.argument("id")
@answer_options
def show_job(id: str, as_json: bool) -> None:
    """Show everything about one job, and why it is in its state."""
    describe.show(id, lambda admin: admin.jobs, as_json)


for act in (cancel_jobs, delete_jobs, replay_jobs, dead_letter_jobs, run_now):
    jobs.add_command(act)
