"""`taskharbor jobs run-now`: make scheduled jobs due."""

from __future__ import annotations

import click

from taskharbor.cli import output
from taskharbor.cli.acts import MISSING
from taskharbor.cli.exits import BAD, complain
from taskharbor.cli.ids import whole_ids
from taskharbor.cli.target import ask, here, target_options
from taskharbor.cli.types import json_option
from taskharbor.core.reserved import TASKS
from taskharbor.core.states import Shown
from taskharbor.errors import JobNotFound
from taskharbor.harbor import Harbor

GOOD = {
    "due": "{id} is due now.",
    "already_due": "{id} was due already: `taskharbor jobs show {id}` says why it waits.",
}
ENDED = "it has ended; `taskharbor jobs replay {id}` runs a dead or cancelled job again"
REFUSED = {
    "running": "a worker has claimed it",
    "waiting": "it waits for other jobs of its workflow",
    "ended": ENDED,
    "task": "it is a TaskManager's task: it waits until an agent claims it",
    "missing": MISSING,
}
ANSWERS = {
    Shown.READY: "already_due",
    Shown.WAITING: "waiting",
    Shown.DONE: "ended",
    Shown.DLQ: "ended",
    Shown.CANCELLED: "ended",
}


@click.command("run-now")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@json_option
@target_options
def run_now(ids: tuple[str, ...], as_json: bool) -> None:
    """Make scheduled jobs due now: retries that wait, and jobs for a later time.

    Name them by their ids (endings are enough). The number of attempts does not change.
    """

    async def act(harbor: Harbor) -> dict[str, str]:
        return {id: await _answer(harbor, id) for id in await whole_ids(harbor, ids)}

    answers = ask(here().store(), act)
    if as_json:
        output.print_json([{"id": id, "answer": answer} for id, answer in answers.items()])
    for id, answer in answers.items():
        if answer in REFUSED:
            complain(f"{id} was not made due: {REFUSED[answer].format(id=id)}")
        elif not as_json:
            output.say(GOOD[answer].format(id=id))
    if set(answers.values()) & set(REFUSED):
        click.get_current_context().exit(BAD)


async def _answer(harbor: Harbor, id: str) -> str:
    jobs = harbor.admin.jobs
    try:
        job = await jobs.aget(id)
    except JobNotFound:
        return "missing"
    if job.queue == TASKS:
        return "task"
    state = Shown(jobs.shown(job))
    if state is Shown.SCHEDULED and await jobs.areschedule(id, run_at=harbor.admin.now()):
        return "due"
    return ANSWERS.get(state, "running")
