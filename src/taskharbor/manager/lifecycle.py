"""The store of a manager: opened when it is first needed, shared or its own, and closed once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from random import Random

from taskharbor.client.clock import Clock
from taskharbor.client.portal import refuse_on_a_loop
from taskharbor.client.session import Session
from taskharbor.driver import Driver
from taskharbor.errors import ConfigError
from taskharbor.harbor import Harbor
from taskharbor.manager.call_gate import CallGate, GatedPortal
from taskharbor.manager.task_store import TaskStore


class Lifecycle:
    """Opens and closes a manager's store. A driver or a harbor that was given stays open."""

    def __init__(self, store: str | Driver | Harbor | None, clock: Clock | None, chance: Random | None) -> None:
        self.harbor = _harbor(store, clock, chance)
        self.gate = CallGate()
        self._owns = store is None or isinstance(store, str)
        self._borrows = isinstance(store, Harbor)

    @property
    def portal(self) -> GatedPortal:
        """Where blocking twins run."""
        return GatedPortal(self.gate, self.harbor.portal)

    @property
    def session(self) -> Session:
        """The open harbor."""
        return self.harbor.client.session

    async def aclose(self) -> None:
        """Close the store, if this manager opened it, once the calls under way have their answers."""
        if (emptied := self.gate.close()) is None:
            return
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.session.settings.store_timeout):  # no call takes longer
                    await asyncio.wrap_future(emptied)
        finally:
            if self._owns:
                await self.harbor.aclose()
            self._end_portal()

    def close(self) -> None:
        """The blocking twin of `aclose`."""
        refuse_on_a_loop("aclose")
        if (emptied := self.gate.close()) is None:
            return
        try:
            with suppress(TimeoutError):
                emptied.result(self.session.settings.store_timeout)
        finally:
            if self._owns:
                self.harbor.portal.run(self.harbor.aclose)
            self._end_portal()

    def _end_portal(self) -> None:
        if not self._borrows:
            self.harbor.portal.close()

    @asynccontextmanager
    async def store(self) -> AsyncGenerator[TaskStore]:
        """The store for one call, which the gate counts."""
        with self.gate.entered():
            async with self.harbor.client.store() as driver:
                yield TaskStore(driver, self.session)


def _harbor(store: str | Driver | Harbor | None, clock: Clock | None, chance: Random | None) -> Harbor:
    if isinstance(store, Harbor):
        if clock is not None or chance is not None:
            raise ConfigError("clock and chance are the harbor's own: give them to Harbor(…)")
        return store
    if store is None or isinstance(store, str):
        return Harbor(store, clock=clock, chance=chance)
    if isinstance(store, Driver) and not isinstance(store, type):
        return Harbor(driver=store, clock=clock, chance=chance)
    raise ConfigError(f"a TaskManager takes a URL, a Harbor or an open driver, not {store!r}")
