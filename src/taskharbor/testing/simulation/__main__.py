"""`python -m taskharbor.testing.simulation`: sweep seeds, show one, or retry recorded failures."""

from __future__ import annotations

import argparse
import sys
import traceback
from contextlib import closing
from pathlib import Path
from random import Random
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from taskharbor.core.urls import redacted, without_passwords
from taskharbor.errors import HarborError
from taskharbor.testing.simulation.run import STANDARD, explain, simulate
from taskharbor.testing.simulation.stores import SERVERS, kind, opened
from taskharbor.testing.simulation.sweep import SeedOutcome, kept, named, remember, sweep, try_seed

SHOWN = 3
FINE, BROKEN, WRONG, INTERRUPTED = 0, 1, 2, 130


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    given = _parser().parse_args(arguments)
    try:
        named(given.scenario)
        with opened(given.driver, Random(0)):
            pass
    except (ImportError, AttributeError, ValueError, HarborError) as error:
        print(  # noqa: T201
            f"cannot run {given.scenario} on {redacted(given.driver)}: {error}\n"
            "write a scenario as package.module:function, a driver as memory, sqlite or the URL of an engine for tests",
            file=sys.stderr,
        )
        return WRONG
    try:
        if given.again is not None:
            return _again(given.again, given.driver)
        return _show(given) if given.seed is not None else _sweep(given)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """The parser's error, with passwords redacted."""
        super().error(without_passwords(message))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        "python -m taskharbor.testing.simulation",
        description="Run a scenario on virtual time from many seeds, with every fault, and check its history.",
        epilog="exit codes: 0 all promises held, 1 one was broken, 2 wrong usage",
    )
    parser.add_argument("--scenario", default=STANDARD, help="package.module:function (default: the standard one)")
    parser.add_argument("--driver", default="memory", help="memory, sqlite, or the URL of an engine for tests")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--seeds", type=_seeds, default=range(100), metavar="N|FROM:TO", help="sweep these (default 100)"
    )
    which.add_argument("--seed", type=int, help="one seed: its trace in full, and the verdict")
    which.add_argument("--again", type=Path, metavar="FOLDER", help="run the regression files of a folder again")
    parser.add_argument("--processes", type=_positive, help="how many at a time (default: one per processor)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write failing seeds there as regression files")
    return parser


def _seeds(text: str) -> range:
    first, colon, last = text.replace("_", "").partition(":")
    try:
        seeds = range(int(first), int(last)) if colon else range(int(first))
    except ValueError:
        raise argparse.ArgumentTypeError(f"write a number or FROM:TO, not {text!r}") from None
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text} names no seed")
    return seeds


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"write a number from 1 up, not {text!r}")
    return int(text)


def _show(given: argparse.Namespace) -> int:
    try:
        result = simulate(named(given.scenario), given.seed, driver=given.driver)
    except Exception as error:
        print("".join(traceback.format_exception(error)))  # noqa: T201
        return BROKEN
    print(result.trace())  # noqa: T201
    print(explain(result) if not result.report.fine else "\n" + "\n".join(result.report.lines(0)))  # noqa: T201
    return FINE if result.report.fine else BROKEN


def _again(folder: Path, given: str) -> int:
    failed = 0
    for regression in kept(folder):
        driver = given if kind(given) == kind(regression.driver) else regression.driver
        if driver in SERVERS:
            verdict = f"not tried: name a server with --driver {driver}://…"
            failed += 1
        else:
            outcome = try_seed(regression.scenario, regression.seed, driver)
            failed += bool(outcome.failure)
            verdict = "fails again" if outcome.failure else "holds"
        print(f"{regression.scenario} seed {regression.seed} on {redacted(driver)}: {verdict}")  # noqa: T201
    return BROKEN if failed else FINE


def _sweep(given: argparse.Namespace) -> int:
    """Run all seeds with a progress bar, then print the totals."""
    console, shown = Console(highlight=False), redacted(given.driver)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    running = sweep(given.scenario, given.seeds, given.driver, given.processes)
    operations, executions, failed = 0, 0, list[int]()
    with closing(running), Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console) as it:
        bar = it.add_task(f"seeds on {shown}", total=len(given.seeds))
        for outcome in running:
            operations += outcome.operations
            executions += outcome.executions
            if outcome.failure:
                failed.append(outcome.seed)
                _report(console, given, outcome, in_full=len(failed) <= SHOWN)
            counted = f", [red]{len(failed)} failed[/]" if failed else ""
            it.update(bar, advance=1, description=f"seeds on {shown}{counted}")
    console.print(f"{len(given.seeds):,} seeds, {operations:,} driver operations, {executions:,} runs of handlers")
    if not executions:
        console.print("[yellow]no handler ever ran: does the scenario start workers and enqueue anything?[/]")
    if not failed:
        console.print("[green]all promises held[/]")
        return FINE
    hidden = f" ({len(failed) - SHOWN} not shown)" if len(failed) > SHOWN else ""
    console.print(f"[red]failed:[/] {', '.join(map(str, sorted(failed)[:50]))}{hidden}")
    return BROKEN


def _report(console: Console, given: argparse.Namespace, outcome: SeedOutcome, *, in_full: bool) -> None:
    if in_full:
        console.print(outcome.failure, markup=False, soft_wrap=True)
    if given.keep is not None:
        path = remember(outcome, given.scenario, given.driver, given.keep)
        console.print(f"kept as {path}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
