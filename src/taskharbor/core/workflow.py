"""Workflows as jobs that wait for each other: the layout of steps and edges, as pure values (K1, K4).

Steps are opaque here. A layout grows forwards, so a step only waits for earlier ones and cycles are impossible. Where
many steps would each wait for many, a join step is put between them, so that there are about as many edges as steps.
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

# A value for each step of a result, nested like the result.
Nested = Union[T, tuple["Nested[T]", ...]]  # noqa: UP007 (a generic alias that names itself)
# How a step's argument is built from the results of its parents, in order: 0 is a single result, n is a list of n
# results, and a list holds the shape of each part.
Shape = int | list["Shape"]
# The position of a step's result in the workflow's result: (index, length) pairs from the outermost list inwards.
Path = list[tuple[int, int]]


class Edge(Struct, frozen=True, gc=False):
    """An earlier step to wait for, and the policy for its failure; None if unspecified."""

    parent: int
    policy: str | None = None


# The steps of a result, as the next step waits for them.
Outs = Nested[Edge]


class Laid(Struct, Generic[S], frozen=True):
    """A step with its dependencies; `takes` is None if it does not use its parents' results."""

    step: S
    edges: tuple[Edge, ...]
    takes: Shape | None


class Layout(Generic[S]):
    """The steps of a workflow, each after the steps it waits for."""

    def __init__(self) -> None:
        self.laid: list[Laid[S]] = []

    def add(self, step: S, edges: Iterable[Edge] = (), takes: Shape | None = None) -> int:
        """Add a step and return its index."""
        self.laid.append(Laid(step, tuple(edges), takes))
        return len(self.laid) - 1


def flat(nested: Nested[T]) -> Iterator[T]:
    """The values flattened, in order."""
    if isinstance(nested, tuple):
        for part in cast("tuple[Nested[T], ...]", nested):
            yield from flat(part)
    else:
        yield nested


def with_default_policy(outs: Outs, policy: str) -> Outs:
    """The same steps, with this policy where none was specified (K4)."""
    return mapped(outs, lambda edge: Edge(edge.parent, policy) if edge.policy is None else edge)


def policies(laid: Sequence[Laid[Any]]) -> list[tuple[str, ...]]:
    """For each step, the failure policy of each of its dependencies.

    The default is `hold`, but `cancel` after a step that a failure cancels: then the rest is cancelled too (K4).
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
    """The failure policy of a join step that waits for all of these on behalf of others (K4).

    It cancels if one of these would, and collects only if all of these do.
    """
    policies = {edge.policy for edge in edges}
    if "cancel" in policies:
        return "cancel"
    return policies.pop() if len(policies) == 1 else None


def shape(outs: Nested[Any]) -> Shape:
    """The shape of the combined results of these steps."""
    if not isinstance(outs, tuple):
        return 0
    shapes = [shape(out) for out in cast("tuple[Nested[Any], ...]", outs)]
    return len(shapes) if shapes and all(part == 0 for part in shapes) else shapes


def paths(nested: Nested[T]) -> Iterator[tuple[T, Path]]:
    """The position of each value in the whole."""
    if isinstance(nested, tuple):
        parts = cast("tuple[Nested[T], ...]", nested)
        for place, part in enumerate(parts):
            for value, path in paths(part):
                yield value, [(place, len(parts)), *path]
    else:
        yield nested, []


def assembled(places: Iterable[tuple[Path, T]]) -> Nested[T]:
    """The values nested by their paths; a list without any value is empty."""
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
    """The same nesting, with each value mapped."""
    if isinstance(nested, tuple):
        return tuple(mapped(part, change) for part in cast("tuple[Nested[T], ...]", nested))
    return change(nested)


class Standing(StrEnum):
    """The state of a workflow."""

    RUNNING = "running"
    HELD = "held"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


def standing(states: Mapping[State, int], results: Iterable[State] | None = None) -> Standing | None:
    """The workflow's state from the states of all its jobs and, if those do not decide, of the jobs of its result.

    None if the latter are needed. It is held if jobs wait and nothing can release them: one has failed.
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
