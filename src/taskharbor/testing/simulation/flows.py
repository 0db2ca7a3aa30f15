"""Flows for the standard scenario: every shape and policy, and steps that check their arguments (K3, K4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec

from taskharbor import AsyncTask, Flow, Graph, Harbor, Retry, Unrecoverable, chain, chord, current, group
from taskharbor.core.states import State
from taskharbor.driver import Parent, WorkflowStore, capability
from taskharbor.testing.simulation.cluster import Cluster, crash
from taskharbor.workflows.flow import OnFailure

MUCH = 2**24
POLICIES: tuple[OnFailure, ...] = ("hold", "cancel", "collect")
TEMPERS = {"calm": 70, "slow": 12, "failing": 8, "hopeless": 7, "deadly": 3}
NumberTask = AsyncTask[[Any], int]
# The result of a flow if nothing fails: numbers, nested like the flow.
FlowPart = tuple[Flow[Any], Any]


class WrongResult(AssertionError):
    """A step or a caller received something else than the parents' results."""


class RandomFlows:
    """The tasks of flows, and random flows. A wrong value is added to the cluster's errors."""

    def __init__(self, harbor: Harbor, cluster: Cluster, rng: Random) -> None:
        self._cluster = cluster
        self._rng = rng

        @harbor.task(name="member", max_attempts=2, retry=Retry(base=1, cap=2))
        async def member(number: int, temper: str) -> int:
            await self._live(temper)
            return number

        @harbor.task(name="link", max_attempts=2, retry=Retry(base=1, cap=2))
        async def link(given: Any) -> int:
            headers = current().headers
            await self._check(given, msgspec.json.decode(headers["expected"]))
            await self._live(headers["temper"])
            return int(headers["number"])

        @harbor.task(name="starter", max_attempts=2, retry=Retry(base=1, cap=2))
        async def starter() -> None:
            current().enqueue(self.drawn()[0])
            await self._live(self._temper())

        self._member, self._link = member, link
        self.starter = starter

    def drawn(self) -> FlowPart:
        """A flow of any shape."""
        shapes: list[Callable[[], FlowPart]] = [self._chain, self._chord, self._nested, self._stages, self._diamond]
        return self._rng.choices(shapes, [3, 4, 2, 2, 2])[0]()

    def check(self, came: Any, expected: Any) -> None:
        """Check the result of a whole flow."""
        if came != expected:
            self._cluster.errors.append(WrongResult(f"a flow returned {came!r} instead of {expected!r}"))

    # shapes

    def _chain(self) -> FlowPart:
        part = self._one()
        for _ in range(self._rng.randint(1, 3)):
            part = self._then(part)
        return part

    def _chord(self) -> FlowPart:
        flow, expected = self._side_by_side(self._rng.randint(2, 6))
        number = self._number()
        return chord(flow, self._taking(expected, number), on_failure=self._policy()), number

    def _nested(self) -> FlowPart:
        parts = [self._side_by_side(2), self._one(), self._then(self._side_by_side(2))]
        self._rng.shuffle(parts)
        return self._then(_grouped(parts))

    def _stages(self) -> FlowPart:
        """Two groups, the second of which waits for the first without taking its results: a join is put between."""
        (first, _), (second, expected) = self._side_by_side(2), self._side_by_side(2)
        return self._then((chain(first, second, on_failure=self._policy()), expected))

    def _diamond(self) -> FlowPart:
        """Two arms that take the same result, and a last step that takes theirs and also waits for the first."""
        graph = Graph()
        begin, number = self._one()
        top = graph.add(begin)
        arms = [self._then((top, number)) for _ in range(2)]
        parts: list[FlowPart] = [(graph.add(flow), expected) for flow, expected in arms]
        flow, last = self._then(_grouped(parts))
        graph.add(flow, after=[top], on_failure=self._policy())
        return graph, [last]

    def _one(self) -> FlowPart:
        number, queue = self._number(), self._rng.choice(["default", "default", "mail"])
        return self._member.using(queue=queue).step(number, self._temper()), number

    def _side_by_side(self, count: int) -> FlowPart:
        return _grouped([self._one() for _ in range(count)])

    def _then(self, before: FlowPart) -> FlowPart:
        number = self._number()
        return chain(before[0], self._taking(before[1], number), on_failure=self._policy()), number

    def _taking(self, expected: Any, number: int) -> NumberTask:
        """A step that knows its expected argument."""
        headers = {"expected": msgspec.json.encode(expected).decode(), "number": str(number), "temper": self._temper()}
        return self._link.using(headers=headers)

    def _number(self) -> int:
        return self._rng.randint(1, 10**6)

    def _temper(self) -> str:
        return self._rng.choices(list(TEMPERS), list(TEMPERS.values()))[0]

    def _policy(self) -> OnFailure:
        return self._rng.choice(POLICIES)

    # handlers

    async def _live(self, temper: str) -> None:
        if temper == "slow":
            await asyncio.sleep(self._rng.uniform(0, 4))
        elif temper == "failing" and current().attempt == 1:
            raise ValueError("not yet")
        elif temper == "hopeless":
            raise Unrecoverable("never")
        elif temper == "deadly" and self._rng.random() < 0.5:
            await crash()

    async def _check(self, given: Any, expected: Any) -> None:
        """K3, K4: the nested results of the parents, with a FailedStep exactly where one is not done."""
        id = current().id
        (parents,) = await self._cluster.undisturbed(lambda store: capability(store, WorkflowStore).parents([id], MUCH))
        if not all(parent.satisfied for parent in parents) or not _is_right(given, expected, iter(parents)):
            message = f"job {id} was given {given!r} instead of {expected!r}; its parents are {parents}"
            self._cluster.errors.append(WrongResult(message))


def _grouped(parts: list[FlowPart]) -> FlowPart:
    return group(flow for flow, _ in parts), [expected for _, expected in parts]


def _is_right(given: Any, expected: Any, parents: Iterator[Parent]) -> bool:
    if _is_a(list, expected):
        fits = _is_a(list, given) and len(given) == len(expected)
        return fits and all(_is_right(*pair, parents) for pair in zip(given, expected, strict=True))
    parent = next(parents, None)
    if parent is None or parent.state is State.DONE:
        return parent is not None and given == expected
    failed = _is_a(dict, given) and given.get("taskharbor") == "failed_step" and given.get("id") == parent.id
    return failed and parent.policy == "collect"


def _is_a(kind: type, value: Any) -> bool:
    return isinstance(value, kind)
