"""`taskharbor bench`: how fast is this engine on this machine, and what holds it back?"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from operator import itemgetter
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from taskharbor.cli import output
from taskharbor.cli.exits import BAD, complain
from taskharbor.cli.tables import Column, table
from taskharbor.cli.target import here, quieten
from taskharbor.cli.types import answer_options
from taskharbor.worker.signals import on_end_signals

if TYPE_CHECKING:
    from taskharbor.cli.bench_run import Figures, Stage
    from taskharbor.cli.bench_store import Ground

SUSPICIOUS_FSYNC = 0.02
QUICK_ENOUGH = 10.0
REDIS_KEEPS = "appendfsync always: what was acknowledged survives a power cut, if the disk keeps its word on fsync."
STOPPED = "bench stopped; its throw-away store is removed"


@click.command()
@click.argument("store", required=False, metavar="[URL]")
@click.option(
    "--seconds", type=click.FloatRange(0.1, 3600), default=45.0, show_default=True, help="How long to measure."
)
@answer_options
def bench(store: str | None, seconds: float, as_json: bool) -> None:
    """Measure this engine on this machine, in a minute.

    Your jobs are not touched: SQLite is measured in a temporary folder beside the file that the URL names, with the
    same settings, PostgreSQL in a new schema of that database, which the user must be allowed to create, Redis in a
    namespace of its own. All of it is removed at the end, also after Ctrl-C. Without a URL, the configured store is
    used.

    For the ratios to the engine's own limit and to other queues, see `make bench` in the project.
    """
    target = here()
    target.url = store or target.url
    quieten()
    try:
        ground, figures = asyncio.run(_measure(target.named().url, seconds, quiet=as_json))
    except (KeyboardInterrupt, asyncio.CancelledError):
        complain(STOPPED)
        sys.exit(BAD)
    words = verdict(ground, figures)
    if as_json:
        engine = {"engine": ground.engine, "synchronous": ground.synchronous}
        output.print_json({**engine, "seconds": seconds, **_named(figures), "verdict": words})
        return
    _show(figures)
    output.heading("What that means")
    for sentence in words:
        output.say(f"- {sentence}", wrap=True)


async def _measure(url: str, seconds: float, *, quiet: bool) -> tuple[Ground, Figures]:
    from taskharbor.cli.bench_run import run
    from taskharbor.cli.bench_store import throwaway

    main = asyncio.current_task()
    assert main is not None
    on_end_signals(main.cancel)
    async with throwaway(url) as ground, _progress(seconds, quiet) as stage:
        return ground, await run(ground, seconds, stage)


@asynccontextmanager
async def _progress(seconds: float, quiet: bool) -> AsyncGenerator[Stage]:
    """Progress: a bar with the time left in a terminal, a line per stage elsewhere, nothing with JSON."""
    screen = None if quiet else output.console()
    if screen is None:
        yield (lambda name: None) if quiet else (lambda name: output.say(f"measuring {name} …"))
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("measuring {task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, refresh_per_second=4) as progress:
        task = progress.add_task("", total=seconds * 1.2)

        async def tick() -> None:
            begun = time.monotonic()
            while True:
                progress.update(task, completed=min(time.monotonic() - begun, seconds * 1.2))
                await asyncio.sleep(0.25)

        ticking = asyncio.create_task(tick())
        try:
            yield lambda name: progress.update(task, description=name)
        finally:
            ticking.cancel()
            with suppress(asyncio.CancelledError):
                await ticking


def _named(figures: Figures) -> dict[str, object]:
    values = asdict(figures)
    return {
        "enqueue_per_second": {name: values[name] for name in ("single", "concurrent", "bulk")},
        "drain_per_second": figures.drain,
        "latency_ms": {"p50": figures.latency_p50, "p99": figures.latency_p99, "two_processes": figures.two_processes},
        "fsync_ms": figures.fsync,
        "commit_ms": figures.commit,
        "round_trip_ms": figures.round_trip,
    }


def _show(figures: Figures) -> None:
    where = "to a second process" if figures.two_processes else "within the process"
    rows = [
        ["enqueue, one after another", f"{figures.single:,.0f} jobs/s"],
        ["enqueue, 50 at a time", f"{figures.concurrent:,.0f} jobs/s"],
        ["enqueue_many, prepared", f"{figures.bulk:,.0f} jobs/s"],
        ["drain, one worker, 100 slots", f"{figures.drain:,.0f} jobs/s"],
        [f"latency {where}, p50", f"{figures.latency_p50:.1f} ms"],
        [f"latency {where}, p99", f"{figures.latency_p99:.1f} ms"],
        *([] if figures.fsync is None else [["fsync of the disk", f"{figures.fsync:.2f} ms"]]),
        *([] if figures.commit is None else [["commit of one row", f"{figures.commit:.2f} ms"]]),
        *([] if figures.round_trip is None else [["round trip to the server", f"{figures.round_trip:.2f} ms"]]),
    ]
    output.heading("Jobs that do nothing")
    table([Column("MEASURE", itemgetter(0)), Column("HERE", itemgetter(1), right=True)], rows)


def verdict(ground: Ground, figures: Figures) -> list[str]:
    """Explain the numbers: speed, its limit, how quickly work begins, and what a power cut costs."""
    return [
        _about_enqueueing(ground, figures),
        _about_draining(figures),
        _about_latency(ground, figures),
        _about_loss(ground, figures),
    ]


def _about_enqueueing(ground: Ground, figures: Figures) -> str:
    gain = f"{figures.concurrent / figures.single:.1f} × as many at once, {figures.bulk / figures.single:.0f} × in bulk"
    each = 1000 / figures.single
    takes = f"A single enqueue takes {each:.2f} ms"
    limit, name, slow = figures.fsync, "fsync", "the disk is"
    rest = "the way to the store's thread and back"
    if ground.engine == "postgresql":
        limit, name, slow, rest = figures.commit, "a commit", "the server's disk and the way there are", "our statement"
    if ground.engine in ("redis", "nats"):
        limit, name, slow = figures.round_trip, "the way to the server", "the way to the server is"
        rest = "our script" if ground.engine == "redis" else "storing its card and its page"
    if limit is None or ground.synchronous == "normal":
        rest = "Python" if ground.engine == "memory" else f"Python and {rest}"
        return f"{takes}, nearly all of it {rest}; {gain}."
    share = min(1.0, limit / each)
    if share < 0.5:
        return f"{takes}, about {share:.0%} of it {name}: {rest} is the rest; {gain}."
    return (
        f"{takes}, about {share:.0%} of it {name}: {slow} the limit. Commits are shared, so enqueue concurrently "
        f"or with enqueue_many: {gain}."
    )


def _about_draining(figures: Figures) -> str:
    return (
        f"One worker process settles {figures.drain:,.0f} jobs a second, {1000 / figures.drain:.2f} ms each: "
        "jobs that take longer than that on the CPU are the limit themselves, and more processes help."
    )


def _about_latency(ground: Ground, figures: Figures) -> str:
    begins = f"{figures.latency_p50:.1f} ms after the enqueue"
    if figures.latency_p50 <= QUICK_ENOUGH + 2 * (figures.commit or 0.0):  # for the enqueue and the claim
        return f"An idle worker begins {begins}: good."
    if "pgbouncer=true" in ground.url:
        return f"An idle worker begins {begins}, because with pgbouncer=true it polls: connect workers directly."
    busy = "the server or the way there" if ground.engine in ("postgresql", "redis", "nats") else "its disk"
    return f"An idle worker begins only {begins}: is this machine or {busy} busy?"


def _about_loss(ground: Ground, figures: Figures) -> str:
    if ground.engine == "memory":
        return "memory:// forgets everything when the process ends: for tests."
    if ground.engine == "postgresql":
        return _about_servers(ground.synchronous)
    if ground.engine in ("redis", "nats"):
        return "; ".join(ground.may_lose) + "." if ground.may_lose else REDIS_KEEPS
    if ground.synchronous == "normal":
        return (
            "synchronous=normal: a power cut may lose the last acknowledged jobs, a crash of the process does not; "
            "with full none are lost."
        )
    if figures.fsync is not None and figures.fsync < SUSPICIOUS_FSYNC:
        return (
            f"An fsync of {figures.fsync * 1000:.0f} µs is too good for a disk: memory (tmpfs), or it only pretends. "
            "Then a power cut loses jobs."
        )
    return "synchronous=full: what was acknowledged survives a power cut, if the disk keeps its word on fsync."


def _about_servers(synchronous: str | None) -> str:
    if synchronous == "fsync=off":
        return "fsync is off on this server: a power cut may cost the whole database. Set it on."
    if synchronous == "off":
        return "synchronous_commit is off: a crash of the server loses acknowledged jobs. Set it on for this user."
    return (
        f"synchronous_commit={synchronous}: what was acknowledged survives a power cut of the server, if its disk "
        "keeps its word on fsync."
    )
