"""The network between simulated processes and the store: a sent request arrives or is lost, even if its sender dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from datetime import datetime
from random import Random
from typing import Any

from taskharbor.client.clock import Clock
from taskharbor.driver import Driver, at_once
from taskharbor.errors import DriverClosed, DriverUnavailable
from taskharbor.testing.faults import VerbCall
from taskharbor.testing.recorder import RECORDED
from taskharbor.testing.simulation.blocking import InTurns, PassThrough
from taskharbor.testing.simulation.faults import Faults
from taskharbor.testing.simulation.processes import ProcessLoop, outside

HINTED = frozenset({"wait_for_work", "wait_for_end"})
RINGING = frozenset(
    {"enqueue", "settle", "cancel", "dead_letter", "replay", "reschedule", "sweep", "pause", "swap_schedules"}
)


class LossyHints:
    """Wake-up hints in the order of requests, some of them lost: the same for every store with the same seed."""

    def __init__(self, rng: Random, lost: float) -> None:
        self._rng = rng
        self.lost = lost
        self._waiting: list[tuple[asyncio.Future[None], Context]] = []

    async def wait(self, timeout: float) -> None:
        """Return when something may have changed, or after this many seconds."""
        loop = asyncio.get_running_loop()
        hint = loop.create_future()
        waiting = hint, copy_context()
        self._waiting.append(waiting)
        timer = loop.call_later(timeout, _release, hint)
        try:
            await hint
        finally:
            timer.cancel()
        if waiting in self._waiting:
            self._waiting.remove(waiting)

    def wake(self) -> None:
        """Wake up all who wait, except where a hint is lost."""
        woken, self._waiting = self._waiting, []
        for hint, context in woken:
            if self._rng.random() < self.lost:
                self._waiting.append((hint, context))
            elif not hint.done():
                hint.get_loop().call_soon(_release, hint, context=context)


def _release(hint: asyncio.Future[None]) -> None:
    if not hint.done():
        hint.set_result(None)


class EngineTime(PassThrough):
    """An engine with a clock of its own (L8): the virtual one, even if the store is a real server."""

    def __init__(self, inner: Driver, clock: Clock) -> None:
        super().__init__(inner)
        self._clock = clock
        self.server_now = self._now  # even if the driver inside has a method of that name

    async def _now(self) -> datetime:
        return self._clock()


class Lines:
    """The connections between processes and the store, with delays, stalls, losses and outages. One for a whole run."""

    def __init__(self, rng: Random, hints: LossyHints, faults: Faults) -> None:
        self.rng = rng
        self.hints = hints
        self.faults = faults
        self.down = False

    async def look(self, verb: str, call: VerbCall) -> Any:
        """A call that changes no job: it may be lost, but is never delayed, to keep runs short."""
        if self.rng.random() < self.faults.lost_requests:
            raise DriverUnavailable(f"{verb}: the request was lost")
        return await self.ask(verb, call)

    async def ask(self, verb: str, call: VerbCall) -> Any:
        """Call the store, unless it is down before or after."""
        self._check(verb)
        result = await call()
        if verb in RINGING:
            self.hints.wake()
        self._check(verb)
        return result

    def _check(self, verb: str) -> None:
        if self.down:
            raise DriverUnavailable(f"{verb}: the store is down")

    def trip(self) -> float:
        """The seconds that a request or a reply takes."""
        if self.faults.stalls and self.rng.random() < self.faults.stalls:
            return self.rng.uniform(0, self.faults.stall)
        return self.rng.expovariate(1 / self.faults.delay)


class _RoundTrip:
    """A request on its way to the store and back, with its `reply`: delivered or lost, whatever becomes of its sender.

    It is a chain of callbacks, because a task for each request would cost a tenth of the whole simulation.
    """

    def __init__(self, lines: Lines, network: Context, verb: str, call: VerbCall) -> None:
        self._lines = lines
        self._network = network
        self._verb = verb
        self._call = call
        self._loop = asyncio.get_running_loop()
        self.reply: asyncio.Future[Any] = self._loop.create_future()
        self._loop.call_soon(self._depart, context=network)

    def _depart(self) -> None:
        self._faults = self._lines.faults
        self._travel(self._arrive)

    def _travel(self, then: Callable[..., None], *args: Any) -> None:
        """Go on after a trip: a step after its timer, like a task that slept. Recorded seeds depend on the order."""
        self._loop.call_later(self._lines.trip(), self._loop.call_soon, then, *args, context=self._network)

    def _arrive(self) -> None:
        if self._is_lost("request", self._faults.lost_requests):
            return
        try:
            result = at_once(self._lines.ask(self._verb, self._call))
        except Exception as error:
            self._fail(error)
        else:
            if not self._is_lost("reply", self._faults.lost_replies):
                self._travel(self._succeed, result)

    def _is_lost(self, what: str, rate: float) -> bool:
        rng = self._lines.rng
        lost = rng.random() < rate
        if lost and rng.random() >= self._lines.faults.silence:
            self._travel(self._fail, DriverUnavailable(f"{self._verb}: the {what} was lost"))
        return lost

    def _succeed(self, result: Any) -> None:
        if not self.reply.done():
            self.reply.set_result(result)

    def _fail(self, error: Exception) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)
            self.reply.exception()  # the calling process may be dead


class ClientWire(InTurns):
    """The client side in one process: a call continues in the network when the process dies or stops waiting."""

    def __init__(self, store: Driver, lines: Lines) -> None:
        super().__init__(store)
        self._lines = lines
        self._network = outside()

    async def _perform(self, verb: str, arguments: dict[str, Any], call: VerbCall) -> Any:
        loop = asyncio.get_running_loop()
        if isinstance(loop, ProcessLoop) and loop.ending:
            raise DriverClosed("the simulation has ended")
        if verb in HINTED:
            return await self._lines.hints.wait(arguments["timeout"])
        if verb not in RECORDED:
            return await self._lines.look(verb, call)
        return await _RoundTrip(self._lines, self._network, verb, call).reply

    async def close(self) -> None:
        """Close the process's side; the store stays open."""
