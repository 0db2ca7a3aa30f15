"""Flows: steps that are enqueued together and wait for each other, as values that can be put together further.

A flow lays its steps out (`core.workflow`); nothing else knows how it is built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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

from taskharbor.client.options import Duration, checked
from taskharbor.core.collecting import FailedStep, collected, one_of
from taskharbor.core.job import Dependency, NewJob
from taskharbor.core.wiring import Wiring, wired
from taskharbor.core.workflow import Edge, Layout, Outs, flat, joint, mapped, paths, policies, said, shape
from taskharbor.errors import InvalidJob
from taskharbor.workflows.run import Run

if TYPE_CHECKING:
    from taskharbor.client.client import Client
    from taskharbor.client.step import Preparation, Step

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


class Flow(ABC, Generic[R]):
    """Work that will come to an R: one step, or several that wait for each other."""

    __slots__ = ()

    @abstractmethod
    def lay(self, layout: Steps, wait: Edges) -> tuple[Outs, Edges]:
        """Lay the steps out; those that wait for nobody inside wait for `wait`.

        Gives the steps that the result is made of, and what whoever comes next has to wait for beside them.
        """

    @property
    @abstractmethod
    def beginnings(self) -> int:
        """How many steps wait for nobody inside."""

    @property
    @abstractmethod
    def returns(self) -> Any:
        """The type of the result, as far as annotations tell."""

    @property
    @abstractmethod
    def collected(self) -> Any:
        """That type if the failures are collected about which nothing was said."""

    @overload
    def then(
        self, task: Callable[Concatenate[R, P], Coroutine[Any, Any, R2]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Then[R2]: ...
    @overload
    def then(self, task: Callable[Concatenate[R, P], R2], /, *args: P.args, **kwargs: P.kwargs) -> Then[R2]: ...
    def then(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Then[Any]:
        """And then this task: it takes the result as its first argument, the others are given here."""
        return Then(self, next_step(self, task, args, kwargs))

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
        return WithPolicy(self, policy)

    @property
    def collected(self) -> Any:
        return collected(self.returns)


class Group(Flow[list[M]]):
    """Flows side by side; the results are a list in their order."""

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
        """What failures mean for whoever comes next: he holds on for a replay, is cancelled, or gets FailedSteps."""
        return WithPolicy(self, policy)

    def lay(self, layout: Steps, wait: Edges) -> tuple[Outs, Edges]:
        laid = [member.lay(layout, wait) for member in self.members]
        left = [edge for _, edges in laid for edge in edges] if laid else wait
        return tuple(outs for outs, _ in laid), list(dict.fromkeys(left))

    @property
    def beginnings(self) -> int:
        return sum(member.beginnings for member in self.members)

    @property
    def returns(self) -> Any:
        return _list_of(member.returns for member in self.members)

    @property
    def collected(self) -> Any:
        return _list_of(member.collected for member in self.members)


def _list_of(types: Iterable[Any]) -> Any:
    kinds: list[Any] = []  # they may have no hash
    for kind in types:
        if kind not in kinds:
            kinds.append(kind)
        if len(kinds) > MOST_KINDS:
            break
    return list[one_of(kinds)] if 0 < len(kinds) <= MOST_KINDS else list[Any]  # type: ignore[misc]


class Continued(Flow[R]):
    """A flow that goes on where another ends: `before`."""

    before: Flow[Any]

    @abstractmethod
    def go_on(self, layout: Steps, outs: Outs, left: Edges) -> tuple[Outs, Edges]:
        """What the ends of `before` come to."""

    @property
    @abstractmethod
    def opens(self) -> int:
        """How many of its own steps wait for nobody if there are none before."""

    @property
    def following(self) -> Flow[Any] | None:
        """What is laid next, if that is a flow of its own."""
        return None

    def lay(self, layout: Steps, wait: Edges) -> tuple[Outs, Edges]:
        first, line = unrolled(self)  # and a loop, for a chain may be longer than calls can be deep
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
        return first.beginnings or next((count for link in reversed(line) if (count := link.opens)), 0)


def unrolled(flow: Flow[Any]) -> tuple[Flow[Any], list[Continued[Any]]]:
    """What a flow begins with, and all that goes on from there, the last first."""
    line: list[Continued[Any]] = []
    while isinstance(flow, Continued):
        line.append(flow)
        flow = flow.before
    return flow, line


class Then(Continued[R], Single[R]):
    """A flow, and then a step that takes its result."""

    def __init__(self, before: Flow[Any], step: Step[R]) -> None:
        self.before = before
        self.step = step

    def go_on(self, layout: Steps, outs: Outs, left: Edges) -> tuple[Outs, Edges]:
        return Edge(layout.add(self.step, [*flat(outs), *left], shape(outs))), NOTHING

    @property
    def opens(self) -> int:
        return 1

    @property
    def returns(self) -> Any:
        return self.step.returns


class After(Continued[R]):
    """A flow, and then another that makes no use of its result."""

    def __init__(self, before: Flow[Any], flow: Flow[R]) -> None:
        self.before = before
        self._flow = flow
        self._returns = flow.returns

    def go_on(self, layout: Steps, outs: Outs, left: Edges) -> tuple[Outs, Edges]:
        return (), joined(self._flow, layout, [*flat(outs), *left])

    @property
    def opens(self) -> int:
        return self._flow.beginnings

    @property
    def following(self) -> Flow[R]:
        return self._flow

    @property
    def returns(self) -> Any:
        return self._returns

    @property
    def collected(self) -> Any:
        flow = self._flow
        while isinstance(flow, After):
            flow = flow._flow
        return flow.collected


class WithPolicy(Continued[R]):
    """A flow whose failures mean something of their own, but for steps inside that said so themselves."""

    def __init__(self, before: Flow[Any], policy: OnFailure) -> None:
        self.before = before
        self._policy: OnFailure = known_policy(policy)

    def go_on(self, layout: Steps, outs: Outs, left: Edges) -> tuple[Outs, Edges]:
        return said(outs, self._policy), left

    @property
    def opens(self) -> int:
        return 0

    @property
    def returns(self) -> Any:
        return self.before.collected if self._policy == "collect" else self.before.returns

    @property
    def collected(self) -> Any:
        return self.returns


def known_policy(policy: OnFailure) -> OnFailure:
    """The policy, or `InvalidJob` if there is no such."""
    if policy not in ("hold", "cancel", "collect"):
        raise InvalidJob(f"on_failure is hold, cancel or collect, not {policy!r}")
    return policy


def joined(flow: Flow[Any], layout: Steps, edges: Edges) -> Edges:
    """What the beginnings of a flow wait for behind these: where many would wait for many, a step between them."""
    if len(edges) > 1 and flow.beginnings > 1:
        return [Edge(layout.add(layout.laid[edges[0].parent].step.joining(), edges), joint(edges))]
    return edges


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
        outs, _ = flow.lay(layout, ())
        self.outs = mapped(outs, lambda edge: edge.parent)
        self.collected = {edge.parent for edge in flat(outs) if edge.policy == "collect"}
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
                    f"a step of a flow has {min(alone)} of its own: say it for the whole, flow.using({min(alone)}=…); "
                    f"or for a job by itself, task.using({min(alone)}=…).enqueue(…) or harbor.enqueue(name, {{…}}, "
                    f"{min(alone)}=…)"
                )
        return next(iter(clients.values()), None)

    def jobs(self, preparation: Preparation, workflow_id: str) -> list[NewJob]:
        """The jobs to store; most of a large one neither wait nor take anything."""
        places = dict(paths(self.outs))
        telling = places.keys() or {len(self.laid) - 1}
        meanings = policies(self.laid)
        jobs = preparation.jobs((laid.step for laid in self.laid), workflow_id)
        for number, laid in enumerate(self.laid):
            if laid.edges or number in telling:
                job = jobs[number]
                parents = zip(laid.edges, meanings[number], strict=True)
                edges = tuple(Dependency(jobs[edge.parent].id, policy) for edge, policy in parents)
                taken = 0 if laid.takes is None else len(edges)
                outs = len(places) if number in telling else None
                wiring = Wiring(laid.takes, taken, places.get(number), outs, number in self.collected)
                payload = wired(job.payload, wiring)
                jobs[number] = replace(job, depends_on=edges, payload=payload)
        return jobs

    def nothing(self) -> Run[R]:
        """The run of a flow without steps: done, with what there is."""
        return Run(None, "", self.outs)  # type: ignore[arg-type]
