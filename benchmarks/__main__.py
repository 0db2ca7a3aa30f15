"""`make bench`: run everything, write results.json, RESULTS.md and results.svg."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks import against, environment, plot, report, rivals, server, server_nats, server_redis
from benchmarks.measures import measures
from benchmarks.model import NATS, POSTGRES, REDIS, SQLITE, Measure
from benchmarks.run import Runner, Server, weight
from benchmarks.summary import rows

HERE = Path(__file__).resolve().parent
SERVERS: dict[str, Any] = {POSTGRES: server, REDIS: server_redis, NATS: server_nats}


def main() -> int:
    """Measure what was asked for."""
    words = argparse.ArgumentParser(prog="make bench", description=__doc__)
    words.add_argument("--quick", action="store_true", help="two minutes; numbers too rough to keep")
    words.add_argument("--only", default="", help="measures whose key contains this; several with commas")
    words.add_argument("--engine", choices=(SQLITE, *SERVERS), help="all measures of one engine; the others' stay")
    words.add_argument("--against", metavar="REVISION", help="compare only with an earlier revision of this project")
    words.add_argument("--list", action="store_true", help="show the keys")
    words.add_argument("--report", action="store_true", help="write RESULTS.md and results.svg again from results.json")
    options = words.parse_args()
    if options.report:
        return _report(json.loads((HERE / "results.json").read_text(encoding="utf-8")))
    if (why := environment.supported()) is not None:
        sys.exit(why)
    chosen = _chosen([it for it in measures(options.quick) if options.engine in (None, it.engine)], options.only)
    if options.list:
        print("\n".join(f"{measure.key:28} {measure.title}" for measure in chosen))
        return 0
    if options.against is not None:
        return _compare(chosen, options.against)
    results = _run(chosen)
    if options.quick or options.only:
        _show(chosen, results)
        print("A part or a quick run: benchmarks/RESULTS.md stays as it is.")
        return 0
    file = HERE / "results.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps({**known, **results}, indent=1) + "\n", encoding="utf-8")
    _show(chosen, results)
    return _report({**known, **results})


def _compare(chosen: Sequence[Measure], revision: str) -> int:
    try:
        with against.checked_out(revision) as tree:
            pairs = list(against.compared(chosen, revision, tree))
            _show(pairs, _run(pairs))
    except against.UnknownRevision as error:
        sys.exit(str(error))
    return 0


def _report(results: dict[str, Any]) -> int:
    report.write(HERE / "RESULTS.md", measures(False), results)
    plot.write(HERE / "results.svg", measures(False), results)
    print("Wrote benchmarks/results.json, RESULTS.md and results.svg.")
    return 0


def _chosen(all_of_them: list[Measure], only: str) -> list[Measure]:
    parts = [part.strip() for part in only.split(",") if part.strip()]
    chosen = [measure for measure in all_of_them if not parts or any(part in measure.key for part in parts)]
    if not chosen:
        sys.exit(f"no measure is called like {only!r}; there are {', '.join(it.key for it in all_of_them)}")
    return chosen


def _run(chosen: Sequence[Measure]) -> dict[str, Any]:
    """The results of the chosen measures, by engine."""
    # Inside the environment: on the disk of the project, and gone with it whatever happens.
    folder = Path(tempfile.mkdtemp(prefix="work-", dir=sys.prefix))
    console = Console(highlight=False)
    columns = (TextColumn("{task.description}", table_column=None), BarColumn(), TimeElapsedColumn(),
               TextColumn("left:"), TimeRemainingColumn())  # fmt: skip
    try:
        with ExitStack() as stack:
            missing = _missing(chosen)
            servers: dict[str, Server] = {
                engine: stack.enter_context(SERVERS[engine].running())
                for engine, absent in missing.items()
                if engine in SERVERS and engine not in absent
            }
            results: dict[str, Any] = {
                engine: {
                    "environment": environment.describe(folder, engine, servers.get(engine)),
                    "missing": dict(missing[engine]),
                    "measures": {},
                }
                for engine in missing
            }
            absent = {name: why for found in missing.values() for name, why in found.items()}
            progress = stack.enter_context(Progress(*columns, console=console, disable=not console.is_terminal))
            task = progress.add_task("beginning", total=weight(chosen, absent))

            def step(what: str, by: float) -> None:
                progress.update(task, advance=by, description=what[:76])
                if not console.is_terminal:
                    done = progress.tasks[task]
                    print(f"{100 * done.completed / (done.total or 1):5.1f} %  {what}", flush=True)

            if isinstance(nats := servers.get(NATS), server_nats.Servers):
                servers |= nats.named
            runner = Runner(folder, absent, step, servers)
            for measure in chosen:
                results[measure.engine]["measures"][measure.key] = runner.run(measure)
        return results
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _missing(chosen: Sequence[Measure]) -> dict[str, Mapping[str, str]]:
    """For each engine that is needed, what cannot be used here, and why."""
    found: dict[str, Mapping[str, str]] = {}
    for engine in dict.fromkeys(measure.engine for measure in chosen):
        why = SERVERS[engine].missing() if engine in SERVERS else None
        found[engine] = rivals.missing(engine) if why is None else {engine: why}
    return found


def _show(chosen: Sequence[Measure], results: dict[str, Any]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("measure", "TaskHarbor", "compared with", "theirs", "ratio", "floor", ""):
        table.add_column(title, justify="right" if title in ("TaskHarbor", "theirs", "ratio", "floor") else "left")
    for measure in chosen:
        for row in rows(measure, results[measure.engine]["measures"][measure.key]):
            ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
            table.add_row(row.key, row.ours, row.label, row.theirs, ratio, row.floor, report.verdict(row))
    Console(highlight=False, width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    sys.exit(main())
