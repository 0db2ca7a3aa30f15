"""Runs a scenario from a seed and reports it: a verdict, a trace, the command to repeat it."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from random import Random
from typing import Any, cast

from msgspec import Struct

from taskharbor.core.urls import redacted
from taskharbor.testing.check import CheckReport, Counts, check
from taskharbor.testing.history import Called, Event, Final
from taskharbor.testing.simulation.cluster import Cluster
from taskharbor.testing.simulation.faults import Faults, drawn
from taskharbor.testing.simulation.processes import ProcessLoop
from taskharbor.testing.simulation.stores import opened
from taskharbor.testing.simulation.trace import readable

Scenario = Callable[[Cluster], Awaitable[None]]
LIMIT = 3600.0
LAST_LINES = 40


class Result(Struct, frozen=True):
    """One run: its history and the checker's report. `driver` has no password."""

    scenario: str
    seed: int
    driver: str
    faults: Faults
    events: list[Event]
    report: CheckReport

    @property
    def operations(self) -> int:
        """The number of recorded driver operations."""
        return sum(isinstance(event, Called) for event in self.events)

    def trace(self) -> str:
        """The whole history as text, the same for the same seed."""
        return readable(self.events)

    @property
    def replay(self) -> str:
        """The command that runs it again."""
        given = f"--scenario {self.scenario} " if self.scenario != STANDARD else ""
        driver = f" --driver {self.driver}" if self.driver != "memory" else ""
        return f"python -m taskharbor.testing.simulation {given}--seed {self.seed}{driver}"


class SimulationFailed(AssertionError):
    """A run broke a promise. The message has the trace of the jobs involved and the command that replays it."""

    def __init__(self, result: Result) -> None:
        super().__init__(explain(result))
        self.result = result


STANDARD = "taskharbor.testing.simulation.workload:everything"


def explain(result: Result) -> str:
    """A failed run as text: the violations, the history of the jobs involved, the command to repeat it."""
    jobs = _involved(result)
    lines = [f"seed {result.seed} on {result.driver}: {len(result.report.violations)} promises broken"]
    lines += [f"  {violation}" for violation in result.report.violations[:20]]
    lines += ["", f"faults: {result.faults}", "", readable(result.events, jobs or None), "", f"replay: {result.replay}"]
    return "\n".join(lines)


def _involved(result: Result) -> set[str]:
    shown = "\n".join(map(str, result.report.violations[:20]))
    return {job.id for event in result.events if isinstance(event, Final) for job in event.jobs if job.id in shown}


def simulate(
    scenario: Scenario, seed: int, *, driver: str = "memory", faults: Faults | None = None, limit: float = LIMIT
) -> Result:
    """Run the scenario on virtual time; everything in it follows from the seed.

    `faults` are drawn from the seed unless given. After the scenario has returned, all faults end, the workers finish
    what is left, and the history is checked. `limit` is for each of the two parts, in virtual seconds.
    """
    name = f"{scenario.__module__}:{scenario.__qualname__}"
    weather = drawn(Random(f"{seed} faults")) if faults is None else faults
    with (
        _undisturbed(),
        opened(driver, Random(f"{seed} store")) as store,
        asyncio.Runner(loop_factory=ProcessLoop) as runner,
    ):
        loop = cast(ProcessLoop, runner.get_loop())
        loop.set_exception_handler(lambda loop, context: None)  # a dead process awaits none of its tasks
        events: list[Event] = []
        try:
            runner.run(_play(scenario, store, seed, weather, limit, events))
        except Exception as error:
            result = Result(name, seed, redacted(driver), weather, events, CheckReport([], [], Counts()))
            error.add_note("\n".join([*result.trace().splitlines()[-LAST_LINES:], f"replay: {result.replay}"]))
            raise
        finally:
            loop.end()
    return Result(name, seed, redacted(driver), weather, events, check(events))


def assert_holds(scenario: Scenario, seed: int, **options: Any) -> Result:
    """`simulate`, and `SimulationFailed` if a promise was broken."""
    result = simulate(scenario, seed, **options)
    if result.report.violations:
        raise SimulationFailed(result)
    return result


async def _play(scenario: Scenario, store: Any, seed: int, faults: Faults, limit: float, events: list[Event]) -> None:
    cluster = Cluster(store, str(seed), faults)
    try:
        try:
            async with asyncio.timeout(limit):
                await scenario(cluster)
        except TimeoutError as error:
            raise TimeoutError(f"the scenario did not return within {limit:g} virtual seconds") from error
        await cluster.calm_down()
        await cluster.finish(limit)
        if cluster.errors:
            raise cluster.errors[0]
    finally:
        events += cluster.events


@contextmanager
def _undisturbed() -> Generator[None]:
    """Disable logging, which costs time, and garbage collection, which would end tasks of dead processes at random."""
    logger, collecting = logging.getLogger("taskharbor"), gc.isenabled()
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    gc.disable()
    try:
        yield
    finally:
        logger.setLevel(level)
        if collecting:
            gc.enable()
