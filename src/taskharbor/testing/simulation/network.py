"""The network between simulated processes and the store: a sent request arrives or is lost, even if its sender dies."""

from __future__ import annotations

import asyncio
from datetime import datetime
from random import Random
from typing import Any

from taskharbor.driver import Driver
from taskharbor.errors import DriverClosed, DriverUnavailable
from taskharbor.testing.clock import Clock
from taskharbor.testing.faults import Call, Wrapper
from taskharbor.testing.recorder import RECORDED
from taskharbor.testing.simulation.faults import Faults
from taskharbor.testing.simulation.processes import ProcessLoop, outside

HINTED = frozenset({"wait_for_work", "wait_for_end"})
RINGING = frozenset(
    {"enqueue", "settle", "cancel", "dead_letter", "replay", "reschedule", "sweep", "pause", "swap_schedules"}
)


class LossyHints:
    """Wake-up hints in the order of requests, some of them lost: the same for every store with the same seed."""

    def __init__(self, chance: Random, lost: float) -> None:
        self._chance = chance
        self.lost = lost
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self, timeout: float) -> None:
        """Return when something may have changed, or after this many seconds."""
        hint = asyncio.get_running_loop().create_future()
        self._waiting.append(hint)
        await asyncio.wait([hint], timeout=timeout)
        if hint in self._waiting:
            self._waiting.remove(hint)

    def ring(self) -> None:
        """Wake up all who wait, except where a hint is lost."""
        woken, self._waiting = self._waiting, []
        for hint in woken:
            if self._chance.random() < self.lost:
                self._waiting.append(hint)
            elif not hint.done():
                hint.set_result(None)


class EngineTime(Wrapper):
    """An engine with a clock of its own (L8): the virtual one, even if the store is a real server."""

    def __init__(self, inner: Driver, clock: Clock) -> None:
        super().__init__(inner)
        self._clock = clock
        self.server_now = self._now  # even if the driver inside has a method of that name

    async def _now(self) -> datetime:
        return self._clock()


class Lines:
    """The connections between processes and the store, with delays, stalls, losses and outages. One for a whole run."""

    def __init__(self, chance: Random, hints: LossyHints, faults: Faults) -> None:
        self._chance = chance
        self.hints = hints
        self.faults = faults
        self.down = False

    async def carry(self, verb: str, call: Call) -> Any:
        """Send a request and return the reply, unless one of them is lost or the store is down."""
        chance, faults = self._chance, self.faults
        await asyncio.sleep(self._trip())
        if chance.random() < faults.lost_requests:
            return await self._lose(verb, "request")
        result = await self._ask(verb, call)
        if chance.random() < faults.lost_replies:
            return await self._lose(verb, "reply")
        await asyncio.sleep(self._trip())
        return result

    async def look(self, verb: str, call: Call) -> Any:
        """A call that changes no job: it may be lost, but is never delayed, to keep runs short."""
        if self._chance.random() < self.faults.lost_requests:
            raise DriverUnavailable(f"{verb}: the request was lost")
        return await self._ask(verb, call)

    async def _ask(self, verb: str, call: Call) -> Any:
        self._check(verb)
        result = await call()
        if verb in RINGING:
            self.hints.ring()
        self._check(verb)
        return result

    def _check(self, verb: str) -> None:
        if self.down:
            raise DriverUnavailable(f"{verb}: the store is down")

    def _trip(self) -> float:
        if self.faults.stalls and self._chance.random() < self.faults.stalls:
            return self._chance.uniform(0, self.faults.stall)
        return self._chance.expovariate(1 / self.faults.delay)

    async def _lose(self, verb: str, what: str) -> None:
        if self._chance.random() < self.faults.silence:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(self._trip())
        raise DriverUnavailable(f"{verb}: the {what} was lost")


class ClientWire(Wrapper):
    """The client side in one process: a call continues in the network when the process dies or stops waiting."""

    def __init__(self, store: Driver, lines: Lines) -> None:
        super().__init__(store)
        self._lines = lines
        self._network = outside()
        self._carrying: dict[asyncio.Future[Any], asyncio.Task[None]] = {}

    async def _perform(self, verb: str, arguments: dict[str, Any], call: Call) -> Any:
        loop = asyncio.get_running_loop()
        if isinstance(loop, ProcessLoop) and loop.ending:
            raise DriverClosed("the simulation has ended")
        if verb in HINTED:
            return await self._lines.hints.wait(arguments["timeout"])
        if verb not in RECORDED:
            return await self._lines.look(verb, call)
        reply: asyncio.Future[Any] = loop.create_future()
        self._carrying[reply] = loop.create_task(self._carry(verb, call, reply), context=self._network)
        return await reply

    async def _carry(self, verb: str, call: Call, reply: asyncio.Future[Any]) -> None:
        try:
            result = await self._lines.carry(verb, call)
        except Exception as error:
            if not reply.done():
                reply.set_exception(error)
                reply.exception()  # the calling process may be dead
        else:
            if not reply.done():
                reply.set_result(result)
        del self._carrying[reply]

    async def close(self) -> None:
        """Close the process's side; the store stays open."""
