"""Many seeds in parallel processes: progress while it runs, and every failure with its trace and its command."""

from __future__ import annotations

import importlib
import inspect
import os
import signal
import traceback
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import msgspec
from msgspec import Struct

from taskharbor.core.urls import redacted
from taskharbor.testing.simulation.run import Scenario, explain, simulate
from taskharbor.testing.simulation.stores import kind


class SeedOutcome(Struct, frozen=True):
    """The outcome of one seed; `failure` is empty if all promises held."""

    seed: int
    operations: int
    executions: int
    failure: str = ""
    violated: tuple[str, ...] = ()


class Regression(Struct, frozen=True):
    """A seed that failed once, kept as a regression test. `driver` is only the engine of a URL."""

    scenario: str
    seed: int
    driver: str
    violated: tuple[str, ...]


def named(scenario: str) -> Scenario:
    """The scenario with a name such as `package.module:function`."""
    module, _, function = scenario.partition(":")
    found: Scenario = getattr(importlib.import_module(module), function)
    if not inspect.iscoroutinefunction(found):
        raise ValueError("it is not an async function that takes a Cluster")
    return found


def try_seed(scenario: str, seed: int, driver: str) -> SeedOutcome:
    """Run one seed and return its outcome, even if it raises."""
    try:
        result = simulate(named(scenario), seed, driver=driver)
    except Exception as error:
        failure = f"seed {seed} on {redacted(driver)}: {''.join(traceback.format_exception(error))}"
        return SeedOutcome(seed, 0, 0, failure, (type(error).__name__,))
    failure = "" if result.report.fine else explain(result)
    violated = tuple(sorted(result.report.names))
    return SeedOutcome(seed, result.operations, result.report.counts.executions, failure, violated)


def sweep(
    scenario: str, seeds: Iterable[int], driver: str = "memory", processes: int | None = None
) -> Generator[SeedOutcome]:
    """Run the seeds, as many at a time as there are processors; outcomes are yielded as they are ready."""
    count = processes or os.cpu_count() or 1
    left = iter(seeds)
    with ProcessPoolExecutor(count, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        start: Callable[[int], Future[SeedOutcome]] = lambda seed: pool.submit(try_seed, scenario, seed, driver)  # noqa: E731
        running = {start(seed) for seed in islice(left, count * 4)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {start(seed) for seed in islice(left, len(done))}
            try:
                yield from (future.result() for future in done)
            except GeneratorExit:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def kept(folder: Path) -> list[Regression]:
    """The regression files of a folder."""
    return [msgspec.json.decode(path.read_bytes(), type=Regression) for path in sorted(folder.glob("*.json"))]


def remember(outcome: SeedOutcome, scenario: str, driver: str, folder: Path) -> Path:
    """Keep a failed seed as a regression file."""
    folder.mkdir(parents=True, exist_ok=True)
    engine = kind(driver)
    path = folder / f"{scenario.rpartition(':')[2]}-{engine}-{outcome.seed}.json"
    regression = Regression(scenario, outcome.seed, engine, outcome.violated)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(regression)) + b"\n")
    return path
