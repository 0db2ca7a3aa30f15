"""`taskharbor recurring`: look at recurring tasks, run one now, pause or resume one."""

from __future__ import annotations

from asyncio import gather
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from taskharbor.admin.admin import Admin
from taskharbor.cli import describe, output
from taskharbor.cli.exits import complain
from taskharbor.cli.output import Cell, exact, iso, picked, since
from taskharbor.cli.tables import Column, list_options, listing, table
from taskharbor.cli.target import ask, here
from taskharbor.cli.types import answer_options
from taskharbor.core.durations import ago, length
from taskharbor.errors import ConfigError

if TYPE_CHECKING:
    from taskharbor.admin.recurring import RecurringTask

MOST_TIMES = 1000
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
@list_options
def list_recurring(as_json: bool, wide: bool) -> None:
    """List recurring tasks by name: when they run, next and last."""
    found, unreadable, workers = ask(
        lambda admin: gather(admin.recurring.alist(), admin.recurring.aunreadable(), admin.workers.alist())
    )
    now = here().now()
    for name, why in unreadable.items():
        complain(f"{name} cannot be read here: {why}")
    if found or as_json or not unreadable:
        nothing = "No recurring tasks yet: a worker stores those that its code declares when it starts."
        brief = partial(_brief, now=now)
        listing(found, _columns(now, alive=bool(workers)), nothing, brief, as_json=as_json, wide=wide)
    for task in found if not as_json else ():
        if late := _overdue(task, now):
            output.say(f"{task.name} is {late}", "red")


def _columns(now: datetime, *, alive: bool) -> list[Column[RecurringTask]]:
    return [
        Column("NAME", lambda task: Cell(task.name, "bold"), least=16, keep_end=True, weight=2),
        Column("TASK", lambda task: task.task, least=12, drop=1, keep_end=True),
        Column("WHEN", lambda task: task.words, least=20, drop=5),
        Column("NEXT", lambda task: _next(task, now, alive)),
        Column("AT", lambda task: _utc(task.next_run), drop=2),
        Column("LAST", lambda task: since(task.last_run, now), drop=3),
        Column("STATE", lambda task: output.state_cell(task.last_state or ""), drop=4),
    ]


def _next(task: RecurringTask, now: datetime, alive: bool = True) -> Cell:
    """When it runs next. With a live worker, a due task counts as overdue only after some seconds."""
    if task.paused:
        return Cell("paused", "yellow")
    if task.next_run is None:
        return Cell(AFTER_LAST, "dim")
    late = task.overdue(now) if alive else task.overdue(now, timedelta(seconds=1))
    if late is not None:
        return Cell(f"overdue by {length(late.total_seconds())}", "red")
    return Cell(ago(task.next_run, now) if task.next_run > now else "now")


def _overdue(task: RecurringTask, now: datetime) -> str | None:
    late = task.overdue(now)
    return None if late is None else f"overdue by {length(late.total_seconds())}: does a worker know {task.task}?"


def _utc(moment: datetime | None) -> str:
    return "" if moment is None else iso(moment.replace(microsecond=0))


def _brief(task: RecurringTask, now: datetime) -> dict[str, Any]:
    late = task.overdue(now)
    return {
        **picked(task, "name", "task", "words"),
        **picked(task.when, "cron", "tz"),
        "every": None if task.when.every is None else task.when.interval.total_seconds(),
        "mode": task.when.mode,
        **picked(task, "queue", "paused", "in_code", "next_run"),
        "overdue": None if late is None else late.total_seconds(),
        **picked(task, "last_run", "last_job_id", "last_state"),
    }


def _full(task: RecurringTask, now: datetime) -> dict[str, Any]:
    return {
        **_brief(task, now),
        "anchor": None if task.when.every is None else task.when.anchor,
        **picked(task.when, "catch_up", "max_catch_up", "overlap", "jitter"),
        "arguments": describe.arguments_of(task),
    }


@recurring.command("show")
@click.argument("name")
@answer_options
def show_recurring(name: str, as_json: bool) -> None:
    """Show everything about a recurring task."""
    task, now = ask(lambda admin: admin.recurring.aget(name)), here().now()
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
            ("to do", f"taskharbor recurring resume {quote(task.name)}" if task.paused else None),
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
@answer_options
def next_runs(name: str, count: int, as_json: bool) -> None:
    """Show when a recurring task runs next.

    Times are those of its own time zone, and UTC.
    """
    task, times = ask(lambda admin: gather(admin.recurring.aget(name), admin.recurring.anext(name, count)))
    zone = ZoneInfo(task.when.tz)
    if as_json:
        output.print_json([{"at": time, "local": time.astimezone(zone)} for time in times])
    else:
        _show_times(task, times, zone, here().now())


def _show_times(task: RecurringTask, times: Sequence[datetime], zone: ZoneInfo, now: datetime) -> None:
    if times:
        local = [] if task.when.tz == "UTC" else [Column(task.when.tz, partial(_local, zone=zone))]
        table([*local, Column("UTC", iso), Column("WHEN", partial(ago, now=now))], times)
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
@answer_options
def run_now(name: str, as_json: bool) -> None:
    """Run a recurring task now, paused or not, beside its ticks.

    Unless its runs may overlap, the last one must have ended.
    """
    job = ask(lambda admin: admin.recurring.arun(name))
    output.answer(as_json, {"id": job.id, "created": job.created}, f"{job.id} created")


@recurring.command("pause")
@click.argument("name")
@answer_options
def pause(name: str, as_json: bool) -> None:
    """Pause a recurring task until it is resumed.

    It stays paused even if code declares it again. A current run goes on.
    """
    task = ask(lambda admin: admin.recurring.apause(name))
    output.answer(as_json, _brief(task, here().now()), f"{task.name} is paused.")


@recurring.command("resume")
@click.argument("name")
@answer_options
def resume(name: str, as_json: bool) -> None:
    """Resume a recurring task from now on.

    Runs missed during the pause are not caught up.
    """
    task, now = ask(lambda admin: admin.recurring.aresume(name)), here().now()
    text = f"{task.name} is resumed, next {exact(task.next_run, now) or AFTER_LAST}."
    output.answer(as_json, _brief(task, now), text)


@recurring.command("rm")
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@answer_options
def remove(name: str, yes: bool, as_json: bool) -> None:
    """Delete a recurring task; its jobs stay.

    While code declares it, the next worker that starts stores it again: pause it instead.
    """

    async def look(admin: Admin) -> RecurringTask | None:
        try:
            return await admin.recurring.aget(name)
        except ConfigError:  # stored by a newer version: it cannot be read, but it can be removed
            return None

    task = ask(look)
    if not yes:
        words = "" if task is None else f" ({task.words})"
        output.confirm(f"{name} would be removed", lambda: f"Remove {name}{words}?")
    ask(lambda admin: admin.recurring.adelete(name))
    output.answer(as_json, {"name": name, "removed": True}, f"Removed {name}. Its jobs stay.")
    if task is not None and task.in_code:
        click.echo(f"If code still declares it, the next worker that starts stores {name} again.", err=True)
