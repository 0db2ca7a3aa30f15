"""Every verb, cut off at each of its writes: the request is lost, half of it, or the reply; or the caller gives up.

Whoever repeats the verb, in this process or another, gets what is true, and everything can be finished.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Literal

import pytest

from servers.nats import NatsServer
from taskharbor.core.evolve import DeadLetter, Replay, Reschedule
from taskharbor.core.filter import Filter
from taskharbor.core.schedule import Schedule, Swap
from taskharbor.drivers import from_url
from taskharbor.drivers.nats.driver import NatsDriver
from taskharbor.drivers.nats.wire import NatsWire
from taskharbor.errors import DriverUnavailable, JobExists
from taskharbor.testing.kit.jobs import KEEP, T0, ack, at, cancel, child, fail, group, job, put_back

How = Literal["request", "half", "reply", "caller"]
LEASE = timedelta(seconds=30)
LARGE = b"x" * 3000
MOST = 60


class Cut:
    """Cuts off a verb at its n-th write to the streams."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, how: How) -> None:
        self.namespace, self.how = b"", how
        self.left = 0
        self.task: asyncio.Task[Any] | None = None
        self._deaf: set[NatsWire] = set()
        self._write, self._receive = NatsWire.write, NatsWire.data_received
        monkeypatch.setattr(NatsWire, "write", lambda wire, data: self._sent(wire, data))
        monkeypatch.setattr(NatsWire, "data_received", lambda wire, data: self._received(wire, data))

    async def off(self, verb: Awaitable[object], number: int) -> bool:
        """Run a verb until that write; whether it came to it."""
        self.left = number
        self.task = asyncio.ensure_future(verb)
        try:
            await self.task
        except (DriverUnavailable, asyncio.CancelledError):
            assert not self.left
        hit, self.left = not self.left, 0
        return hit

    def _sent(self, wire: NatsWire, data: bytes) -> None:
        if not self.left or b"PUB %b." % self.namespace not in data:
            return self._write(wire, data)
        self.left -= 1
        if self.left:
            return self._write(wire, data)
        if self.how == "request":
            return wire.abort()
        if self.how == "half":
            self._write(wire, data[: len(data) // 2])
            assert wire._transport is not None
            return wire._transport.close()
        self._write(wire, data)
        if self.how == "caller":
            assert self.task is not None
            self.task.cancel()
        else:
            self._deaf.add(wire)
        return None

    def _received(self, wire: NatsWire, data: bytes) -> None:
        if wire in self._deaf:
            wire.abort()
        else:
            self._receive(wire, data)


class Story:
    """What is there before a verb, the verb, and what must be so after it was repeated."""

    async def before(self, driver: NatsDriver) -> None: ...

    async def act(self, driver: NatsDriver) -> Any:
        raise NotImplementedError

    async def after(self, driver: NatsDriver, answer: Any) -> None: ...


class Enqueue(Story):
    """Two jobs of one page."""

    jobs = (job("a"), job("b"))

    async def act(self, driver: NatsDriver) -> Any:
        return await driver.enqueue([group(*self.jobs)], T0)

    async def after(self, driver: NatsDriver, answer: Any) -> None:
        [stored] = answer
        assert isinstance(stored, JobExists) or [it.id for it in stored] == ["a", "b"]
        assert all(await driver.get(["a", "b"]))


class EnqueueKeyed(Enqueue):
    """Two jobs with keys."""

    jobs = (job("a", idempotency_key="1"), job("b", idempotency_key="2"))

    async def after(self, driver: NatsDriver, answer: Any) -> None:
        await super().after(driver, answer)
        assert not isinstance(answer[0], JobExists)
        assert [await driver.find_key(key, T0) for key in "12"] == ["a", "b"]


class EnqueueFlow(Story):
    """A workflow with a key."""

    async def act(self, driver: NatsDriver) -> Any:
        jobs = [job("a", workflow_id="w"), job("b", workflow_id="w"), child("c", "a", "b", workflow_id="w")]
        return await driver.enqueue([group(*jobs, workflow_id="w", key="k")], T0)

    async def after(self, driver: NatsDriver, answer: Any) -> None:
        assert not isinstance(answer[0], Exception)
        assert await driver.find_key("k", T0) == "w"
        [flow] = await driver.workflows(10)
        assert sum(flow.states.values()) == 3


class Settle(Story):
    """All kinds of outcomes at once: with new jobs, large results, a dependant, and a key that is freed."""

    held: dict[str, Any]

    async def before(self, driver: NatsDriver) -> None:
        flow = [job("p", workflow_id="w"), child("q", "p", workflow_id="w")]
        plain = [job("a"), job("b"), job("c"), job("d"), job("e", idempotency_key="e")]
        await driver.enqueue([group(*plain), group(*flow, workflow_id="w", key="k")], T0)
        await driver.cancel(["e"], T0, KEEP)
        await driver.replay([Replay(id="e")], T0)
        self.held = {it.id: it for it in await driver.reserve(["q"], T0, LEASE, 10, "w")}

    async def act(self, driver: NatsDriver) -> Any:
        held = self.held
        outcomes: list[Any] = [
            ack(held["a"], new_jobs=(job("a1"), job("a2", idempotency_key="a2"))),
            ack(held["b"], new_jobs=(job("b1"), job("b2"))),
            ack(held["c"], result=LARGE),
            put_back(held["d"], last_error="y" * 3000, attempts=1),
            cancel(held["e"]),
            ack(held["p"], result=LARGE),
        ]
        return await driver.settle(outcomes, at(1))

    async def after(self, driver: NatsDriver, answer: Any) -> None:
        assert set(answer) <= {"ok", "replayed"}
        ids = ["a", "b", "c", "d", "e", "p", "q", "a1", "a2", "b1", "b2"]
        records = [it for it in await driver.get(ids) if it is not None]
        states = ["done", "done", "done", "ready", "cancelled", "done", *["ready"] * 5]
        assert [it.state for it in records] == states
        assert records[2].result == records[5].result == LARGE
        assert records[3].last_error == "y" * 3000
        assert await driver.find_key("e", at(1)) is None


class Reserve(Story):
    """Claims in two queues' pages."""

    async def before(self, driver: NatsDriver) -> None:
        await driver.enqueue([group(job("a"), job("b"))], T0)
        await driver.enqueue([group(job("c"))], T0)

    async def act(self, driver: NatsDriver) -> Any:
        return await driver.reserve(["q"], T0, LEASE, 10, "w")

    async def after(self, driver: NatsDriver, answer: Any) -> None:
        later = await driver.reserve(["q"], at(60), LEASE, 10, "w")
        assert sorted(it.id for it in later) == ["a", "b", "c"]
        assert {it.version for it in later} <= {1, 2, 3}


class Verbs(Story):
    """A verb of an operator, on jobs of two pages."""

    def __init__(self, verb: Callable[[NatsDriver], Awaitable[Any]], end: str | None) -> None:
        self._verb, self._end = verb, end

    async def before(self, driver: NatsDriver) -> None:
        await driver.enqueue([group(job("a", idempotency_key="a"), job("b"))], T0)
        await driver.enqueue([group(job("c", idempotency_key="c"))], T0)
        held = await driver.reserve(["q"], T0, LEASE, 10, "w")
        await driver.settle([fail(it, last_error="z" * 3000) for it in held], T0)
        await driver.sweep(T0, KEEP, 100)  # tidy

    async def act(self, driver: NatsDriver) -> Any:
        return await self._verb(driver)

    async def after(self, driver: NatsDriver, answer: Any) -> None:
        assert [None if it is None else it.state for it in await driver.get(["a", "b", "c"])] == [self._end] * 3


class Waiting(Verbs):
    """The same on jobs that wait in line."""

    async def before(self, driver: NatsDriver) -> None:
        await driver.enqueue([group(job("a", idempotency_key="a"), job("b"))], T0)
        await driver.enqueue([group(job("c", idempotency_key="c"))], T0)


class Swaps(Story):
    """A tick of a schedule."""

    async def act(self, driver: NatsDriver) -> Any:
        it = Schedule(name="s", definition=b"d", slot=T0)
        return await driver.swap_schedules([Swap(name="s", seen=None, then=it, job=job("a"))], T0)

    async def after(self, driver: NatsDriver, answer: Any) -> None:
        assert [it.name for it in await driver.schedules()] == ["s"]
        assert [it.id for it in await driver.query(Filter(), T0, 10)] == ["a"]


IDS = ["a", "b", "c"]
STORIES: dict[str, Callable[[], Story]] = {
    "enqueue": Enqueue,
    "enqueue with keys": EnqueueKeyed,
    "enqueue a flow": EnqueueFlow,
    "settle": Settle,
    "reserve": Reserve,
    "replay": lambda: Verbs(lambda it: it.replay([Replay(id=id, payload=b"[]") for id in IDS], T0), "ready"),
    "delete": lambda: Verbs(lambda it: it.delete(IDS), None),
    "prune": lambda: Verbs(lambda it: it.prune(KEEP + LEASE, 100), None),
    "cancel": lambda: Waiting(lambda it: it.cancel(IDS, T0, KEEP), "cancelled"),
    "dead letter": lambda: Waiting(
        lambda it: it.dead_letter([DeadLetter(id=id, reason="x", fingerprint="f", keep_until=KEEP) for id in IDS], T0),
        "dlq",
    ),
    "reschedule": lambda: Waiting(
        lambda it: it.reschedule([Reschedule(id=id, run_at=T0, priority=1) for id in IDS], T0), "ready"
    ),
    "reserve by id": lambda: Waiting(lambda it: it.reserve([], at(0), LEASE, 9, "w", IDS), "inflight"),
    "swap schedules": Swaps,
    "tidy": lambda: Tidy(),
}


class Tidy(Story):
    """Ended pages leave the line."""

    async def before(self, driver: NatsDriver) -> None:
        await driver.enqueue([group(job("a"), job("b"))], T0)
        await driver.enqueue([group(job("c"))], T0)
        held = await driver.reserve(["q"], T0, LEASE, 10, "w")
        await driver.settle([ack(it) for it in held], T0)

    async def act(self, driver: NatsDriver) -> Any:
        return await driver.sweep(T0, KEEP, 100)

    async def after(self, driver: NatsDriver, answer: Any) -> None:
        assert [it and it.state for it in await driver.get(IDS)] == ["done"] * 3


async def opened(url: str) -> NatsDriver:
    driver = await from_url(url)
    assert isinstance(driver, NatsDriver)
    return driver


async def check_counts(driver: NatsDriver, now: Any) -> None:
    """The numbers are those of the records."""
    found = Counter(str(it.state) for it in await driver.query(Filter(), now, 1000))
    numbers: Counter[str] = Counter()
    for each in await driver.counts(now):
        numbers += Counter(
            ready=each.ready + each.scheduled,
            waiting=each.waiting,
            inflight=each.claimed + each.running + each.lapsed,
            done=each.done,
            dlq=each.dlq,
            cancelled=each.cancelled,
        )
    assert numbers == +found


async def finish(driver: NatsDriver) -> None:
    """Everything can be finished, tidied up and removed."""
    now = at(1000)
    while held := await driver.reserve(["q"], now, LEASE, 100, "w"):
        assert set(await driver.settle([ack(it) for it in held], now)) == {"ok"}
    await check_counts(driver, now)
    await driver.sweep(now, KEEP, 100)
    await check_counts(driver, now)
    stored = await driver.query(Filter(), now, 1000)
    assert {str(it.state) for it in stored} <= {"done", "dlq", "cancelled"}
    await driver.prune(now + timedelta(days=90), 1000)
    assert await driver.query(Filter(), now, 1000) == []
    await check_counts(driver, now)


@pytest.mark.parametrize("how", ["request", "half", "reply", "caller"])
@pytest.mark.parametrize("name", list(STORIES))
def test_a_verb_that_was_cut_off_can_be_repeated(
    name: str, how: How, nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X1, X3, D1, D8, K2: at any of its writes; nothing is lost, nothing is there twice, nothing is in the way."""
    cut = Cut(monkeypatch, how)

    async def once(number: int) -> bool:
        namespace = nats.new_namespace()
        cut.namespace = namespace.encode()
        url = nats.url(namespace=namespace)
        story = STORIES[name]()
        first = await opened(url)
        await story.before(first)
        hit = await cut.off(story.act(first), number)
        if how == "caller":
            second = first
        else:
            await first.close()
            second = await opened(url)
        await story.after(second, await story.act(second))
        third = await opened(url)
        for driver in (second, third):
            await check_counts(driver, T0)
        await finish(third)
        await check_counts(second, at(1000))
        for driver in (second, third):
            await driver.close()
        nats.drop_namespace(namespace)
        return hit

    async def all_of_them() -> int:
        for number in range(1, MOST):
            if not await once(number):
                return number - 1
        raise AssertionError(f"it writes more than {MOST} times")

    assert asyncio.run(all_of_them()) > 0
