"""Flows laid out: long ones, odd ones, and what their jobs say about the whole."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from taskharbor import Flow, Graph, Step, chain, group
from taskharbor.core.wiring import wiring_of
from taskharbor.errors import InvalidJob
from taskharbor.workflows.flow import planned
from world import virtual

from .test_flows import Sums

MANY = 20_000


def laid(flow: Flow[Any]) -> int:
    """How many jobs a flow is."""
    return len(planned(flow, {}).laid)


@virtual
async def test_a_chain_has_no_longest_length() -> None:
    """K1: regression: of flows, or with a policy, one of 500 was a RecursionError."""
    w = Sums()
    step, tell = w.number.step(1), w.tell.step("x")
    assert laid(chain(step, *[tell] * MANY)) == MANY + 1
    assert laid(chain(step, *[w.note] * MANY, on_failure="collect")) == MANY + 1
    assert laid(chain(step, *[group(step, step), w.total] * (MANY // 2), on_failure="cancel")) == MANY * 3 // 2 + 1
    behind: Flow[Any] = step
    for _ in range(MANY):
        behind = chain(tell, behind)
    assert laid(behind) == MANY + 1
    assert laid(chain(group(step, step), chain(*[group()] * MANY, group(step, step)))) == 5


@virtual
async def test_a_long_chain_with_a_policy_is_run() -> None:
    """K1, K4: tasks, flows, and what is between them."""
    w = Sums()
    flow = chain(w.number.step(0), *[w.add, w.note, w.tell.step("x"), w.number.step(1)] * 300, on_failure="cancel")
    assert await w.result(flow) == 1
    assert w.seen == [1, "x"] + [2, "x"] * 299


@virtual
async def test_how_many_jobs_a_result_is_made_of_is_written_down() -> None:
    """K3, I3: on each of them, so that one that is gone is missed; on the last job if there are none."""
    w = Sums()
    step, graph = w.number.step(1), Graph()
    graph.add(step, after=[graph.add(step)])
    graph.add(step)
    expected: list[tuple[Flow[Any], list[int | None]]] = [
        (step, [1]),
        (chain(step, w.add, w.add), [None, None, 1]),
        (group(step, step, step), [3, 3, 3]),
        (group(step, group(step, group()), step.then(w.add)), [3, 3, None, 3]),
        (chain(group(step, step), group(step, step)), [None, None, None, 2, 2]),
        (chain(step, group()), [0]),
        (chain(group(step, step), group(group(), group())), [None, 0]),
        (graph, [None, 2, 2]),
    ]
    for flow, outs in expected:
        await flow.aenqueue()
        jobs = w.log.calls("enqueue")[-1]["groups"][0].jobs
        assert [wiring_of(job.payload).outs for job in jobs] == outs


@virtual
async def test_types_without_a_hash_can_be_in_a_group() -> None:
    """K3: regression: they were a TypeError; what is known of them is still checked."""
    w = Sums()
    anything: Any = w

    @w.harbor.task
    async def odd(n: int = 1) -> Annotated[int, {"unit": "m"}]:
        return n

    @w.harbor.task
    async def tall(n: Annotated[int, {"unit": "m"}] = 3) -> int:
        return n

    assert await w.result(group(odd.step(1), odd.step(2)).then(w.total)) == 3
    assert await w.result(group(odd.step(1), w.number.step(2), tall.step()).then(w.total)) == 6
    assert await w.result(odd.step(4).on_failure("collect").then(w.note)) == 4
    with pytest.raises(InvalidJob, match="takes word: str, but the step before it gives"):
        group(odd.step(1), odd.step(2)).then(anything.tell)


@virtual
async def test_a_group_of_several_kinds_is_checked() -> None:
    """K3: one of them has to fit; of many kinds nothing is known."""
    w = Sums()
    anything: Any = w
    mixed: Any = group([w.number.step(1), w.die.step(), w.tell.step("x")])
    with pytest.raises(InvalidJob, match=r"takes parts: list\[int\], but the step before it gives list\[list\[.*"):
        group(mixed, mixed).then(anything.total)

    def nested(depth: int) -> Any:
        return group(nested(depth - 1)) if depth else w.number.step(1)

    group([nested(depth) for depth in range(8, 20)]).then(anything.total)


def test_a_flow_is_something_that_can_be_laid() -> None:
    """P: a type to annotate with; a step is as small as it can be."""
    anything: Any = Flow
    with pytest.raises(TypeError, match="abstract"):
        anything()
    assert not hasattr(Sums().number.step(1), "__dict__")
    assert issubclass(Step, Flow)
