"""A real NATS server for mutants of its driver: a namespace of its own for each catcher.

Catchers are the cases of the kit, the same on a driver that tidies before every verb (`tidied …`), and races and other
tests of `tests/drivers/nats`. After a case all that is stored must fit together, as after every case of the healthy
driver.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import NamedTuple

import pytest

from drivers.nats import consistency, stage, test_line, test_lost, test_pages, test_races, tidied
from servers.nats import NatsServer

from .catching import COMPLAINTS
from .kit import CASES, Given, in_file, parameters
from .mutant import Mutant

TIDIED = "tidied "
FIXTURES = {"play", "nats", "monkeypatch"}


class DriverTest(NamedTuple):
    """A test of the driver that needs nothing but a server."""

    name: str
    function: Callable[..., None]
    given: Given

    def play(self, server: NatsServer, namespace: str) -> None:
        """Raise what the test complains about."""
        with pytest.MonkeyPatch.context() as patch:
            fixtures = {"play": stage.player(server, namespace), "nats": server, "monkeypatch": patch}
            wanted = inspect.signature(self.function).parameters
            self.function(**{name: it for name, it in fixtures.items() if name in wanted}, **self.given)


def _tests(*modules: ModuleType) -> Iterator[DriverTest]:
    for module in modules:
        for name, function in vars(module).items():
            if not name.startswith("test_"):
                continue
            for label, given in parameters(function):
                if inspect.signature(function).parameters.keys() - given.keys() <= FIXTURES:
                    yield DriverTest(f"{name}[{label}]" if label else name, function, given)


TESTS = {test.name: test for test in _tests(test_races, test_line, test_pages, test_lost)}
CATCHERS = CASES.keys() | TESTS.keys() | {f"{TIDIED}{name}" for name in CASES}


class NatsStore:
    """A server to play on."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self._healthy: set[str] = set()

    def ask(self, catcher: str) -> None:
        """Let a catcher complain about the driver as it is now."""
        namespace = self._server.new_namespace()
        url = self._server.url(namespace=namespace)
        try:
            if catcher in TESTS:
                TESTS[catcher].play(self._server, namespace)
                return
            if catcher.startswith(TIDIED):
                with tidied.small_pages():
                    CASES[catcher.removeprefix(TIDIED)].play(tidied.harness(url), lambda play: asyncio.run(play))
            else:
                in_file(CASES[catcher], url)
            consistency.check(self._server, namespace)
        finally:
            self._server.drop_namespace(namespace)

    def check_healthy(self, catcher: str) -> None:
        """Without a mutant, no test complains."""
        if catcher not in self._healthy:
            self.ask(catcher)
            self._healthy.add(catcher)

    def complaint_about(self, mutant: Mutant, catcher: str) -> str | None:
        """The complaint of a catcher; None if it has not noticed the mutant."""
        with mutant.applied():
            try:
                self.ask(catcher)
            except COMPLAINTS as complaint:
                return f"{type(complaint).__name__}: {complaint}".strip(": ")
        return None
