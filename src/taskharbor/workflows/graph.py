"""Graphs: flows that share steps, or wait for some without taking their results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from taskharbor.core.workflow import Edge, Layout, Outs, flat
from taskharbor.errors import InvalidJob
from taskharbor.workflows.flow import Flow, OnFailure, Single, joined, known_policy
from taskharbor.workflows.plan import Edges, Steps

R = TypeVar("R", covariant=True)
R2 = TypeVar("R2")


class Node(Single[R]):
    """A flow in a graph: others may wait for it, and take its result."""

    def __init__(self, layout: Steps, outs: Outs, left: Edges, flow: Flow[R]) -> None:
        self._layout = layout
        self.outs = outs
        self._left = left
        self._flow = flow

    def lay(self, layout: Steps, wait: Edges) -> tuple[Outs, Edges]:
        if layout is not self._layout:
            raise InvalidJob("a node belongs to the graph that it was added to: add what uses it to that graph")
        return self.outs, [*self._left, *wait]

    @property
    def beginnings(self) -> int:
        return 0

    def gives(self, *, collects: bool = False) -> Any:
        return self._flow.gives(collects=collects)


class Graph(Flow[list[Any]]):
    """Any workflow without cycles: add flows one after the other, each after those that it waits for.

    The result is the list of the results of the nodes nothing depends on, in the order they were added.
    """

    def __init__(self) -> None:
        self._layout: Steps = Layout()
        self._policies: dict[int, str | None] = {}

    def add(
        self,
        flow: Flow[R2],
        /,
        *,
        after: Node[Any] | Iterable[Node[Any]] = (),
        on_failure: OnFailure | None = None,
    ) -> Node[R2]:
        """Add a flow, which waits for the nodes that it takes results of and for those of `after`.

        `on_failure` is its policy for failures of nodes in `after`, instead of their own.
        """
        policy = None if on_failure is None else known_policy(on_failure)
        if not isinstance(flow, Flow):
            raise InvalidJob(f"a graph is made of steps and flows such as task.step(…), not of {flow!r}")
        if isinstance(flow, Node):
            raise InvalidJob("this node was added already: what it waits for was given then")
        nodes = [after] if isinstance(after, Node) else list(after)
        if policy is not None and not nodes:
            raise InvalidJob("on_failure= is about the nodes in after=; for the flow itself write flow.on_failure(…)")
        edges: list[Edge] = []
        for node in nodes:
            if not isinstance(node, Node):
                raise InvalidJob(f"after= takes nodes that graph.add gave, not {node!r}")
            outs, left = node.lay(self._layout, ())
            edges += [*(Edge(edge.parent, policy or edge.policy) for edge in flat(outs)), *left]
        laid = len(self._layout.laid)
        try:
            outs, left = flow.lay(self._layout, joined(flow, self._layout, edges))
        except BaseException:
            del self._layout.laid[laid:]
            raise
        self._policies |= {edge.parent: edge.policy for edge in flat(outs)}
        return Node(self._layout, outs, left, flow)

    def lay(self, layout: Steps, wait: Edges) -> tuple[Outs, Edges]:
        if layout is self._layout:
            raise InvalidJob("a graph cannot be a part of itself")
        base = len(layout.laid)
        awaited = {edge.parent for laid in self._layout.laid for edge in laid.edges}
        for laid in self._layout.laid:
            own = [Edge(edge.parent + base, edge.policy) for edge in laid.edges]
            layout.add(laid.step, own or wait, laid.takes)
        ends = (number for number in range(len(self._layout.laid)) if number not in awaited)
        outs = tuple(Edge(base + number, self._policies.get(number)) for number in ends)
        return outs, [] if outs else wait

    @property
    def beginnings(self) -> int:
        return sum(not laid.edges for laid in self._layout.laid)

    def gives(self, *, collects: bool = False) -> Any:
        return list[Any]
