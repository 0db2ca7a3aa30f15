"""The cases of the conformance kit, one by one and without pytest around them: a mutant meets the ones it fears."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from itertools import product
from typing import Any, NamedTuple

from drivers.kv.bucket import Bucket
from drivers.kv.driver import KvDriver
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.testing import run
from taskharbor.testing.kit import EphemeralKit, Harness
from taskharbor.testing.kit.scene import Scene

Given = dict[str, Any]
Runner = Callable[[Coroutine[Any, Any, None]], None]
LEFT_OUT = "test_T1_random_histories_agree_with_the_model"  # minutes, and it needs the right driver as its model


class Case(NamedTuple):
    """A test of the kit with its parameters."""

    name: str
    function: Callable[..., Any]
    given: Given

    def play(self, harness: Harness, runner: Runner) -> None:
        """Raises whatever the case has to complain about."""
        inner = inspect.unwrap(self.function)
        if not inspect.iscoroutinefunction(inner):
            self.function(EphemeralKit(), harness, **self.given)
            return

        async def on_stage() -> None:
            scene = Scene(harness, await harness.opened())
            try:
                await inner(EphemeralKit(), scene, **self.given)
            finally:
                await scene.close()

        runner(on_stage())


def in_memory(case: Case) -> None:
    """Play on a new memory store. Virtual time spares waits for a hint that never comes."""
    case.play(Harness(open=_memory), run)


def in_file(case: Case, url: str) -> None:
    """Play on a new store that another process could open, in real time: it has a thread of its own."""
    case.play(Harness(url=url), lambda play: asyncio.run(play))


def in_key_value(case: Case) -> None:
    """Play on a new key-value store, where every verb is a step of the core."""
    case.play(Harness(open=_key_value), run)


async def _memory() -> MemoryDriver:
    return MemoryDriver()


async def _key_value() -> KvDriver:
    return KvDriver(Bucket())


def _cases() -> Iterator[Case]:
    for name in dir(EphemeralKit):
        if name.startswith("test_") and name != LEFT_OUT:
            function = getattr(EphemeralKit, name)
            for label, given in parameters(function):
                yield Case(f"{name}[{label}]" if label else name, function, given)


def parameters(function: Any) -> Iterator[tuple[str, Given]]:
    """The sets of parameters with the names that pytest gives them."""
    marks = [mark for mark in getattr(function, "pytestmark", ()) if mark.name == "parametrize"]
    choices = [list(zip(_labels(mark), mark.args[1], strict=True)) for mark in marks]
    for chosen in product(*choices):
        given: Given = {}
        for mark, (_, value) in zip(marks, chosen, strict=True):
            names = mark.args[0]  # one, or several with as many values
            given |= {names: value} if isinstance(names, str) else dict(zip(names, value, strict=True))
        yield "-".join(label for label, _ in chosen), given


def _labels(mark: Any) -> list[str]:
    return [_label(label) for label in mark.kwargs.get("ids") or mark.args[1]]


def _label(value: Any) -> str:
    if isinstance(value, tuple):
        return "-".join(map(_label, value))
    return str(getattr(value, "__name__", value))


CASES = {case.name: case for case in _cases()}
