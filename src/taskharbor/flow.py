"""Workflows: `chain`, `group`, `chord`, and `Graph` for everything else.

flow = chain(fetch.step(url), parse, store)
flow = chord(group(fetch.step(url) for url in urls), merge)
run = flow.enqueue()
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Protocol, TypeVar, cast, overload

from taskharbor.core.collecting import FailedStep
from taskharbor.errors import InvalidJob
from taskharbor.workflows.flow import After, Flow, FlowGroup, OnFailure, Then, WithPolicy, next_step
from taskharbor.workflows.graph import Graph
from taskharbor.workflows.step import Step

__all__ = ["FailedStep", "Flow", "Graph", "chain", "chord", "group"]

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
Taken = TypeVar("Taken", contravariant=True)
Given = TypeVar("Given", covariant=True)
Plain = Literal["hold", "cancel"]


class Takes(Protocol[Taken, Given]):
    """A task with exactly one required argument."""

    def step(self, given: Taken, /) -> Step[Given]: ...


Next = Takes[A, B] | Flow[B]  # a link of a chain: takes the A before it, or only waits for it


@overload
def chain(first: Flow[A], /, *, on_failure: Plain = ...) -> Flow[A]: ...
@overload
def chain(first: Flow[A], second: Next[A, B], /, *, on_failure: Plain = ...) -> Flow[B]: ...
@overload
def chain(first: Flow[A], second: Next[A, B], third: Next[B, C], /, *, on_failure: Plain = ...) -> Flow[C]: ...
@overload
def chain(
    first: Flow[A], second: Next[A, B], third: Next[B, C], fourth: Next[C, D], /, *, on_failure: Plain = ...
) -> Flow[D]: ...
@overload
def chain(
    first: Flow[A],
    second: Next[A, B],
    third: Next[B, C],
    fourth: Next[C, D],
    fifth: Next[D, E],
    /,
    *,
    on_failure: Plain = ...,
) -> Flow[E]: ...
@overload
def chain(
    first: Flow[A],
    second: Next[A, B],
    third: Next[B, C],
    fourth: Next[C, D],
    fifth: Next[D, E],
    sixth: Next[E, F],
    /,
    *rest: Any,
    on_failure: Plain = ...,
) -> Flow[Any]: ...
@overload
def chain(first: Flow[Any], /, *rest: Any, on_failure: Literal["collect"]) -> Flow[Any]: ...
def chain(first: Flow[Any], /, *rest: Any, on_failure: OnFailure = "hold") -> Flow[Any]:
    """Run in sequence: a step or flow, then tasks that take the previous result, or flows that do not.

    `on_failure` says what happens to the rest when a step fails that has no policy of its own.
    """
    flow: Flow[Any] = _checked(first)
    for each in rest:
        flow = _continued(_with_policy(flow, on_failure), each)
    return flow


@overload
def group(members: Iterable[Flow[T]], /) -> FlowGroup[T]: ...
@overload
def group(*members: Flow[T]) -> FlowGroup[T]: ...
def group(*members: Any) -> FlowGroup[Any]:
    """Run in parallel; the result is the list of results, in this order. An empty group is done at once, with []."""
    if len(members) == 1 and isinstance(members[0], Iterable):
        return FlowGroup(cast("Iterable[Flow[Any]]", members[0]))
    return FlowGroup(members)


@overload
def chord(members: Flow[A], finalizer: Takes[A, B], /, *, on_failure: Plain = ...) -> Flow[B]: ...
@overload
def chord(
    members: Flow[list[T]], finalizer: Takes[list[T | FailedStep], B], /, *, on_failure: Literal["collect"]
) -> Flow[B]: ...
def chord(members: Flow[Any], finalizer: Takes[Any, B], /, *, on_failure: OnFailure = "hold") -> Flow[B]:
    """A group, then a task that takes the list of its results; with `collect`, the list may contain FailedSteps."""
    return _continued(_with_policy(_checked(members), on_failure), finalizer)


def _with_policy(flow: Flow[Any], policy: OnFailure) -> Flow[Any]:
    return flow if policy == "hold" else WithPolicy(flow, policy)


def _continued(before: Flow[Any], following: Any) -> Flow[Any]:
    flow: Flow[Any] = following
    return After(before, flow) if isinstance(following, Flow) else Then(before, next_step(before, following, (), {}))


def _checked(flow: Flow[T]) -> Flow[T]:
    if isinstance(flow, list | tuple):
        raise InvalidJob("a flow begins with a step or another flow, not with a list: wrap it, group([…])")
    if not isinstance(flow, Flow):
        raise InvalidJob(f"a flow begins with a step such as task.step(…), or another flow, not with {flow!r}")
    return flow
