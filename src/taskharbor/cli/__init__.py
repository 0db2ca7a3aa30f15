"""The command line. No rules live here: commands call the harbor and show its answers.

Importing this imports no engine and no rich; commands that draw import rich when they draw.

The modules are internal: the commands are the interface, and nothing else in the library imports them.
"""

from __future__ import annotations

import sys

import click

from taskharbor.cli.bench import bench
from taskharbor.cli.dlq import dlq
from taskharbor.cli.enqueue import enqueue
from taskharbor.cli.exits import Commands
from taskharbor.cli.health import health
from taskharbor.cli.jobs import jobs
from taskharbor.cli.migrate import migrate
from taskharbor.cli.queues import queues
from taskharbor.cli.recurring import recurring
from taskharbor.cli.stats import stats
from taskharbor.cli.target import target_options
from taskharbor.cli.worker import worker
from taskharbor.cli.workers import workers
from taskharbor.cli.workflows import workflows
from taskharbor.version import __version__

__all__ = ["cli", "main"]


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="taskharbor %(version)s")
@target_options
def cli() -> None:
    """Durable background jobs for Python.

    New here? See it work: `taskharbor demo`

    The application comes from -A, or from `app` in [tool.taskharbor] of pyproject.toml. The store comes from --url, the
    application, TASKHARBOR_URL, or `url` in [tool.taskharbor]; else it is ./taskharbor.db.

    Exit codes: 0 success, 1 refused, unhealthy or not found, 2 wrong usage, 3 the store cannot be reached.
    """


@cli.command()
@click.option("--keep", is_flag=True, help="Keep the store afterwards for inspection.")
def demo(keep: bool) -> None:
    """See it work: real workers, some hundred jobs, kill -9. About ten seconds."""
    from taskharbor.cli.demo.play import run_demo  # imported here: only the demo needs its harbor

    sys.exit(run_demo(keep=keep))


for command in (bench, dlq, enqueue, health, jobs, migrate, queues, recurring, stats, worker, workers, workflows):
    cli.add_command(command)


def main() -> None:
    """The entry point of `taskharbor`."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")  # a terminal that lacks a character shows ? instead of failing
    cli(prog_name="taskharbor")
