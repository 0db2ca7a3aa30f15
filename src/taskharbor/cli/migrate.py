"""`taskharbor migrate`: create the schema of a store, or bring it up to date."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import click

from taskharbor.cli import output
from taskharbor.cli.target import Target, here, target_options
from taskharbor.core.durations import count
from taskharbor.driver import Migration


@click.command()
@click.argument("store", required=False, metavar="[URL|MODULE:HARBOR]")
@click.option("--plan", is_flag=True, help="Show what would be done, and change nothing.")
@click.option("--sql", is_flag=True, help="Print the steps as SQL to be run separately, and change nothing.")
@target_options
def migrate(store: str | None, plan: bool, sql: bool) -> None:
    """Create the schema of a store, or bring it up to date.

    PostgreSQL needs it before the first use and after an upgrade of TaskHarbor: first migrate, then start the new
    programs; the old ones keep working in the meantime. Concurrent calls are safe: every step is done once. SQLite
    files need no migration.
    """
    if plan and sql:
        raise click.UsageError("--plan and --sql cannot be combined: choose one")
    harbor = _target(store).named()
    found = asyncio.run(harbor.amigrate(dry=plan or sql, tell=lambda step: output.say(f"  {step}", "dim")))
    if found is None:
        _say(f"{urlsplit(harbor.url).scheme}:// needs no migration: a store is updated when it is opened", sql)
    elif not found.steps:
        _say(f"{found.what} is up to date (version {found.version})", sql)
    elif sql:
        click.echo(found.sql, nl=False)
    else:
        _say(_summary(found, plan), sql)


def _target(store: str | None) -> Target:
    target = here()
    if store is not None and "://" in store:
        target.url = store
    else:
        target.app = store or target.app
    return target


def _summary(found: Migration, plan: bool) -> str:
    steps = count(len(found.steps), "step")
    return f"{found.what}: {steps} to do: {', '.join(found.steps)}" if plan else f"{found.what}: {steps}"


def _say(text: str, as_comment: bool) -> None:
    output.say(f"-- {text}" if as_comment else text)
