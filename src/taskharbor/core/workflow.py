"""Workflows as jobs that wait for each other: steps laid out with their edges, pure and once and for all (K1, K4).

What a step is, the caller knows. A layout grows from its beginnings on, so a step only ever waits for earlier ones and
no circle can be spelled. Where many would each wait for many, one more step is put between: edges stay about as many as
steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Generic, TypeVar, Union, cast

from msgspec import Struct

from taskharbor.core.states import CANCELLED, DLQ, DONE, INFLIGHT, READY, WAITING, State

S = TypeVar("S")
T = TypeVar("T")
V = TypeVar("V")

# Something for each step that a result is made of, nested as that is.
Nested = Union[T, tuple["Nested[T]", ...]]  # noqa: UP007 (a generic alias that names itself)
# How a step's argument is put together from the results of its parents, in order: 0 is one result as it is, a number n
# a list of n results, a list its parts each by its own shape.
Shape = int | list["Shape"]
# Where in the result of the whole a step's result belongs: a place among so many, from the outermost list inwards.
Path = list[tuple[int, int]]


class Edge(Struct, frozen=True, gc=False):
    """An earlier step to wait for, and what its failure means; None if nothing was said about that."""

    parent: int
    policy: str | None = None


# The steps that a result is made of, as whoever comes next waits for them.
Outs = Nested[Edge]


class Laid(Struct, Generic[S], frozen=True):
    """A step in its place; `takes` is None if it makes no use of its parents' results."""

    step: S
    edges: tuple[Edge, ...]
    takes: Shape | None


class Layout(Generic[S]):
    """The steps of a workflow, each after those that it waits for."""

    def __init__(self) -> None:
        self.laid: list[Laid[S]] = []

    def add(self, step: S, edges: Iterable[Edge] = (), takes: Shape | None = None) -> int:
        """Lay a step; its number."""
        self.laid.append(Laid(step, tuple(edges), takes))
        return len(self.laid) - 1


def flat(nested: Nested[T]) -> Iterator[T]:
    """The values without their nests, in order."""
    if isinstance(nested, tuple):
        for part in cast("tuple[Nested[T], ...]", nested):
            yield from flat(part)
    else:
        yield nested


def said(outs: Outs, policy: str) -> Outs:
    """The same, with this policy for those about which nothing was said yet (K4)."""
    return mapped(outs, lambda edge: Edge(edge.parent, policy) if edge.policy is None else edge)


def policies(laid: Sequence[Laid[Any]]) -> list[tuple[str, ...]]:
    """For each step, what the failure of each that it waits for means.

    What nobody said is `hold`, but behind a step that a failure cancels `cancel`: then the rest is cancelled, too (K4).
    """
    cancelled: set[int] = set()
    found: list[tuple[str, ...]] = []
    for number, each in enumerate(laid):
        own = tuple(edge.policy or ("cancel" if edge.parent in cancelled else "hold") for edge in each.edges)
        if "cancel" in own:
            cancelled.add(number)
        found.append(own)
    return found


def joint(edges: Iterable[Edge]) -> str | None:
    """What the failure of one step means that waits for all of these in the place of others (K4).

    It cancels those if one of these would, and is collected only if all of these are.
    """
    policies = {edge.policy for edge in edges}
    if "cancel" in policies:
        return "cancel"
    return policies.pop() if len(policies) == 1 else None


def shape(outs: Nested[Any]) -> Shape:
    """How the results of these steps are put together."""
    if not isinstance(outs, tuple):
        return 0
    shapes = [shape(out) for out in cast("tuple[Nested[Any], ...]", outs)]
    return len(shapes) if shapes and all(part == 0 for part in shapes) else shapes


def paths(nested: Nested[T]) -> Iterator[tuple[T, Path]]:
    """The place of each value in the whole."""
    if isinstance(nested, tuple):
        parts = cast("tuple[Nested[T], ...]", nested)
        for place, part in enumerate(parts):
            for value, path in paths(part):
                yield value, [(place, len(parts)), *path]
    else:
        yield nested, []


def assembled(places: Iterable[tuple[Path, T]]) -> Nested[T]:
    """The values nested by their paths; what has no value anywhere inside is an empty list."""
    whole: list[Any] = [[]]
    for path, value in places:
        inside, place = whole, 0
        for index, total in path:
            if not inside[place]:
                inside[place] = [[] for _ in range(total)]
            inside, place = inside[place], index
        inside[place] = value
    nested: Nested[T] = _frozen(whole[0])
    return nested


def _frozen(nested: Any) -> Any:
    parts: list[Any] = nested
    return tuple(map(_frozen, parts)) if isinstance(nested, list) else nested


def mapped(nested: Nested[T], change: Callable[[T], V]) -> Nested[V]:
    """Nested alike, with each value changed."""
    if isinstance(nested, tuple):
        return tuple(mapped(part, change) for part in cast("tuple[Nested[T], ...]", nested))
    return change(nested)


class Standing(StrEnum):
    """How a workflow is doing."""

    RUNNING = "running"
    HELD = "held"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


def standing(states: Mapping[State, int], results: Iterable[State] | None = None) -> Standing | None:
    """What the states of all its jobs say, and if those do not decide, the states of the ones its result is made of.

    None if those are needed. It is held if jobs wait and nothing is left that could release them: one has failed.
    """
    if states.get(READY) or states.get(INFLIGHT):
        return Standing.RUNNING
    if states.get(WAITING):
        return Standing.HELD
    if not states.get(DLQ) and not states.get(CANCELLED):
        return Standing.DONE
    if results is None:
        return None
    found = list(results)
    if found and all(state is DONE for state in found):
        return Standing.DONE
    return Standing.FAILED if states.get(DLQ) else Standing.CANCELLED
