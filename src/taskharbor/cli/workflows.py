"""`taskharbor workflows`: look at workflows, cancel them, or replay what failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import click
from msgspec.structs import asdict

from taskharbor.admin.workflows import GraphNode, Workflow
from taskharbor.cli import output
from taskharbor.cli.exits import BAD, complain
from taskharbor.cli.lists import error_cell
from taskharbor.cli.output import Cell
from taskharbor.cli.tables import Column, short_ids, table
from taskharbor.cli.target import ask, here, target_options
from taskharbor.cli.types import json_option, limit_option, wide_option
from taskharbor.core.durations import ago
from taskharbor.harbor import Harbor

STYLES = {"running": "yellow", "held": "bold red", "done": "green", "failed": "bold red", "cancelled": "dim"}
KNOWN_AS = {"inflight": "running"}
COLUMNS = (
    Column("ID"),
    Column("STATE"),
    Column("JOBS", right=True, drop=1),
    Column("BY STATE", least=16, drop=2),
    Column("CREATED", drop=3),
)
NODE_COLUMNS = (
    Column("NO", right=True),
    Column("ID", drop=3),
    Column("TASK", least=12, keep_end=True),
    Column("STATE"),
    Column("AFTER", least=6, drop=1),
    Column("WAITS FOR", least=6, drop=4),
    Column("ERROR", least=14, drop=2, weight=2),
)


@click.group()
def workflows() -> None:
    """Look at workflows, cancel them, or replay what failed."""


@workflows.command("ls")
@limit_option(50, 1000)
@click.option("--after", metavar="ID", help="Continue after this workflow.")
@json_option
@wide_option
@target_options
def list_workflows(limit: int, after: str | None, as_json: bool, wide: bool) -> None:
    """List workflows, the latest first.

    A workflow is running, held (a step failed and others wait for its replay), done, failed or cancelled.
    """
    harbor = here().store()

    async def look(harbor: Harbor) -> list[Workflow]:
        behind = None if after is None else (await _named(harbor, after)).id
        return await harbor.admin.workflows.alist(limit=limit + 1, after=behind)

    listed = ask(harbor, look)
    found = listed[:limit]
    if as_json:
        output.print_json([asdict(workflow) for workflow in found])
        return
    if not found:
        output.say("No workflows yet." if after is None else "No more workflows.", "dim")
        return
    now = harbor.admin.now()
    ids = short_ids(workflow.id for workflow in found)
    table(COLUMNS, [[id, *_row(workflow, now)] for id, workflow in zip(ids, found, strict=True)], wide=wide)
    if len(listed) > limit:
        click.echo(f"The first {limit}. More: --after {found[-1].id}, or --limit.", err=True)


async def _named(harbor: Harbor, id: str) -> Workflow:
    """The workflow with this id, or with an id of this ending."""
    return await harbor.admin.workflows.aget(await harbor.admin.workflows.aresolve(id))


def _row(workflow: Workflow, now: datetime) -> Sequence[str | Cell]:
    return [
        _state(workflow),
        f"{workflow.jobs:,}",
        _counts(workflow.counts),
        ago(workflow.created_at, now),
    ]


def _state(workflow: Workflow) -> Cell:
    return Cell(workflow.state, STYLES.get(workflow.state, ""))


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {KNOWN_AS.get(state, state)}" for state, number in counts.items())


@workflows.command("show")
@click.argument("id")
@limit_option(200, 10_000)
@json_option
@wide_option
@target_options
def show_workflow(id: str, limit: int, as_json: bool, wide: bool) -> None:
    """Show the graph: each job with its state, what it comes after, and what it still waits for.

    `1, 2; collect 3`: if 1 or 2 fails, it waits for their replay; if 3 fails, it receives a FailedStep. `cancel 4`: if
    4 fails, it is cancelled.
    """

    async def look(harbor: Harbor) -> tuple[Workflow, list[GraphNode]]:
        workflow = await _named(harbor, id)
        return workflow, await harbor.admin.workflows.agraph(workflow.id)

    harbor = here().store()
    workflow, nodes = ask(harbor, look)
    if as_json:
        output.print_json({**asdict(workflow), "graph": [_node(node) for node in nodes]})
        return
    output.facts(
        [
            ("workflow", Cell(workflow.id, "bold")),
            ("state", _state(workflow)),
            ("jobs", f"{workflow.jobs:,}: {_counts(workflow.counts)}"),
            ("created", output.exact(workflow.created_at, harbor.admin.now())),
        ]
    )
    output.heading("Graph")
    _show_graph(nodes, limit, wide)


def _node(node: GraphNode) -> dict[str, object]:
    parents = [{"id": id, "policy": policy, "satisfied": satisfied} for id, policy, satisfied in node.parents]
    return {**asdict(node), "parents": parents}


def _show_graph(nodes: Sequence[GraphNode], limit: int, wide: bool) -> None:
    numbers = {node.id: number for number, node in enumerate(nodes, 1)}
    ids = short_ids(node.id for node in nodes)
    table(
        NODE_COLUMNS,
        [
            [
                str(numbers[node.id]),
                id,
                node.task,
                output.state_cell(node.state),
                _edges((numbers[id], policy) for id, policy, _ in node.parents if id in numbers),
                Cell(
                    _edges((numbers[id], policy) for id, policy, met in node.parents if not met and id in numbers),
                    "yellow",
                ),
                error_cell(node.error if node.state != "done" else None),
            ]
            for id, node in zip(ids[:limit], nodes[:limit], strict=True)
        ],
        wide=wide,
    )
    if len(nodes) > limit:
        click.echo(f"The first {limit:,} of {len(nodes):,} jobs. All: --json, or --limit.", err=True)


def _edges(parents: Iterable[tuple[int, str]]) -> str:
    """`1-3; collect 5, 7`: the parents of a step, with their failure policy unless it is `hold`."""
    by_policy: dict[str, list[int]] = {"hold": []}
    for number, policy in parents:
        by_policy.setdefault(policy, []).append(number)
    held = _ranges(by_policy.pop("hold"))
    others = [f"{policy} {_ranges(numbers)}" for policy, numbers in by_policy.items()]
    return "; ".join(filter(None, [held, *others]))


def _ranges(numbers: Iterable[int]) -> str:
    """`1-3, 5` for 1, 2, 3 and 5: a step may have thousands of parents."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


@workflows.command("cancel")
@click.argument("id")
@json_option
@target_options
def cancel(id: str, as_json: bool) -> None:
    """Cancel the jobs of a workflow that have not ended; running ones are asked to stop."""

    async def act(harbor: Harbor) -> tuple[int, Workflow]:
        whole = (await _named(harbor, id)).id
        return await harbor.admin.workflows.acancel(whole), await harbor.admin.workflows.aget(whole)

    stopped, workflow = ask(here().store(), act)
    if as_json:
        output.print_json({"id": workflow.id, "cancelled": stopped, "state": workflow.state})
    elif stopped:
        output.say(f"Cancelled {output.count(stopped, 'job')} of workflow {workflow.id}.")
    if not stopped:
        _refuse(f"nothing of workflow {workflow.id} is left to cancel: it is {workflow.state}")


@workflows.command("replay")
@click.argument("id")
@json_option
@target_options
def replay(id: str, as_json: bool) -> None:
    """Run the dead and cancelled jobs of a workflow again."""

    async def act(harbor: Harbor) -> tuple[list[str], Workflow]:
        whole = (await _named(harbor, id)).id
        return await harbor.admin.workflows.areplay(whole), await harbor.admin.workflows.aget(whole)

    replayed, workflow = ask(here().store(), act)
    if as_json:
        output.print_json({"id": workflow.id, "replayed": replayed, "state": workflow.state})
    elif replayed:
        output.say(f"Replayed {output.count(len(replayed), 'job')} of workflow {workflow.id}.")
    if not replayed:
        _refuse(f"there is nothing to replay in workflow {workflow.id}: it is {workflow.state}")


def _refuse(why: str) -> None:
    complain(why)
    click.get_current_context().exit(BAD)
