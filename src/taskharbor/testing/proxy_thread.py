"""A `Proxy` for tests that block or that watch other processes: on a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import wraps
from typing import Concatenate, ParamSpec, Self, TypeVar

from taskharbor.testing.proxy import LOCALHOST, PATIENCE, Proxy
from taskharbor.testing.proxy_link import Direction, Link

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(control: Callable[Concatenate[Proxy, P], T]) -> Callable[Concatenate[ProxyThread, P], T]:
    """A control for callers on other threads; it returns when it has taken effect."""

    @wraps(control)
    def twin(self: ProxyThread, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.call(lambda proxy: control(proxy, *args, **kwargs))

    return twin


class ProxyThread:
    """A `Proxy` on its own thread and event loop, while `with` is open. Its methods block until they are done."""

    host = LOCALHOST

    def __init__(self, host: str, port: int | None = None) -> None:
        self._proxy = Proxy(host, port)
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="taskharbor-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self.call(lambda _: self._stop.set())
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        # A loop of the standard library, whatever the policy says: it supports closing sockets that the loop watches.
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        try:
            async with self._proxy:
                self._started.set_result(asyncio.get_running_loop())
                await self._stop.wait()
        except Exception as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    def call(self, function: Callable[[Proxy], T]) -> T:
        """Run a function on the proxy's own thread, where its links must be used too."""

        async def there() -> T:
            return function(self._proxy)

        return asyncio.run_coroutine_threadsafe(there(), self._started.result(PATIENCE)).result(PATIENCE)

    def until(self, condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
        """Wait until a condition holds: see `Proxy.until`."""
        waiting = self._proxy.until(condition, timeout)
        asyncio.run_coroutine_threadsafe(waiting, self._started.result(PATIENCE)).result()

    stall = _blocking(Proxy.stall)
    resume = _blocking(Proxy.resume)
    delay = _blocking(Proxy.delay)
    cut_after = _blocking(Proxy.cut_after)
    swallow_reply = _blocking(Proxy.swallow_reply)
    refuse = _blocking(Proxy.refuse)
    accept = _blocking(Proxy.accept)
    reset = _blocking(Proxy.reset)
    on_next = _blocking(Proxy.on_next)
    heal = _blocking(Proxy.heal)
    url = _blocking(Proxy.url)

    @property
    def port(self) -> int:
        """The address it listens on."""
        return self._proxy.port

    @property
    def accepted(self) -> int:
        """The number of connections so far."""
        return self._proxy.accepted

    @property
    def links(self) -> list[Link]:
        """The open connections; to control one, `call`."""
        return self._proxy.links

    @property
    def received(self) -> dict[Direction, int]:
        """Bytes that reached the proxy, by direction."""
        return dict(self._proxy.received)

    @property
    def forwarded(self) -> dict[Direction, int]:
        """Bytes that left the proxy, by direction."""
        return dict(self._proxy.forwarded)
