"""Workflows laid out: nests, shapes, places, and how a whole is doing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.core.states import State
from taskharbor.core.workflow import (
    Edge,
    Layout,
    Nested,
    Shape,
    Standing,
    assembled,
    flat,
    joint,
    mapped,
    paths,
    policies,
    shape,
    standing,
    with_default_policy,
)

nests: st.SearchStrategy[Any] = st.recursive(st.just(0), lambda inner: st.lists(inner, max_size=4).map(tuple))


def numbered(nest: Nested[int]) -> Nested[int]:
    """The same nest with a number of its own for each value."""
    numbers = iter(range(10_000))
    return mapped(nest, lambda _: next(numbers))


def test_behind_what_a_failure_cancels_the_rest_is_cancelled() -> None:
    """K4: unless another policy was given; the default is hold."""
    layout: Layout[str] = Layout()
    for edges in [], [Edge(0)], [Edge(0, "cancel")], [Edge(1), Edge(2)], [Edge(3)], [Edge(4, "hold")], [Edge(5)]:
        layout.add("", edges)
    assert policies(layout.laid) == [
        (), ("hold",), ("cancel",), ("hold", "cancel"), ("cancel",), ("hold",), ("hold",)
    ]  # fmt: skip


def test_a_layout_gives_steps_their_numbers() -> None:
    """K1: in the order in which they are laid, so no step can wait for a later one."""
    layout: Layout[str] = Layout()
    first = layout.add("a")
    second = layout.add("b", [Edge(first, "hold")], 0)
    assert (first, second) == (0, 1)
    assert [(laid.step, laid.edges, laid.takes) for laid in layout.laid] == [
        ("a", (), None),
        ("b", (Edge(0, "hold"),), 0),
    ]


def test_a_policy_is_for_steps_that_have_none() -> None:
    """K4: the innermost wins."""
    outs = (Edge(0), (Edge(1, "collect"), Edge(2)))
    cancelling = (Edge(0, "cancel"), (Edge(1, "collect"), Edge(2, "cancel")))
    assert with_default_policy(outs, "cancel") == cancelling
    assert with_default_policy(cancelling, "collect") == cancelling
    assert with_default_policy(Edge(5), "collect") == Edge(5, "collect")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([None, None], None),
        (["hold", None], None),
        (["collect", "collect"], "collect"),
        (["collect", None], None),
        (["collect", "hold"], None),
        (["collect", "cancel", None], "cancel"),
    ],
)
def test_a_step_between_others_fails_as_the_strictest(asked: list[str | None], expected: str | None) -> None:
    """K4: no step runs after it that would not have run without it."""
    assert joint([Edge(number, policy) for number, policy in enumerate(asked)]) == expected


@pytest.mark.parametrize(
    ("outs", "expected"),
    [
        (5, 0),
        ((), []),
        ((5,), 1),
        ((5, 6, 7), 3),
        ((5, (6, 7)), [0, 2]),
        (((5,), ()), [1, []]),
        ((((5,),),), [[1]]),
    ],
)
def test_shapes_are_short(outs: Nested[int], expected: Shape) -> None:
    """K2, K3: ten thousand results in a list are one number."""
    assert shape(outs) == expected


@given(nests)
def test_a_result_is_put_together_from_the_places_of_its_parts(nest: Nested[int]) -> None:
    """K3: places alone say how results are nested, but for lists that have nothing in them anywhere."""
    outs = numbered(nest)
    places = list(paths(outs))
    assert [number for number, _ in places] == list(flat(outs))
    again = assembled([(path, number) for number, path in reversed(places)])
    assert list(flat(again)) == list(flat(outs))
    assert mapped(again, str) == mapped(assembled([(path, number) for number, path in places]), str)
    if all(flat_part for flat_part in _lists(outs)):
        assert again == outs


def _lists(nest: Nested[int]) -> list[list[int]]:
    if not isinstance(nest, tuple):
        return []
    whole: Nested[int] = nest
    return [list(flat(whole)), *(found for part in nest for found in _lists(part))]


def test_empty_lists_beside_results_are_kept() -> None:
    """K3: a place among three says that there are three."""
    outs = (1, (), (2, ()))
    assert assembled([(path, number) for number, path in paths(outs)]) == outs
    assert assembled([]) == ()


READY, WAITING, INFLIGHT, DONE, DLQ, CANCELLED = State


@pytest.mark.parametrize(
    ("states", "results", "expected"),
    [
        ({READY: 1, DLQ: 1}, None, Standing.RUNNING),
        ({INFLIGHT: 1, WAITING: 5}, None, Standing.RUNNING),
        ({WAITING: 1, DLQ: 1, DONE: 3}, None, Standing.HELD),
        ({DONE: 3}, None, Standing.DONE),
        ({DONE: 3, DLQ: 1}, None, None),
        ({DONE: 3, DLQ: 1}, [DONE], Standing.DONE),
        ({DONE: 3, DLQ: 1}, [], Standing.FAILED),
        ({CANCELLED: 1}, [], Standing.CANCELLED),
        ({DONE: 3, DLQ: 1}, [DONE, DLQ], Standing.FAILED),
        ({DONE: 3, DLQ: 1, CANCELLED: 1}, [CANCELLED], Standing.FAILED),
        ({DONE: 3, CANCELLED: 1}, [DONE, CANCELLED], Standing.CANCELLED),
    ],
)
def test_the_states_of_jobs_say_how_a_workflow_is_doing(
    states: dict[State, int], results: list[State] | None, expected: Standing | None
) -> None:
    """K4, K5: it is held if something waits and nothing is left that could release it."""
    assert standing(states, results) is expected
