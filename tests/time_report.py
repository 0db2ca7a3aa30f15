"""The report at the end of `make test`: slowest files, tests and fixtures, CPU time against wall time.

Active with `--time-report`. Each test process measures its own phases; the numbers travel with the test reports, so
that a parallel run is reported as a whole. CPU time is that of the test process and of the child processes that it has
waited for. Servers are not children: their share shows in the line about the machine only.
"""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

FILES, TESTS, FIXTURES = 10, 5, 3
FLAG = "--time-report"
OPERATIONS = "simulated operations"


class Spent(NamedTuple):
    """Seconds by the wall clock, and of CPU time."""

    wall: float = 0.0
    cpu: float = 0.0

    def plus(self, other: Spent) -> Spent:
        return Spent(self.wall + other.wall, self.cpu + other.cpu)

    def since(self, start: Spent) -> Spent:
        return Spent(self.wall - start.wall, self.cpu - start.cpu)

    @property
    def waited(self) -> float:
        """The time in which neither the process nor a child did anything."""
        return max(0.0, self.wall - self.cpu)


def now() -> Spent:
    """The clocks of this process."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Spent(time.monotonic(), time.process_time() + children.ru_utime + children.ru_stime)


def busy_and_idle() -> tuple[float, float] | None:
    """Seconds that all cores of this machine have worked and idled since it started; None where Linux is not."""
    try:
        numbers = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
    except OSError:
        return None
    ticks = [int(number) / os.sysconf("SC_CLK_TCK") for number in numbers]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, idle


class TimeReport:
    """A pytest plugin: measures in every test process, and adds up in the one that prints."""

    def __init__(self) -> None:
        self._started = self._phase = now()
        self._machine = busy_and_idle()
        self._made: list[tuple[str, float, float]] = []
        self._files: dict[str, Spent] = {}
        self._tests: dict[str, Spent] = {}
        self._fixtures: dict[str, Spent] = {}
        self._count: Counter[str] = Counter()
        self._operations = 0

    def pytest_runtest_logstart(self) -> None:
        self._phase = now()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        start = now()
        try:
            return (yield)
        finally:
            self._made.append((f"{fixturedef.argname} ({fixturedef.scope})", *now().since(start)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        report = yield
        start, self._phase = self._phase, now()
        report.spent = tuple(self._phase.since(start))
        report.fixtures, self._made = self._made, []
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        if not hasattr(report, "spent"):  # the report of a test process that died
            return
        spent, file = Spent(*report.spent), report.nodeid.partition("::")[0]
        _add(self._files, file, spent)
        _add(self._tests, report.nodeid, spent)
        for name, *cost in report.fixtures:
            _add(self._fixtures, name, Spent(*cost))
            self._count[name] += 1
        if report.when == "call":
            self._count[file] += 1
            self._operations += sum(number for name, number in report.user_properties if name == OPERATIONS)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("where the time went: wall, CPU with child processes, waiting; in seconds")
        for line in self.lines():
            terminalreporter.write_line(line)

    def lines(self) -> list[str]:
        """The report."""
        found = [*self._totals(), "slowest files, and their tests:"]
        found += [f"{_line(name, spent)}  {self._count[name]:4}" for name, spent in _slowest(self._files, FILES)]
        found += ["slowest tests:", *(_line(name, spent) for name, spent in _slowest(self._tests, TESTS))]
        found += ["slowest fixtures, and how often they were made:"]
        made = _slowest(self._fixtures, FIXTURES)
        return found + [f"{_line(name, spent)}  {self._count[name]:4}" for name, spent in made]

    def _totals(self) -> list[str]:
        spent, cores = now().since(self._started), os.cpu_count() or 1
        used = f"tests used {spent.cpu:.0f} s of CPU time, {spent.cpu / spent.wall / cores:.0%} of it"
        found = [f"{spent.wall:.0f} s on {cores} cores: {used}"]
        if self._machine is not None and (machine := busy_and_idle()) is not None:
            busy, idle = (after - before for after, before in zip(machine, self._machine, strict=True))
            found.append(f"the machine, servers included, used {busy:.0f} s and idled {idle / (busy + idle or 1):.0%}")
        return [*found, f"the simulations of the sweep made {self._operations:,} driver operations"]


def _add(table: dict[str, Spent], name: str, spent: Spent) -> None:
    table[name] = table.get(name, Spent()).plus(spent)


def _slowest(table: Mapping[str, Spent], most: int) -> list[tuple[str, Spent]]:
    return sorted(table.items(), key=lambda item: item[1].wall, reverse=True)[:most]


def _line(name: str, spent: Spent) -> str:
    short = name.removeprefix("tests/")
    return f"  {spent.wall:6.1f} {spent.cpu:6.1f} {spent.waited:6.1f}  {short[-80:]}"
