"""The effect of a failure on the next step: where the policy is set, and what the step receives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from taskharbor import FailedStep, Graph, chain, chord, group
from taskharbor.errors import InvalidJob, WrongArguments
from world import virtual

from .test_flows import Sums


async def policies(w: Sums, flow: Any) -> list[list[str]]:
    """The policies of the edges of each job."""
    run = await flow.aenqueue()
    return [[policy for _, policy, _ in node.parents] for node in await w.harbor.admin.workflows.agraph(run.id)]


@virtual
async def test_a_members_own_policy_is_kept() -> None:
    """K4: regression: it was ignored in a group; the policy of the whole applies to steps without one."""
    w = Sums()
    a, b = w.number.step(1), w.number.step(2)
    some = group(a.on_failure("collect"), b)
    expected = {
        some.then(w.note): ["collect", "hold"],
        some.on_failure("cancel").then(w.note): ["collect", "cancel"],
        chain(some, w.note, on_failure="cancel"): ["collect", "cancel"],
        chord(some, w.note, on_failure="cancel"): ["collect", "cancel"],
        group(a, b).on_failure("collect").then(w.note): ["collect", "collect"],
        group(some.on_failure("cancel"), b).then(w.note): ["collect", "cancel", "hold"],
        group(group(b, some), b).on_failure("cancel").then(w.note): ["cancel", "collect", "cancel", "cancel"],
        group(a.on_failure("hold"), b).on_failure("cancel").then(w.note): ["hold", "cancel"],
    }
    for flow, edges in expected.items():
        assert (await policies(w, flow))[-1] == edges


@virtual
async def test_a_chain_says_it_for_all_its_own_edges() -> None:
    """K4: and behind one that a failure cancels, the rest is cancelled, unless another policy was set."""
    w = Sums()
    number, note = w.number.step(1), w.note.step(1)
    cancelling = chain(number, w.note, w.note, on_failure="cancel")
    assert await policies(w, cancelling) == [[], ["cancel"], ["cancel"]]
    assert await policies(w, chain(cancelling, w.note, w.note)) == [[], *[["cancel"]] * 4]
    held = cancelling.then(w.note).on_failure("hold").then(w.note)
    assert (await policies(w, held))[-2:] == [["cancel"], ["hold"]]
    assert await policies(w, chain(number.on_failure("collect"), w.note, w.note, on_failure="cancel")) == [
        [],
        ["collect"],
        ["cancel"],
    ]
    inside = group(chain(number, group()), note).on_failure("collect").then(w.note)
    assert (await policies(w, inside))[-1] == ["collect", "hold"]


@pytest.mark.parametrize(
    ("said", "between", "behind"),
    [
        ((None, None), ["hold", "hold"], "hold"),
        (("collect", "collect"), ["collect", "collect"], "collect"),
        (("collect", None), ["collect", "hold"], "hold"),
        (("collect", "cancel"), ["collect", "cancel"], "cancel"),
    ],
)
@virtual
async def test_a_step_between_many_and_many_passes_the_policies_on(said: Any, between: list[str], behind: str) -> None:
    """K4: it waits for each by its policy, and releases nothing by itself."""
    w = Sums()
    step = w.number.step(1)
    first = group([step if policy is None else step.on_failure(policy) for policy in said])
    found = await policies(w, chain(first, group(step, step)))
    assert found == [[], [], between, [behind], [behind]]


@virtual
async def test_a_graph_keeps_the_policies_of_its_nodes() -> None:
    """K4: unless `after` comes with a policy for all; also if the whole graph is a part of something."""
    w = Sums()
    graph = Graph()
    a, b = graph.add(w.number.step(1).on_failure("collect")), graph.add(w.number.step(2))
    graph.add(w.note.step(1), after=[a, b])
    graph.add(w.note.step(2), after=[a, b], on_failure="cancel")
    graph.add(group(a, b).then(w.note))
    graph.add(group(a, b).on_failure("cancel").then(w.note))
    graph.add(group(w.number.step(3), w.number.step(4).on_failure("cancel")))
    found = await policies(w, graph.then(w.note))
    assert found[2:6] == [["collect", "hold"], ["cancel", "cancel"], ["collect", "hold"], ["collect", "cancel"]]
    assert found[-1] == ["hold", "cancel"] * 3
    anything: Any = graph
    with pytest.raises(InvalidJob, match="on_failure is hold, cancel or collect, not 'colect'"):
        anything.add(w.number.step(1), on_failure="colect")


@virtual
async def test_one_member_is_collected_and_another_held() -> None:
    """K4: in one group."""
    w = Sums()
    both = group(w.die.step(1).on_failure("collect"), w.number.step(2)).then(w.note)
    failed, two = await w.result(both)
    assert (failed["error"], two) == ("ValueError: 1 is bad", 2)
    run = await group(w.number.step(2).on_failure("collect"), w.die.step(1)).then(w.note).aenqueue()
    await w.drain()
    assert await run.astate() == "held"


@dataclass
class Report:
    """A result that is an object."""

    day: date
    pages: int


@virtual
async def test_objects_are_collected_beside_failures() -> None:
    """K4, P3: regression: msgspec reads no union of two kinds of objects, and the task was refused."""
    w = Sums()
    day = date(2026, 1, 2)
    seen: list[Any] = []

    @w.harbor.task(max_attempts=1)
    async def report(pages: int) -> Report:
        if pages < 0:
            raise ValueError("no such report")
        return Report(day, pages)

    @w.harbor.task
    async def merge(reports: list[Report | FailedStep]) -> int:
        seen.append(reports)
        return sum(each.pages for each in reports if isinstance(each, Report))

    @w.harbor.task
    async def merge_all(reports: list[list[Report | FailedStep]]) -> list[Report | FailedStep]:
        return [each for inner in reports for each in inner]

    members = group(report.step(1), report.step(-1), report.step(3)).on_failure("collect")
    assert await w.result(members.then(merge)) == 4
    first, failed, last = seen[0]
    assert (first, last) == (Report(day, 1), Report(day, 3))
    assert isinstance(failed, FailedStep)
    assert (failed.state, failed.error) == ("dlq", "ValueError: no such report")
    one, dead, *_ = await w.result(group(members, members).then(merge_all))
    assert (one, type(dead)) == (Report(day, 1), FailedStep)


@virtual
async def test_what_is_collected_has_to_fit() -> None:
    """K3, K4: neither the result nor a FailedStep can be read as something else."""
    w = Sums()
    anything: Any = w
    with pytest.raises(InvalidJob, match=r"takes word: str, but the step before it gives .*int.*FailedStep"):
        w.number.step(1).on_failure("collect").then(anything.tell)
    with pytest.raises(InvalidJob, match=r"takes word: str, but the step before it gives .*list.*FailedStep"):
        chord(group(w.number.step(1)), anything.tell, on_failure="collect")
    assert w.is_empty()


@virtual
async def test_what_is_collected_at_the_end_is_a_part_of_the_result() -> None:
    """K4: as its type says, for every caller; the workflow is done."""
    w = Sums()
    members = group(w.number.step(1), w.die.step(7)).on_failure("collect")
    run = await members.using(idempotency_key="k").aenqueue()
    again = await members.using(idempotency_key="k").aenqueue()
    await w.drain()
    one, failed = await run.aresult()
    assert isinstance(failed, FailedStep)
    assert (one, failed.state, failed.error) == (1, "dlq", "ValueError: 7 is bad")
    assert await again.aresult() == await w.harbor.workflow(run.id).aresult() == [one, failed]
    assert await run.astate() == "done"


@virtual
async def test_a_cancelled_run_is_cancelled_whatever_is_collected() -> None:
    """K4, K5: its result says of each that it was."""
    w = Sums()
    run = await group(w.number.using(delay=5).step(1)).on_failure("collect").aenqueue()
    assert await run.acancel() == 1
    assert await run.astate() == "cancelled"
    assert [part.state for part in await run.aresult() if isinstance(part, FailedStep)] == ["cancelled"]


@pytest.mark.parametrize("taken", [int, list[int], "Report"])
def test_a_task_that_cannot_take_failures_is_refused_at_once(taken: Any) -> None:
    """K3, K4: when the flow is built, not when one has failed; in every way to say it."""
    w = Sums()
    kind = Report if taken == "Report" else taken

    async def give() -> Any: ...
    async def take(given: Any) -> None: ...

    give.__annotations__["return"], take.__annotations__["given"] = kind, kind
    giving, taking = w.harbor.task(name="give")(give), w.harbor.task(name="take")(take)
    alone: list[Callable[[], object]] = [
        lambda: giving.step().on_failure("collect").then(taking),
        lambda: chain(giving.step(), taking, on_failure="collect"),
    ]
    for build in alone:
        with pytest.raises(WrongArguments, match=r"take takes given: .*but the step before it gives .*FailedStep"):
            build()
    several = w.harbor.task(name="several")(take_list(kind))
    for build in (
        lambda: group(giving.step()).on_failure("collect").then(several),
        lambda: group(giving.step(), giving.step().on_failure("collect")).then(several),
        lambda: chord(group(giving.step()), several, on_failure="collect"),
        lambda: Graph().add(group(giving.step())).on_failure("collect").then(several),
    ):
        with pytest.raises(WrongArguments, match="FailedStep"):
            build()


def take_list(kind: Any) -> Any:
    """A handler that takes a list of these, and nothing else."""

    async def several(given: Any) -> None: ...

    several.__annotations__["given"] = list[kind]
    return several


def test_mistakes_are_reported_with_the_fix() -> None:
    """P5: what people write at first."""
    w = Sums()
    graph: Any = Graph()
    node = graph.add(w.number.step(1))
    graph.add(w.number.step(2), after=node)
    anything: Any = chord
    takes_nothing = w.harbor.task(name="nothing")(nothing)
    mistakes: dict[str, Callable[[], object]] = {
        "a graph is made of steps and flows": lambda: graph.add(w.number),
        "on_failure= is about the nodes in after=": lambda: graph.add(w.number.step(1), on_failure="cancel"),
        r"not with a list: wrap it, group\(": lambda: anything([w.number.step(1)], w.total),
        "or put its step": lambda: anything(w.number.step(1), takes_nothing),
    }
    for match, build in mistakes.items():
        with pytest.raises(InvalidJob, match=match):
            build()


async def nothing() -> None:
    """Takes nothing."""
