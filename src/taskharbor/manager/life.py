"""A manager's store: opened when it is first needed, shared or its own, and closed once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from random import Random
from types import TracebackType
from typing import Self

from taskharbor.client.clock import Clock
from taskharbor.client.portal import refuse_on_a_loop
from taskharbor.client.session import Session
from taskharbor.driver import Driver
from taskharbor.errors import ConfigError
from taskharbor.harbor import Harbor
from taskharbor.manager.desk import Desk
from taskharbor.manager.gate import Entrance, Gate


class Life:
    """What opens and closes. A driver or a harbor that was given stays open."""

    def __init__(self, store: str | Driver | Harbor | None, clock: Clock | None, chance: Random | None) -> None:
        self._harbor = _harbor(store, clock, chance)
        self._owns = store is None or isinstance(store, str)
        self._borrows = isinstance(store, Harbor)
        self._gate = Gate()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._harbor!r}>"

    @property
    def portal(self) -> Entrance:
        """Where blocking twins run."""
        return Entrance(self._gate, self._harbor.portal)

    @property
    def _session(self) -> Session:
        return self._harbor.client.session

    @property
    def _patience(self) -> float:
        """How long to wait for calls under way: none takes longer."""
        return self._session.settings.store_timeout

    async def aclose(self) -> None:
        """Let go of the store, if this manager opened it, once the calls under way have their answers.

        Any later call is `StoreClosed`.
        """
        if (emptied := self._gate.close()) is None:
            return
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience):
                    await asyncio.wrap_future(emptied)
        finally:
            if self._owns:
                await self._harbor.aclose()
            self._end_portal()

    def close(self) -> None:
        """The blocking twin of `aclose`."""
        refuse_on_a_loop("aclose")
        if (emptied := self._gate.close()) is None:
            return
        try:
            with suppress(TimeoutError):
                emptied.result(self._patience)
        finally:
            if self._owns:
                self._harbor.portal.run(self._harbor.aclose)
            self._end_portal()

    def _end_portal(self) -> None:
        if not self._borrows:
            self._harbor.portal.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @asynccontextmanager
    async def _desk(self) -> AsyncGenerator[Desk]:
        with self._gate.entered():
            async with self._harbor.client.store() as driver:
                yield Desk(driver, self._session)


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
