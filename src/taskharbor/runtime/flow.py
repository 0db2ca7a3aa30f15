"""Flows: steps that are enqueued together and wait for each other, as values that can be put together further.

A flow lays its steps out (`core.workflow`); nothing else knows how it is built. `Graph` is for whatever is no tree.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from msgspec.structs import replace

from taskharbor.core.job import Dependency, NewJob
from taskharbor.core.wiring import FailedStep, Wiring, wired
from taskharbor.core.workflow import Edge, Layout, Outs, flat, paths, shape
from taskharbor.errors import InvalidJob
from taskharbor.runtime.options import Duration, checked
from taskharbor.runtime.run import Run

if TYPE_CHECKING:
    from taskharbor.runtime.client import Client
    from taskharbor.runtime.step import Preparation, Step

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
R2 = TypeVar("R2")
M = TypeVar("M")
OnFailure = Literal["hold", "cancel", "collect"]
Steps = Layout["Step[Any]"]
Edges = Sequence[Edge]
NOTHING: Edges = ()
MOST_KINDS = 8


class FlowOptions(TypedDict, total=False):
    """What can be said about a flow as a whole."""

    idempotency_key: str
    idempotency_ttl: Duration | None
    tx: object


class Flow(Generic[R]):
    """Work that will come to an R: one step, or several that wait for each other."""

    __slots__ = ()

    def lay(self, layout: Steps, wait: Edges) -> tuple[Outs, Edges]:
        """Lay the steps out; those that wait for nobody inside wait for `wait`.

        Gives the steps that the result is made of, and what whoever comes next has to wait for beside them.
        """
        raise NotImplementedError

    @property
    def beginnings(self) -> int:
        """How many steps wait for nobody inside."""
        raise NotImplementedError

    @property
    def returns(self) -> Any:
        """The type of the result, as far as annotations tell."""
        return Any

    @property
    def policy(self) -> OnFailure:
        """What a failure inside means for whoever comes next."""
        return "hold"

    @overload
    def then(
        self, task: Callable[Concatenate[R, P], Coroutine[Any, Any, R2]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Sequel[R2]: ...
    @overload
    def then(self, task: Callable[Concatenate[R, P], R2], /, *args: P.args, **kwargs: P.kwargs) -> Sequel[R2]: ...
    def then(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Sequel[Any]:
        """And then this task: it takes the result as its first argument, the others are given here."""
        return Sequel(self, next_step(self, task, args, kwargs))

    def using(self, **options: Unpack[FlowOptions]) -> Ready[R]:
        """This flow with options for the whole: idempotency_key, idempotency_ttl, tx."""
        if unknown := sorted(options.keys() - FlowOptions.__annotations__.keys()):
            raise InvalidJob(
                f"unknown option {unknown[0]!r} of a flow; there is {', '.join(FlowOptions.__annotations__)}. "
                "Options of a single step go into task.using(…).step(…)"
            )
        checked(options)
        return Ready(self, options)

    async def aenqueue(self) -> Run[R]:
        """Store all of it: whole or not at all. Returns after the commit."""
        return await Ready(self, {}).aenqueue()

    def enqueue(self) -> Run[R]:
        """The blocking twin of `aenqueue`."""
        return Ready(self, {}).enqueue()


class Ready(Generic[R]):
    """A flow with options, ready to be enqueued."""

    def __init__(self, flow: Flow[R], options: FlowOptions) -> None:
        self.flow = flow
        self.options = options

    async def aenqueue(self) -> Run[R]:
        """Store all of it: whole or not at all. Returns after the commit."""
        plan = Plan(self.flow)
        return plan.nothing() if plan.client is None else await plan.client.enqueue_flow(plan, self.options)

    def enqueue(self) -> Run[R]:
        """The blocking twin of `aenqueue`. With `tx=`, it uses that in the calling thread."""
        plan = Plan(self.flow)
        client = plan.client
        if client is None:
            return plan.nothing()
        if self.options.get("tx") is not None:
            return client.enqueue_flow_blocking(plan, self.options)
        return client.portal.call("aenqueue", lambda: client.enqueue_flow(plan, self.options))


class Single(Flow[R]):
    """A flow that ends in one step."""

    __slots__ = ()

    @overload
    def on_failure(self, policy: Literal["collect"], /) -> Flow[R | FailedStep]: ...
    @overload
    def on_failure(self, policy: Literal["hold", "cancel"], /) -> Flow[R]: ...
    def on_failure(self, policy: OnFailure, /) -> Flow[Any]:
        """What a failure means for whoever comes next: he holds on for a replay, is cancelled, or gets a FailedStep."""
        return Tempered(self, policy)


class Group(Flow[list[M]]):
    """Flows side by side; the results are a list in their order."""

    def __init__(self, members: Iterable[Flow[M]]) -> None:
        self.members = tuple(members)
        for member in self.members:
            if not isinstance(member, Flow):
                raise InvalidJob(f"a group is made of steps and flows such as task.step(…), not of {member!r}")

    @overload
    def on_failure(self, policy: Literal["collect"], /) -> Flow[list[M | FailedStep]]: ...
    @overload
    def on_failure(self, policy: Literal["hold", "cancel"], /) -> Flow[list[M]]: ...
    def on_failure(self, policy: OnFailure, /) -> Flow[Any]:
        """What failures mean for whoever comes next: he holds on for a replay, is cancelled, or gets FailedSteps."""
        return Tempered(self, policy)

    def lay(self, layout: Steps, wait: Edges) -> tuple[Outs, Edges]:
        laid = [member.lay(layout, wait) for member in self.members]
        left = [edge for _, edges in laid for edge in edges] if laid else wait
        return tuple(outs for outs, _ in laid), list(dict.fromkeys(left))

    @property
    def beginnings(self) -> int:
        return sum(member.beginnings for member in self.members)

    @property
    def returns(self) -> Any:
        kinds = list(dict.fromkeys(member.returns for member in self.members))
        return list[tuple(kinds)] if 0 < len(kinds) <= MOST_KINDS else list[Any]  # type: ignore[misc]


class Sequel(Single[R]):
    """A flow, and then a step that takes its result."""

    def __init__(self, before: Flow[Any], step: Step[R]) -> None:
        self.before = before
        self.step = step

    def lay(self, layout: Steps, wait: Edges) -> tuple[Outs, Edges]:
        line: list[Sequel[Any]] = [self]  # a loop, for a chain may be longer than calls can be deep
        while isinstance(before := line[-1].before, Sequel):
            line.append(before)
        outs, left = before.lay(layout, wait)
        for sequel in reversed(line):
            edges = [*(Edge(number, sequel.before.policy) for number in flat(outs)), *left]
            outs, left = layout.add(sequel.step, edges, shape(outs)), NOTHING
        return outs, left

    @property
    def beginnings(self) -> int:
        first = self.before
        while isinstance(first, Sequel):
            first = first.before
        return first.beginnings or 1

    @property
    def returns(self) -> Any:
        return self.step.returns


class After(Flow[R]):
    """A flow, and then another that makes no use of its result."""

    def __init__(self, before: Flow[Any], flow: Flow[R]) -> None:
        self.before = before
        self.flow = flow

    def lay(self, layout: Steps, wait: Edges) -> tuple[Outs, Edges]:
        outs, left = self.before.lay(layout, wait)
        edges = [*(Edge(number, self.before.policy) for number in flat(outs)), *left]
        return lay_behind(self.flow, layout, edges)

    @property
    def beginnings(self) -> int:
        return self.before.beginnings or self.flow.beginnings

    @property
    def returns(self) -> Any:
        return self.flow.returns

    @property
    def policy(self) -> OnFailure:
        return self.flow.policy


class Tempered(Flow[R]):
    """A flow whose failures mean something of their own."""

    def __init__(self, flow: Flow[Any], policy: OnFailure) -> None:
        self._flow = flow
        self._policy: OnFailure = _policy(policy)

    def lay(self, layout: Steps, wait: Edges) -> tuple[Outs, Edges]:
        return self._flow.lay(layout, wait)

    @property
    def beginnings(self) -> int:
        return self._flow.beginnings

    @property
    def returns(self) -> Any:
        return Any if self._policy == "collect" else self._flow.returns

    @property
    def policy(self) -> OnFailure:
        return self._policy


class Node(Single[R]):
    """A flow that has its place in a graph: others may wait for it, and take its result."""

    def __init__(self, layout: Steps, outs: Outs, left: Edges, returns: Any, policy: OnFailure) -> None:
        self._layout = layout
        self.outs = outs
        self._left = left
        self._returns = returns
        self._policy: OnFailure = policy

    def lay(self, layout: Steps, wait: Edges) -> tuple[Outs, Edges]:
        if layout is not self._layout:
            raise InvalidJob("a node belongs to the graph that it was added to: add what uses it to that graph")
        return self.outs, [*self._left, *wait]

    @property
    def beginnings(self) -> int:
        return 0

    @property
    def returns(self) -> Any:
        return self._returns

    @property
    def policy(self) -> OnFailure:
        return self._policy


class Graph(Flow[list[Any]]):
    """Any workflow without circles: add flows one after the other, each behind those it waits for.

    The result is the list of what those came to that nobody waits for, in the order they were added.
    """

    def __init__(self) -> None:
        self._layout: Steps = Layout()

    def add(self, flow: Flow[R2], /, *, after: Iterable[Node[Any]] = (), on_failure: OnFailure = "hold") -> Node[R2]:
        """Give a flow its place, behind the nodes that it takes results of and those of `after`.

        `on_failure` says what a failure of one in `after` means for it.
        """
        if isinstance(flow, Node):
            raise InvalidJob("this node has its place already: what it waits for was said when it was added")
        edges: list[Edge] = []
        for node in after:
            if not isinstance(node, Node):
                raise InvalidJob(f"after= takes nodes that graph.add gave, not {node!r}")
            outs, left = node.lay(self._layout, ())
            edges += [*(Edge(number, _policy(on_failure)) for number in flat(outs)), *left]
        laid = len(self._layout.laid)
        try:
            outs, left = lay_behind(flow, self._layout, edges)
        except BaseException:
            del self._layout.laid[laid:]
            raise
        return Node(self._layout, outs, left, flow.returns, flow.policy)

    def lay(self, layout: Steps, wait: Edges) -> tuple[Outs, Edges]:
        if layout is self._layout:
            raise InvalidJob("a graph cannot be a part of itself")
        base = len(layout.laid)
        awaited = {edge.parent for laid in self._layout.laid for edge in laid.edges}
        for laid in self._layout.laid:
            own = [Edge(edge.parent + base, edge.policy) for edge in laid.edges]
            layout.add(laid.step, own or wait, laid.takes)
        outs = tuple(base + number for number in range(len(self._layout.laid)) if number not in awaited)
        return outs, [] if outs else wait

    @property
    def beginnings(self) -> int:
        return sum(not laid.edges for laid in self._layout.laid)

    @property
    def returns(self) -> Any:
        return list[Any]


def _policy(policy: OnFailure) -> OnFailure:
    if policy not in ("hold", "cancel", "collect"):
        raise InvalidJob(f"on_failure is hold, cancel or collect, not {policy!r}")
    return policy


def lay_behind(flow: Flow[Any], layout: Steps, edges: Edges) -> tuple[Outs, Edges]:
    """Lay a flow whose beginnings wait for all of these; where many would wait for many, a step between them does."""
    if len(edges) > 1 and flow.beginnings > 1:
        policy = "cancel" if any(edge.policy == "cancel" for edge in edges) else edges[0].policy
        edges = [Edge(layout.add(layout.laid[edges[0].parent].step.joining(), edges), policy)]
    return flow.lay(layout, edges)


def next_step(before: Flow[Any], task: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step[Any]:
    """The step of a task that takes the result of what was before."""
    follow: Callable[..., Step[Any]] | None = getattr(task, "following", None)
    if follow is None:
        raise InvalidJob(f"what comes next is a task, made by @harbor.task, not {task!r}")
    return follow(before.returns, args, kwargs)


class Plan(Generic[R]):
    """A flow laid out: every step that will be a job, and whose they are."""

    def __init__(self, flow: Flow[R]) -> None:
        layout: Steps = Layout()
        self.outs, _ = flow.lay(layout, ())
        self.laid = layout.laid
        self.client = self._client()

    def _client(self) -> Client | None:
        """The harbor that all steps belong to; None if there are none."""
        clients = {id(laid.step.client): laid.step.client for laid in self.laid}
        if len(clients) > 1:
            raise InvalidJob("a flow has steps of two harbors: a workflow lives in one store")
        for laid in self.laid:
            if alone := {"idempotency_key", "tx"} & laid.step.options.keys():
                raise InvalidJob(
                    f"a step of a flow has {min(alone)} of its own: say it for the whole, flow.using({min(alone)}=…)"
                )
        return next(iter(clients.values()), None)

    def jobs(self, preparation: Preparation, workflow_id: str) -> list[NewJob]:
        """The jobs to store; most of a large one neither wait nor take anything."""
        places = dict(paths(self.outs))
        jobs = preparation.jobs((laid.step for laid in self.laid), workflow_id)
        for number, laid in enumerate(self.laid):
            if laid.edges or number in places:
                job = jobs[number]
                edges = tuple(Dependency(jobs[edge.parent].id, edge.policy) for edge in laid.edges)
                wiring = Wiring(laid.takes, 0 if laid.takes is None else len(edges), places.get(number))
                payload = wired(job.payload, wiring)
                jobs[number] = replace(job, depends_on=edges, payload=payload)
        return jobs

    def nothing(self) -> Run[R]:
        """The run of a flow without steps: done, with what there is."""
        return Run(None, "", self.outs)  # type: ignore[arg-type]
