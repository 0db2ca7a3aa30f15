"""Flows: values that describe steps which wait for each other. A flow lays its steps out (`core.workflow`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, Unpack, overload

from msgspec import Struct

from taskharbor.client.job_builder import Call
from taskharbor.client.options import checked
from taskharbor.client.other_names import FLOW_NAMES, hinting
from taskharbor.core.collecting import FailedStep, collected, one_of
from taskharbor.core.workflow import Edge, Layout, Outs, flat, joint, shape, with_default_policy
from taskharbor.errors import InvalidJob
from taskharbor.workflows.plan import Edges, FlowOptions, Plan, Steps
from taskharbor.workflows.run import Run

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
R2 = TypeVar("R2")
M = TypeVar("M")
OnFailure = Literal["hold", "cancel", "collect"]
NOTHING: Edges = ()
MOST_KINDS = 8


class Flow(ABC, Generic[R]):
    """Work whose result will be an R: one step, or several that wait for each other."""

    __slots__ = ()

    @abstractmethod
    def lay(self, layout: Steps, wait: Edges) -> tuple[Outs, Edges]:
        """Lay the steps out; the first ones wait for `wait`.

        Returns the steps that the result is made of, and what the next step has to wait for beside them.
        """

    @property
    @abstractmethod
    def beginnings(self) -> int:
        """The number of first steps: those that wait for no other step of the flow."""

    @abstractmethod
    def gives(self, *, collects: bool = False) -> Any:
        """The type of the result, as far as annotations tell.

        If it `collects`, failures without a policy of their own are part of the result.
        """

    @overload
    def then(
        self, task: Callable[Concatenate[R, P], Coroutine[Any, Any, R2]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Then[R2]: ...
    @overload
    def then(self, task: Callable[Concatenate[R, P], R2], /, *args: P.args, **kwargs: P.kwargs) -> Then[R2]: ...
    def then(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Then[Any]:
        """Continue with a task that takes the result as its first argument; the other arguments are given here."""
        return Then(self, next_step(self, task, args, kwargs))

    def using(self, **options: Unpack[FlowOptions]) -> Ready[R]:
        """This flow with options for the whole workflow: idempotency_key, idempotency_ttl, tx."""
        if unknown := sorted(options.keys() - FlowOptions.__annotations__.keys()):
            known = ", ".join(FlowOptions.__annotations__)
            hint = "Options of a single step go into task.using(…).step(…)"
            raise InvalidJob(f"unknown option {unknown[0]!r} of a flow; there is {known}. {hint}")
        checked(options)
        return Ready(self, options)

    async def aenqueue(self) -> Run[R]:
        """Store all of its steps or none. Returns after the commit."""
        return await Ready(self, {}).aenqueue()

    def enqueue(self) -> Run[R]:
        """The blocking twin of `aenqueue`."""
        return Ready(self, {}).enqueue()


class Ready(Struct, Generic[R], frozen=True, eq=False):
    """A flow with options, ready to be enqueued."""

    flow: Flow[R]
    options: FlowOptions

    async def aenqueue(self) -> Run[R]:
        """Store all of its steps or none. Returns after the commit."""
        plan = planned(self.flow, self.options)
        return plan.nothing() if plan.client is None else await plan.client.submit(plan)

    def enqueue(self) -> Run[R]:
        """The blocking twin of `aenqueue`. With `tx=`, it uses that in the calling thread."""
        plan = planned(self.flow, self.options)
        return plan.nothing() if plan.client is None else plan.client.submit_blocking("aenqueue", plan)


class Single(Flow[R]):
    """A flow that ends in one step."""

    __slots__ = ()

    @overload
    def on_failure(self, policy: Literal["collect"], /) -> Flow[R | FailedStep]: ...
    @overload
    def on_failure(self, policy: Literal["hold", "cancel"], /) -> Flow[R]: ...
    def on_failure(self, policy: OnFailure, /) -> Flow[Any]:
        """On a failure, dependants wait for a replay (`hold`), are cancelled, or receive a FailedStep (`collect`)."""
        return WithPolicy(self, policy)


class FlowGroup(Flow[list[M]]):
    """Flows that run in parallel; the result is the list of their results, in their order."""

    if not TYPE_CHECKING:
        __getattr__ = hinting(FLOW_NAMES, lambda _: "flow")

    def __init__(self, members: Iterable[Flow[M]]) -> None:
        self.members = tuple(members)
        if not all(issubclass(kind, Flow) for kind in set(map(type, self.members))):
            odd = next(member for member in self.members if not isinstance(member, Flow))
            raise InvalidJob(f"a group is made of steps and flows such as task.step(…), not of {odd!r}")

    @overload
    def on_failure(self, policy: Literal["collect"], /) -> Flow[list[M | FailedStep]]: ...
    @overload
    def on_failure(self, policy: Literal["hold", "cancel"], /) -> Flow[list[M]]: ...
    def on_failure(self, policy: OnFailure, /) -> Flow[Any]:
        """On failures, dependants wait for a replay (`hold`), are cancelled, or receive FailedSteps (`collect`)."""
        return WithPolicy(self, policy)

    def lay(self, layout: Steps, wait: Edges) -> tuple[Outs, Edges]:
        laid = [member.lay(layout, wait) for member in self.members]
        left = [edge for _, edges in laid for edge in edges] if laid else wait
        return tuple(outs for outs, _ in laid), list(dict.fromkeys(left))

    @property
    def beginnings(self) -> int:
        return sum(member.beginnings for member in self.members)

    def gives(self, *, collects: bool = False) -> Any:
        return _list_of(member.gives(collects=collects) for member in self.members)


def _list_of(types: Iterable[Any]) -> Any:
    kinds: list[Any] = []  # not a set: types may have no hash
    for kind in types:
        if kind not in kinds:
            kinds.append(kind)
        if len(kinds) > MOST_KINDS:
            break
    return list[one_of(kinds)] if 0 < len(kinds) <= MOST_KINDS else list[Any]  # type: ignore[misc]


class Continued(Flow[R]):
    """A flow that continues another one: `before`."""

    before: Flow[Any]
    following: Flow[Any] | None = None  # laid out after it
    opens = 0  # the number of its own first steps if `before` has none

    if not TYPE_CHECKING:
        __getattr__ = hinting(FLOW_NAMES, lambda _: "flow")

    @abstractmethod
    def go_on(self, layout: Steps, outs: Outs, left: Edges) -> tuple[Outs, Edges]:
        """The same as `lay`, given the outs of `before` and what is left to wait for."""

    def lay(self, layout: Steps, wait: Edges) -> tuple[Outs, Edges]:
        first, line = unrolled(self)  # a loop: a long chain would exceed Python's limit for recursion
        outs, left = first.lay(layout, wait)
        while line:
            link = line.pop()
            outs, left = link.go_on(layout, outs, left)
            if (following := link.following) is not None:
                first, more = unrolled(following)
                outs, left = first.lay(layout, left)
                line += more
        return outs, left

    @property
    def beginnings(self) -> int:
        first, line = unrolled(self)
        counts = (it.opens if it.following is None else it.following.beginnings for it in reversed(line))
        return first.beginnings or next(filter(None, counts), 0)


def unrolled(flow: Flow[Any]) -> tuple[Flow[Any], list[Continued[Any]]]:
    """The flow that a chain begins with, and its continuations, the last first."""
    line: list[Continued[Any]] = []
    while isinstance(flow, Continued):
        line.append(flow)
        flow = flow.before
    return flow, line


class Then(Continued[R], Single[R]):
    """A flow, then a step that takes its result."""

    opens = 1

    def __init__(self, before: Flow[Any], step: Call) -> None:
        self.before = before
        self.step = step

    def go_on(self, layout: Steps, outs: Outs, left: Edges) -> tuple[Outs, Edges]:
        return Edge(layout.add(self.step, [*flat(outs), *left], shape(outs))), NOTHING

    def gives(self, *, collects: bool = False) -> Any:
        return collected(self.step.returns) if collects else self.step.returns


class After(Continued[R]):
    """A flow, then another that does not take its result."""

    def __init__(self, before: Flow[Any], flow: Flow[R]) -> None:
        self.before = before
        self.following = self._flow = flow

    def go_on(self, layout: Steps, outs: Outs, left: Edges) -> tuple[Outs, Edges]:
        return (), joined(self._flow, layout, [*flat(outs), *left])

    def gives(self, *, collects: bool = False) -> Any:
        flow = self._flow
        while isinstance(flow, After):
            flow = flow._flow
        return flow.gives(collects=collects)


class WithPolicy(Continued[R]):
    """A flow with a failure policy, for those of its steps that have none of their own."""

    def __init__(self, before: Flow[Any], policy: OnFailure) -> None:
        self.before = before
        self._policy: OnFailure = known_policy(policy)

    def go_on(self, layout: Steps, outs: Outs, left: Edges) -> tuple[Outs, Edges]:
        return with_default_policy(outs, self._policy), left

    def gives(self, *, collects: bool = False) -> Any:
        return self.before.gives(collects=self._policy == "collect")


def known_policy(policy: OnFailure) -> OnFailure:
    """The policy; `InvalidJob` if it is unknown."""
    if policy not in ("hold", "cancel", "collect"):
        raise InvalidJob(f"on_failure is hold, cancel or collect, not {policy!r}")
    return policy


def joined(flow: Flow[Any], layout: Steps, edges: Edges) -> Edges:
    """The edges that the first steps of a flow wait for: if many would wait for many, of a step between them."""
    if len(edges) > 1 and flow.beginnings > 1:
        return [Edge(layout.add(layout.laid[edges[0].parent].step.joining(), edges), joint(edges))]
    return edges


def next_step(before: Flow[Any], task: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """The step of a task that takes the result of `before`."""
    follow: Callable[..., Call] | None = getattr(task, "following", None)
    if follow is None:
        raise InvalidJob(f"what comes next is a task, made by @harbor.task, not {task!r}")
    return follow(before.gives(), args, kwargs)


def planned(flow: Flow[R2], options: FlowOptions) -> Plan[R2]:
    layout: Steps = Layout()
    outs, _ = flow.lay(layout, ())
    return Plan(layout, outs, options)
