"""Fault wrappers around any driver: every way in which a store may fail, on demand.

Each wrapper has exactly the protocols of the driver inside, so `capability` and `isinstance` see no difference, and
wrappers stack. A `When` decides which calls fail: at random from a seed, or by a script.
`close` always works.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter as Tickets
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from datetime import datetime
from functools import partial, wraps
from random import Random
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, cast

from msgspec import Struct

from taskharbor.client.batching import no_answer
from taskharbor.client.blocks import run_here
from taskharbor.driver import (
    COMMON,
    Driver,
    Durability,
    EnqueueBlocking,
    Erases,
    Group,
    GroupResult,
    Repairs,
    ServerClock,
    Within,
)
from taskharbor.errors import DriverUnavailable

P = ParamSpec("P")
R = TypeVar("R")
When = Callable[[str], bool]
VerbCall = Callable[[], Awaitable[Any]]


def verbs(protocol: type) -> list[str]:
    """The names of a protocol's methods."""
    return [name for name, what in vars(protocol).items() if inspect.isfunction(what) and not name.startswith("_")]


PARAMETERS = {
    verb: tuple(inspect.signature(vars(kind)[verb]).parameters)[1:]
    for kind in (Driver, *COMMON, ServerClock, Durability, Repairs, Erases)
    for verb in verbs(kind)
}
BESIDE = [verbs(kind) for kind in (*COMMON, ServerClock, Durability, Repairs, Erases)]
WITHIN, BLOCKING = verbs(Within), verbs(EnqueueBlocking)


def _has(driver: Driver, verbs: Sequence[str]) -> bool:
    """Whether the driver has all of these, as isinstance() with a protocol says it, but many times faster."""
    own, kind = vars(driver), type(driver)
    return all(verb in own or hasattr(kind, verb) for verb in verbs)


def always(verb: str) -> bool:
    """Fail every call."""
    return True


def sometimes(rng: Random, rate: float, only: Collection[str] = ()) -> When:
    """Fail this share of the calls, only of these verbs if any are named."""

    def strikes(verb: str) -> bool:
        return (not only or verb in only) and rng.random() < rate

    return strikes


def script(*verbs: str) -> When:
    """Fail the next call of every verb named, once."""
    left = Tickets(verbs)

    def strikes(verb: str) -> bool:
        left[verb] -= 1
        return left[verb] >= 0

    return strikes


def _forwarded(verb: Callable[Concatenate[Driver, P], R]) -> Callable[Concatenate[Wrapper, P], R]:
    """A verb of every driver, through `_perform`."""

    @wraps(verb)
    def forward(self: Wrapper, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast("R", self._call(verb.__name__, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return forward


class Wrapper:
    """A driver around a driver. Subclasses implement `_perform`, which handles every call."""

    def __init__(self, inner: Driver) -> None:
        self.inner = inner
        self.name = inner.name
        self.ephemeral = inner.ephemeral
        self.max_payload = inner.max_payload
        # Instance attributes, because isinstance() with a protocol looks past __getattr__.
        for offered in BESIDE:
            if _has(inner, offered):
                for verb in offered:
                    setattr(self, verb, partial(self._call, verb) if self._handles(verb) else getattr(inner, verb))
        if _has(inner, WITHIN):  # transactions of the caller are not wrapped
            for verb in WITHIN:
                setattr(self, verb, getattr(inner, verb))
        if isinstance(inner, EnqueueBlocking) and _has(inner, BLOCKING):
            self.enqueues_blocking = inner.enqueues_blocking
            self.enqueue_blocking = partial(self._enqueue_blocking, inner)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _handles(self, verb: str) -> bool:
        """Whether calls of this verb, other than the five of `Driver`, go through `_perform`."""
        return True

    async def _call(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(PARAMETERS[verb], args, strict=False))
        if kwargs:
            given |= kwargs
        return await self._perform(verb, given, partial(getattr(self.inner, verb), *args, **kwargs))

    async def _perform(self, verb: str, arguments: dict[str, Any], call: VerbCall) -> Any:
        return await call()

    def _enqueue_blocking(
        self, inner: EnqueueBlocking, groups: Sequence[Group], now: datetime, timeout: float
    ) -> list[GroupResult]:
        """An `enqueue` for `_perform`, which the driver inside does by its blocking verb."""

        async def call() -> list[GroupResult]:  # in another thread: the driver may be a wrapper, with its own loop
            return await asyncio.to_thread(inner.enqueue_blocking, groups, now, timeout)

        perform = partial(self._perform, "enqueue", {"groups": groups, "now": now}, call)
        return cast("list[GroupResult]", self._awaited(perform, timeout))

    def _awaited(self, perform: VerbCall, timeout: float) -> Any:
        """Run a coroutine from a thread without an event loop."""

        async def limited() -> Any:
            async with asyncio.timeout(timeout):
                return await perform()

        try:
            return self._run(limited)
        except TimeoutError as error:
            raise no_answer(timeout) from error

    def _run(self, perform: Callable[[], Coroutine[Any, Any, R]]) -> R:
        return run_here("enqueue", perform)

    enqueue = _forwarded(Driver.enqueue)
    reserve = _forwarded(Driver.reserve)
    extend_lease = _forwarded(Driver.extend_lease)
    settle = _forwarded(Driver.settle)

    async def close(self) -> None:
        await self.inner.close()


class Losing(Wrapper):
    """Loses something of the calls that `when` chooses."""

    def __init__(self, inner: Driver, when: When = always) -> None:
        super().__init__(inner)
        self.when = when


class LostRequest(Losing):
    """Loses requests: the call never reaches the store."""

    async def _perform(self, verb: str, arguments: dict[str, Any], call: VerbCall) -> Any:
        if self.when(verb):
            raise DriverUnavailable(f"{verb}: the request was lost")
        return await call()


class LostReply(Losing):
    """Loses replies: the store does the work, but the caller gets an error."""

    async def _perform(self, verb: str, arguments: dict[str, Any], call: VerbCall) -> Any:
        strikes = self.when(verb)
        result = await call()
        if strikes:
            raise DriverUnavailable(f"{verb}: the reply was lost")
        return result


class Flaky(Wrapper):
    """Loses requests or replies, at random: the caller cannot tell which."""

    def __init__(self, inner: Driver, rng: Random, rate: float = 0.1, when: When | None = None) -> None:
        super().__init__(inner)
        self._rng = rng
        self.when = when or sometimes(rng, rate)

    async def _perform(self, verb: str, arguments: dict[str, Any], call: VerbCall) -> Any:
        if not self.when(verb):
            return await call()
        if self._rng.random() < 0.5:
            await call()
        raise DriverUnavailable(f"{verb}: the connection broke")


class Slow(Wrapper):
    """Delays requests and replies, by fixed seconds or by a new random value for each."""

    def __init__(self, inner: Driver, seconds: float | Callable[[], float], when: When = always) -> None:
        super().__init__(inner)
        self._seconds = seconds
        self.when = when

    async def _perform(self, verb: str, arguments: dict[str, Any], call: VerbCall) -> Any:
        if not self.when(verb):
            return await call()
        await self._trip()
        result = await call()
        await self._trip()
        return result

    async def _trip(self) -> None:
        await asyncio.sleep(self._seconds() if callable(self._seconds) else self._seconds)


class Outage(Wrapper):
    """A store that can be switched off and on. Calls in progress when it goes off happen, but get no reply."""

    def __init__(self, inner: Driver, *, down: bool = False) -> None:
        super().__init__(inner)
        self.down = down

    async def _perform(self, verb: str, arguments: dict[str, Any], call: VerbCall) -> Any:
        self._check(verb)
        result = await call()
        self._check(verb)
        return result

    def _check(self, verb: str) -> None:
        if self.down:
            raise DriverUnavailable(f"{verb}: the store is down")


class Operation(Struct, frozen=True):
    """One end of one call. Both ends carry its number; a call without a second end has an unknown outcome."""

    number: int
    phase: Literal["called", "returned", "raised"]
    verb: str
    arguments: dict[str, Any]
    value: Any = None


class Recording(Wrapper):
    """Records every call, before it starts and after it ends; several drivers may share one `log`."""

    def __init__(self, inner: Driver, log: list[Operation] | None = None) -> None:
        super().__init__(inner)
        self.log: list[Operation] = [] if log is None else log

    async def _perform(self, verb: str, arguments: dict[str, Any], call: VerbCall) -> Any:
        number = len(self.log)
        self.log.append(Operation(number, "called", verb, arguments))
        try:
            result = await call()
        except BaseException as error:
            self.log.append(Operation(number, "raised", verb, arguments, error))
            raise
        self.log.append(Operation(number, "returned", verb, arguments, result))
        return result

    def calls(self, verb: str | None = None) -> list[dict[str, Any]]:
        """The arguments of the calls so far, in order; of one verb if it is named."""
        return [op.arguments for op in self.log if op.phase == "called" and verb in (None, op.verb)]
