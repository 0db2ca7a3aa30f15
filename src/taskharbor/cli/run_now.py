"""`taskharbor jobs run-now`: make scheduled jobs due."""

from __future__ import annotations

import click

from taskharbor.cli.bulk import MISSING, Asked, Wording, report
from taskharbor.cli.ids import whole_ids
from taskharbor.cli.target import ask, here, target_options
from taskharbor.cli.types import json_option
from taskharbor.core.reserved import TASKS
from taskharbor.core.states import Shown
from taskharbor.errors import JobNotFound
from taskharbor.harbor import Harbor

RUN_NOW = Wording(
    None,
    "make due",
    "made due",
    {"due": "{} is due now.", "already_due": "{0} was due already: `taskharbor jobs show {0}` says why it waits."},
    {
        "running": "a worker has claimed it",
        "waiting": "it waits for other jobs of its workflow",
        "ended": "it has ended; `taskharbor jobs replay {id}` runs a dead or cancelled job again",
        "task": "it is a TaskManager's task: it waits until an agent claims it",
        "missing": MISSING,
    },
)
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

    report(RUN_NOW, ask(here().store(), act), Asked(ids, as_json=as_json), by_name=True)


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
