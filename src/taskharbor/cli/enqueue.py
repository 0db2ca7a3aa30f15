"""`taskharbor enqueue`: store a job by the name of its task."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from shlex import quote
from typing import Any, cast

import click

from taskharbor.cli import output
from taskharbor.cli.target import LASTING, here, quieten
from taskharbor.cli.types import answer_options, arguments, moment, time_option
from taskharbor.client.handle import Job
from taskharbor.client.options import JobOptions
from taskharbor.client.registered_task import Registered
from taskharbor.errors import ConfigError, WrongArguments
from taskharbor.harbor import Harbor

WANTS_TEXT = re.compile(r"parameter (\w+) wants str\b[^:]*, got ")
APPLICATION = "-A module:harbor, or app in [tool.taskharbor]"


@click.command()
@click.argument("task")
@click.argument("words", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--queue", metavar="NAME", help="The queue, instead of the task's own.")
@time_option("--delay", help="Run after this time at the earliest: 30, 15m, 2h.")
@click.option("--run-at", type=moment, metavar="TIME", help="Run at this time at the earliest: 2030-01-31T09:00:00Z.")
@time_option("--expires", help="Cancel it if it has not begun within this time.")
@click.option("--priority", type=int, help="From -100 to 100; higher runs first.")
@click.option("--key", "idempotency_key", metavar="KEY", help="Idempotency key: a second job with it is not stored.")
@time_option("--key-ttl", "idempotency_ttl", help="How long the key holds (default: 24 h).")
@click.option("--id", metavar="ID", help="The job's id, instead of a new one.")
@click.option("--max-attempts", type=int, help="Failures before the dead-letter queue.")
@click.option("--max-crashes", type=int, help="Crashes in a row before the dead-letter queue.")
@time_option("--timeout", help="How long a run may take.")
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="A label; may be given several times.")
@answer_options
def enqueue(task: str, words: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Store a job for TASK with the given arguments.

    A VALUE is JSON: 42, true, '["a", "b"]', '{"x": 1}'. Anything else is taken as text, so name=Ada works; a text
    that looks like a number is written '"42"'.

    With an application, the task must exist there, its signature checks the arguments, and its own queue and options
    apply. Without one, the job is stored as given, for a worker elsewhere, and the name is not checked.
    """
    if ":" in task and words and "=" not in words[0]:
        raise click.UsageError(f"{task!r} is read as the name of a task: an application is named by -A {task}")
    values = arguments(words)
    known = here().application()
    harbor = known or here().bare()
    if known is not None:
        _check_names(harbor.find(task), values)
    quieten()
    try:
        job = asyncio.run(_store(harbor, task, values, options))
    except WrongArguments as error:
        raise WrongArguments(f"{error}{_quoted(str(error), words)}") from None
    if known is None:
        click.echo(f"The name {task} was not checked: name the application by {APPLICATION}.", err=True)
    if as_json:
        output.print_json({"id": job.id, "created": job.created, "same_payload": job.same_payload})
    elif job.created:
        output.say(f"{job.id} created")
    else:
        differs = "" if job.same_payload else ", with other arguments"
        output.say(f"{job.id} existed already under this key{differs}: nothing was stored")


def _check_names(task: Registered, values: dict[str, Any]) -> None:
    """Reject a job option among the arguments, and name its flag."""
    signature = task.signature
    flags = {parameter.name: parameter.opts[0] for parameter in click.get_current_context().command.params}
    for name, value in values.items():
        is_known = signature.takes_any_name or name in signature.parameters
        if name in JobOptions.__annotations__ and not is_known and name in flags:
            raise WrongArguments(f"task {task.name}: {name!r} is an option of the job: write {flags[name]} {value}")


def _quoted(error: str, words: Sequence[str]) -> str:
    """Explain how to write a text that was read as another type."""
    found = WANTS_TEXT.search(error)
    given = {name: value for name, _, value in (word.partition("=") for word in words)}
    if found is None or found[1] not in given:
        return ""
    word = f"{found[1]}={json.dumps(given[found[1]], ensure_ascii=False)}"
    return f"; to give a text, quote it twice: {quote(word)}"


async def _store(harbor: Harbor, task: str, values: dict[str, Any], options: dict[str, Any]) -> Job[Any]:
    given = {name: value for name, value in options.items() if value not in (None, ())}
    async with harbor.open():
        if (await harbor.adriver()).ephemeral:
            raise ConfigError(
                "memory:// is a store inside one process: the job would be gone when this command ends, and no worker "
                f"would see it. {LASTING}"
            )
        return await harbor.aenqueue(task, values, **cast(JobOptions, given))
