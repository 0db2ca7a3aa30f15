"""`taskharbor recurring`: look at recurring tasks, run one now, pause or resume one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from shlex import quote
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from taskharbor.cli import describe, output
from taskharbor.cli.exits import complain
from taskharbor.cli.output import Cell, exact, iso, since
from taskharbor.cli.tables import Column, table
from taskharbor.cli.target import ask, here, target_options
from taskharbor.cli.types import json_option, wide_option
from taskharbor.core.durations import ago, length
from taskharbor.errors import ConfigError
from taskharbor.harbor import Harbor

if TYPE_CHECKING:
    from taskharbor.admin.recurring import RecurringTask

MOST_TIMES = 1000
COLUMNS = (
    Column("NAME", least=16, keep_end=True),
    Column("TASK", least=12, drop=1, keep_end=True),
    Column("WHEN", least=20, drop=5, weight=2),
    Column("NEXT"),
    Column("AT", drop=2),
    Column("LAST", drop=3),
    Column("STATE", drop=4),
)
MISSED = {
    "last": "become one run",
    "skip": "are left out",
    "all": "are caught up, at most {most:,}",
}
AFTER_LAST = "after its last run"


@click.group()
def recurring() -> None:
    """Look at recurring tasks, run one now, pause or resume one.

    They are declared in code, by `@harbor.recurring`; a worker stores them when it starts.
    """


@recurring.command("ls")
@json_option
@wide_option
@target_options
def list_recurring(as_json: bool, wide: bool) -> None:
    """List recurring tasks by name: when they run, next and last."""

    async def look(harbor: Harbor) -> tuple[list[RecurringTask], dict[str, str], bool]:
        admin = harbor.admin
        return await admin.recurring.alist(), await admin.recurring.aunreadable(), bool(await admin.workers.alist())

    harbor = here().store()
    found, unreadable, alive = ask(harbor, look)
    now = harbor.admin.now()
    for name, why in unreadable.items():
        complain(f"{name} cannot be read here: {why}")
    if as_json:
        output.print_json([_brief(task, now) for task in found])
        return
    if not found and not unreadable:
        output.say("No recurring tasks yet: a worker stores those that its code declares when it starts.", "dim")
        return
    if found:
        table(COLUMNS, [_row(task, now, alive) for task in found], wide=wide)
    for task in found:
        if late := _overdue(task, now):
            output.say(f"{task.name} is {late}", "red")


def _row(task: RecurringTask, now: datetime, alive: bool) -> Sequence[str | Cell]:
    return [
        Cell(task.name, "bold"),
        task.task,
        task.words,
        _next(task, now, alive),
        _utc(task.next_run),
        since(task.last_run, now),
        output.state_cell(task.last_state or ""),
    ]


def _next(task: RecurringTask, now: datetime, alive: bool = True) -> Cell:
    """When it runs next. With a live worker, a due task counts as overdue only after some seconds."""
    if task.paused:
        return Cell("paused", "yellow")
    if task.next_run is None:
        return Cell(AFTER_LAST, "dim")
    late = task.overdue(now) if alive else task.overdue(now, timedelta(seconds=1))
    if late is not None:
        return Cell(f"overdue by {_length(late)}", "red")
    return Cell(ago(task.next_run, now) if task.next_run > now else "now")


def _overdue(task: RecurringTask, now: datetime) -> str | None:
    late = task.overdue(now)
    return None if late is None else f"overdue by {_length(late)}: does a worker know {task.task}?"


def _length(late: timedelta) -> str:
    return length(late.total_seconds())


def _utc(moment: datetime | None) -> str:
    return "" if moment is None else iso(moment.replace(microsecond=0))


def _brief(task: RecurringTask, now: datetime) -> dict[str, Any]:
    late = task.overdue(now)
    return {
        "name": task.name,
        "task": task.task,
        "words": task.words,
        "cron": task.when.cron,
        "tz": task.when.tz,
        "every": None if task.when.every is None else task.when.interval.total_seconds(),
        "mode": task.when.mode,
        "queue": task.queue,
        "paused": task.paused,
        "in_code": task.in_code,
        "next_run": task.next_run,
        "overdue": None if late is None else late.total_seconds(),
        "last_run": task.last_run,
        "last_job_id": task.last_job_id,
        "last_state": task.last_state,
    }


def _full(task: RecurringTask, now: datetime) -> dict[str, Any]:
    return {
        **_brief(task, now),
        "anchor": None if task.when.every is None else task.when.anchor,
        "catch_up": task.when.catch_up,
        "max_catch_up": task.when.max_catch_up,
        "overlap": task.when.overlap,
        "jitter": task.when.jitter,
        "arguments": describe.arguments_of(task),
    }


@recurring.command("show")
@click.argument("name")
@json_option
@target_options
def show_recurring(name: str, as_json: bool) -> None:
    """Show everything about a recurring task."""
    harbor = here().store()
    task = ask(harbor, lambda harbor: harbor.admin.recurring.aget(name))
    now = harbor.admin.now()
    if as_json:
        output.print_json(_full(task, now))
        return
    output.say(task.name, "bold")
    output.facts(
        [
            ("task", task.task if task.task != task.name else None),
            ("when", task.words),
            ("cron", task.when.cron),
            ("next run", _next_run(task, now)),
            ("last run", exact(task.last_run, now)),
            ("last job", _last_job(task)),
            ("queue", task.queue),
            *_rules(task),
            ("declared", "in code" if task.in_code else "at run time"),
        ]
    )
    describe.show_arguments(task)


def _next_run(task: RecurringTask, now: datetime) -> Cell | str | None:
    if task.paused or task.next_run is None:
        return _next(task, now)
    late = _overdue(task, now)
    return exact(task.next_run, now) if late is None else Cell(f"{_utc(task.next_run)}  ({late})", "red")


def _last_job(task: RecurringTask) -> Cell | None:
    if task.last_job_id is None:
        return None
    state = output.state_cell(task.last_state or "gone, its retention has run out")
    return Cell(f"{task.last_job_id}  {state.text}", state.style)


def _rules(task: RecurringTask) -> list[tuple[str, str | None]]:
    if task.when.mode == "fixed_delay":
        return []
    overlaps = "is left out" if task.when.catch_up != "all" else "waits for it"
    return [
        ("missed ticks", MISSED[task.when.catch_up].format(most=task.when.max_catch_up)),
        ("while a run goes on", f"the next {overlaps}" if task.when.overlap == "skip" else "the next runs in parallel"),
        ("jitter", f"up to {length(task.when.jitter)}" if task.when.jitter else None),
    ]


@recurring.command("next")
@click.argument("name")
@click.option("-n", "count", type=click.IntRange(1, MOST_TIMES), default=5, show_default=True, help="How many.")
@json_option
@target_options
def next_runs(name: str, count: int, as_json: bool) -> None:
    """Show when a recurring task runs next, by the clocks of its own time zone and in UTC."""

    async def look(harbor: Harbor) -> tuple[RecurringTask, list[datetime]]:
        return await harbor.admin.recurring.aget(name), await harbor.admin.recurring.anext(name, count)

    harbor = here().store()
    task, times = ask(harbor, look)
    zone = ZoneInfo(task.when.tz)
    if as_json:
        output.print_json([{"at": time, "local": time.astimezone(zone)} for time in times])
    else:
        _show_times(task, times, zone, harbor.admin.now())


def _show_times(task: RecurringTask, times: Sequence[datetime], zone: ZoneInfo, now: datetime) -> None:
    if times:
        columns = [Column(task.when.tz), Column("UTC"), Column("WHEN")]
        rows = [[_local(time, zone), iso(time), ago(time, now)] for time in times]
        start = 1 if task.when.tz == "UTC" else 0
        table(columns[start:], [row[start:] for row in rows])
    if late := _overdue(task, now):
        output.say(f"{task.name} is {late}", "red")
    elif task.paused:
        output.say(
            f"{task.name} is paused: nothing runs before `taskharbor recurring resume {quote(task.name)}`.", "yellow"
        )
    elif task.when.mode == "fixed_delay":
        output.say(f"{task.words}: the next time is known when {_that_run(task)} has ended.")


def _that_run(task: RecurringTask) -> str:
    return "that one" if task.next_run is not None or task.last_job_id is None else f"job {task.last_job_id}"


def _local(time: datetime, zone: ZoneInfo) -> str:
    local = time.astimezone(zone)
    return f"{local:%a} {local.replace(tzinfo=None).isoformat(' ')} {local:%z}"


@recurring.command("run")
@click.argument("name")
@json_option
@target_options
def run_now(name: str, as_json: bool) -> None:
    """Run a recurring task now, paused or not, beside its ticks.

    Unless its runs may overlap, the last one must have ended.
    """
    job = ask(here().store(), lambda harbor: harbor.admin.recurring.arun(name))
    if as_json:
        output.print_json({"id": job.id, "created": job.created})
    else:
        output.say(f"{job.id} created")


@recurring.command("pause")
@click.argument("name")
@json_option
@target_options
def pause(name: str, as_json: bool) -> None:
    """Pause a recurring task until it is resumed, even if code declares it again. A current run goes on."""
    harbor = here().store()
    task = ask(harbor, lambda harbor: harbor.admin.recurring.apause(name))
    if as_json:
        output.print_json(_brief(task, harbor.admin.now()))
    else:
        output.say(f"{task.name} is paused.")


@recurring.command("resume")
@click.argument("name")
@json_option
@target_options
def resume(name: str, as_json: bool) -> None:
    """Resume a recurring task from now on: runs missed during the pause are not caught up."""
    harbor = here().store()
    task = ask(harbor, lambda harbor: harbor.admin.recurring.aresume(name))
    now = harbor.admin.now()
    if as_json:
        output.print_json(_brief(task, now))
    else:
        output.say(f"{task.name} is resumed, next {exact(task.next_run, now) or AFTER_LAST}.")


@recurring.command("rm")
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@target_options
def remove(name: str, yes: bool, as_json: bool) -> None:
    """Delete a recurring task; its jobs stay.

    While code declares it, the next worker that starts stores it again: pause it instead.
    """

    async def look(harbor: Harbor) -> RecurringTask | None:
        try:
            return await harbor.admin.recurring.aget(name)
        except ConfigError:  # stored by a newer version: it cannot be read, but it can be removed
            return None

    harbor = here().store()
    task = ask(harbor, look)
    if not yes:
        _confirm(name, task)
    ask(harbor, lambda harbor: harbor.admin.recurring.adelete(name))
    if as_json:
        output.print_json({"name": name, "removed": True})
    else:
        output.say(f"Removed {name}. Its jobs stay.")
    if task is not None and task.in_code:
        click.echo(f"If code still declares it, the next worker that starts stores {name} again.", err=True)


def _confirm(name: str, task: RecurringTask | None) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(f"{name} would be removed: add --yes to do it")
    words = "" if task is None else f" ({task.words})"
    click.confirm(f"Remove {name}{words}?", abort=True)
