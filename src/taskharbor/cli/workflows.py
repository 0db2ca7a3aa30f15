"""`taskharbor workflows`: look at workflows, cancel them, or replay what failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import attrgetter
from shlex import quote
from typing import Any

import click
from msgspec.structs import asdict

from taskharbor.admin.admin import Admin
from taskharbor.admin.workflows import GraphNode, Workflow, Workflows
from taskharbor.cli import output
from taskharbor.cli.exits import BAD, complain
from taskharbor.cli.job_lists import error_cell
from taskharbor.cli.output import Cell
from taskharbor.cli.tables import Column, list_options, listing, table
from taskharbor.cli.target import ask, here
from taskharbor.cli.types import answer_options, limit_option
from taskharbor.core.durations import ago, count

STYLES = {"running": "yellow", "held": "bold red", "done": "green", "failed": "bold red", "cancelled": "dim"}
KNOWN_AS = {"inflight": "running"}


@click.group()
def workflows() -> None:
    """Look at workflows, cancel them, or replay what failed."""


@workflows.command("ls")
@limit_option(50, 1000)
@click.option("--after", metavar="ID", help="Continue after this workflow.")
@list_options
def list_workflows(limit: int, after: str | None, **options: Any) -> None:
    """List workflows, the latest first.

    A workflow is running, held (a step failed and others wait for its replay), done, failed or cancelled.
    """

    async def look(admin: Admin) -> list[Workflow]:
        behind = None if after is None else (await _named(admin, after)).id
        return await admin.workflows.alist(limit=limit + 1, after=behind)

    found, now = ask(look), here().now()
    columns: list[Column[Workflow]] = [
        Column("ID", lambda workflow: workflow.id, ids=True),
        Column("STATE", _state),
        Column("JOBS", lambda workflow: f"{workflow.jobs:,}", right=True, drop=1),
        Column("BY STATE", _counts, least=16, drop=2),
        Column("CREATED", lambda workflow: ago(workflow.created_at, now), drop=3),
    ]
    nothing = "No workflows yet." if after is None else "No more workflows."
    listing(found, columns, nothing, asdict, after=attrgetter("id"), limit=limit, **options)


async def _named(admin: Admin, id: str) -> Workflow:
    """The workflow with this id, or with an id of this ending."""
    return await admin.workflows.aget(await admin.workflows.aresolve(id))


def _state(workflow: Workflow) -> Cell:
    return Cell(workflow.state, STYLES.get(workflow.state, ""))


def _counts(workflow: Workflow) -> str:
    return ", ".join(f"{number:,} {KNOWN_AS.get(state, state)}" for state, number in workflow.counts.items())


@workflows.command("show")
@click.argument("id")
@limit_option(200, 10_000)
@list_options
def show_workflow(id: str, limit: int, as_json: bool, wide: bool) -> None:
    """Show the graph: each job, its state and what it waits for.

    Each job is listed with the jobs that it comes after.

    `1, 2; collect 3`: if 1 or 2 fails, it waits for their replay; if 3 fails, it receives a FailedStep. `cancel 4`: if
    4 fails, it is cancelled.
    """

    async def look(admin: Admin) -> tuple[Workflow, list[GraphNode]]:
        workflow = await _named(admin, id)
        return workflow, await admin.workflows.agraph(workflow.id)

    workflow, nodes = ask(look)
    if as_json:
        output.print_json({**asdict(workflow), "graph": [_node(node) for node in nodes]})
        return
    output.facts(
        [
            ("workflow", Cell(workflow.id, "bold")),
            ("state", _state(workflow)),
            ("to do", f"taskharbor workflows replay {quote(workflow.id)}" if workflow.state == "held" else None),
            ("jobs", f"{workflow.jobs:,}: {_counts(workflow)}"),
            ("created", output.exact(workflow.created_at, here().now())),
        ]
    )
    output.heading("Graph")
    _show_graph(nodes, limit, wide)


def _node(node: GraphNode) -> dict[str, object]:
    parents = [{"id": id, "policy": policy, "satisfied": satisfied} for id, policy, satisfied in node.parents]
    return {**asdict(node), "parents": parents}


def _show_graph(nodes: Sequence[GraphNode], limit: int, wide: bool) -> None:
    numbers = {node.id: number for number, node in enumerate(nodes, 1)}

    def edges(node: GraphNode, *, unmet: bool = False) -> str:
        parents = [parent for parent in node.parents if parent[0] in numbers and not (unmet and parent[2])]
        return _edges((numbers[id], policy) for id, policy, _ in parents)

    columns: list[Column[GraphNode]] = [
        Column("NO", lambda node: str(numbers[node.id]), right=True),
        Column("ID", lambda node: node.id, ids=True, drop=3),
        Column("TASK", lambda node: node.task, least=12, keep_end=True),
        Column("STATE", lambda node: output.state_cell(node.state)),
        Column("AFTER", edges, least=6, drop=1),
        Column("WAITS FOR", lambda node: Cell(edges(node, unmet=True), "yellow"), least=6, drop=4),
        Column("ERROR", _error, least=14, drop=2, weight=2),
    ]
    table(columns, nodes[:limit], wide=wide)
    if len(nodes) > limit:
        click.echo(f"The first {limit:,} of {len(nodes):,} jobs. All: --json, or --limit.", err=True)


def _error(node: GraphNode) -> Cell:
    return error_cell(node.error if node.state != "done" else None)


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
@answer_options
def cancel(id: str, as_json: bool) -> None:
    """Cancel the jobs of a workflow that have not ended.

    Running ones are asked to stop.
    """
    _act(id, as_json, "cancelled", "nothing of workflow {} is left to cancel", Workflows.acancel)


@workflows.command("replay")
@click.argument("id")
@answer_options
def replay(id: str, as_json: bool) -> None:
    """Run the dead and cancelled jobs of a workflow again."""
    _act(id, as_json, "replayed", "there is nothing to replay in workflow {}", Workflows.areplay)


def _act(
    id: str, as_json: bool, done: str, nothing: str, act: Callable[[Workflows, str], Awaitable[int | list[str]]]
) -> None:
    """Act on the jobs of a workflow; refused if there are none to act on."""

    async def look_and_act(admin: Admin) -> tuple[int | list[str], Workflow]:
        whole = (await _named(admin, id)).id
        return await act(admin.workflows, whole), await admin.workflows.aget(whole)

    changed, workflow = ask(look_and_act)
    jobs = count(changed if isinstance(changed, int) else len(changed), "job")
    if as_json:
        output.print_json({"id": workflow.id, done: changed, "state": workflow.state})
    elif changed:
        output.say(f"{done.capitalize()} {jobs} of workflow {workflow.id}.")
    if not changed:
        complain(f"{nothing.format(workflow.id)}: it is {workflow.state}")
        click.get_current_context().exit(BAD)
