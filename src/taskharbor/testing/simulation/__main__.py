"""`python -m taskharbor.testing.simulation`: sweep seeds, or look at one.

Exit codes: 0 all promises held, 1 one was broken, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from taskharbor.testing.simulation.run import STANDARD, explain, simulate
from taskharbor.testing.simulation.sweep import named, remember, sweep

SHOWN = 3


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    given = _parser().parse_args(arguments)
    try:
        named(given.scenario)
    except (ImportError, AttributeError, ValueError) as error:
        print(f"no scenario {given.scenario!r}: {error}; write it as package.module:function", file=sys.stderr)  # noqa: T201
        return 2
    return _show(given) if given.seed is not None else _sweep(given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m taskharbor.testing.simulation", description=__doc__)
    parser.add_argument("--scenario", default=STANDARD, help="package.module:function (default: the standard one)")
    parser.add_argument("--driver", default="memory", help="memory, sqlite, or the URL of an engine for tests")
    parser.add_argument("--seeds", type=_seeds, default=range(100), metavar="N|FROM:TO", help="which seeds to sweep")
    parser.add_argument("--seed", type=int, help="one seed: its trace in full, and the verdict")
    parser.add_argument("--processes", type=int, help="how many at a time (default: one a processor)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write failing seeds there as regression files")
    return parser


def _seeds(text: str) -> range:
    first, colon, last = text.replace("_", "").partition(":")
    seeds = range(int(first), int(last)) if colon else range(int(first))
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text} names no seed")
    return seeds


def _show(given: argparse.Namespace) -> int:
    result = simulate(named(given.scenario), given.seed, driver=given.driver)
    broken = bool(result.report.violations)
    print(result.trace())  # noqa: T201
    print(explain(result) if broken else f"\nall promises held: {result.report.counts}")  # noqa: T201
    return int(broken)


def _sweep(given: argparse.Namespace) -> int:
    console = Console(highlight=False)
    operations = executions = 0
    failed: list[int] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console) as progress:
        bar = progress.add_task(f"seeds on {given.driver}", total=len(given.seeds))
        for outcome in sweep(given.scenario, given.seeds, given.driver, given.processes):
            operations += outcome.operations
            executions += outcome.executions
            progress.advance(bar)
            if outcome.failure:
                failed.append(outcome.seed)
                progress.update(bar, description=f"seeds on {given.driver}, [red]{len(failed)} failed[/]")
                if len(failed) <= SHOWN:
                    progress.console.print(outcome.failure, markup=False, soft_wrap=True)
                if given.keep is not None:
                    progress.console.print(f"kept as {remember(outcome, given.scenario, given.driver, given.keep)}")
    console.print(f"{len(given.seeds):,} seeds, {operations:,} driver operations, {executions:,} runs of handlers")
    console.print(f"[red]{len(failed)} seeds failed:[/] {failed[:50]}" if failed else "[green]all promises held[/]")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
