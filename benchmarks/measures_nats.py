"""The measures on NATS, with the floors of the project."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.model import NATS, NATS_ALWAYS, NATS_THREE, Side
from benchmarks.model import Measure as AnyMeasure

Measure = partial(AnyMeasure, engine=NATS)
BACKLOG = 200_000
LINE = 1_000_000


def measures() -> Iterator[AnyMeasure]:
    """All of them."""
    yield from _drains()
    yield from _crowds()
    yield from _enqueues()
    yield from _chords()
    yield from _backlogs()
    yield from _processes()
    yield from _starts()


def _ours(
    function: str,
    weight: float,
    label: str = "TaskHarbor",
    engine: str = NATS,
    database: str | None = None,
    **more: Any,
) -> Side:
    return Side(label, function, {"engine": engine, **more}, weight, database=database)


def _raw(label: str, function: str, weight: float, url: str = NATS, **more: Any) -> Side:
    return Side(label, f"raw_nats.{function}", {"url": url, **more}, weight)


def _drains() -> Iterator[AnyMeasure]:
    """No-op jobs that wait in line, run through the whole worker; finished jobs are kept."""
    ours = _ours("ours.drain", 4, jobs=60_000)
    yield Measure(
        "drain-nats-100",
        "NATS: drain, async jobs, 100 slots",
        {"ours": ours, "raw": _raw("raw loop, pages of 100", "drain", 3, jobs=60_000)},
        {"raw": 0.4},
        rounds=5,
    )
    yield Measure(
        "drain-nats-always",
        "NATS, sync always: drain, async jobs, 100 slots",
        {
            "ours": _ours("ours.drain", 5, engine=NATS_ALWAYS, jobs=60_000),
            "default": _ours("ours.drain", 4, "TaskHarbor, sync default", jobs=60_000),
            "raw": _raw("raw loop, pages of 100", "drain", 4, NATS_ALWAYS, jobs=60_000),
        },
        {"default": 0.5},
    )
    yield Measure(
        "drain-nats-three",
        "NATS, three replicas: drain, async jobs, 100 slots",
        {"ours": _ours("ours.drain", 12, engine=NATS_THREE, jobs=40_000)},
    )
    yield Measure(
        "drain-def-nats",
        "NATS: drain, def jobs in threads",
        {"ours": _ours("ours.drain", 4, jobs=40_000, task="plain"), "async": ours},
    )
    yield Measure(
        "drain-nats-singles",
        "NATS: drain of jobs that were enqueued one by one",
        {"ours": _ours("processes_nats.drain_singles", 6, jobs=20_000), "full": ours},
    )


def _crowds() -> Iterator[AnyMeasure]:
    """Worker processes that claim from the same queue, 100 slots each."""
    yield Measure(
        "crowd-nats",
        "NATS: three worker processes against one",
        {
            "ours": _ours("processes_nats.crowd", 10, "three workers", jobs=120_000, workers=3),
            "one": _ours("processes_nats.crowd", 8, "one worker", jobs=120_000, workers=1),
        },
        {"one": 0.8},
        limits={"conflicts": 20},
    )


def _enqueues() -> Iterator[AnyMeasure]:
    """Beside raw creates with 50 outstanding."""
    for engine, title, floor in ((NATS, "NATS", 0.3), (NATS_ALWAYS, "NATS, sync always", 1.5)):
        yield Measure(
            f"enqueue-concurrent-{engine}",
            f"{title}: aenqueue from 50 producers",
            {
                "ours": _ours("ours.enqueue_concurrent", 2, engine=engine, seconds=1.5),
                "raw": _raw("raw creates, 50 outstanding", "create", 2, engine, seconds=1.5),
            },
            {"raw": floor},
            rounds=5,
        )
    yield Measure(
        "enqueue-single-nats",
        "NATS: aenqueue one after another",
        {
            "ours": _ours("ours.enqueue_single", 2, seconds=1.0),
            "raw": _raw("raw creates, one after another", "create", 2, seconds=1.0, outstanding=1),
        },
    )
    yield Measure(
        "enqueue-bulk-nats",
        "NATS: enqueue_many of 10,000 prepared steps",
        {
            "ours": _ours("ours.enqueue_bulk", 3, jobs=10_000, times=5),
            "raw": _raw("raw atomic batches of 1,000", "create_batches", 2, jobs=10_000, times=5),
        },
        {"raw": 0.5},
        rounds=5,
    )


def _chords() -> Iterator[AnyMeasure]:
    yield Measure(
        "chord-nats",
        "NATS: a chord of 10,000, enqueue included",
        {
            "ours": _ours("ours.chord", 3, "TaskHarbor, a chord", jobs=10_000, slots=200),
            "plain": _ours("ours.plain", 2, "TaskHarbor, plain jobs", jobs=10_000, slots=200),
        },
    )


def _backlogs() -> Iterator[AnyMeasure]:
    """As elsewhere the clock starts with the worker: it reads the future jobs, too, before it begins."""
    made = {"engine": NATS, "kind": "future", "jobs": BACKLOG}
    yield Measure(
        "backlog-future-nats",
        f"NATS: drain beside {BACKLOG:,} future jobs",
        {
            "ours": _ours(
                "ours.drain", 6, f"TaskHarbor beside {BACKLOG:,} future jobs", database="future", jobs=60_000
            ),
            "alone": _ours("ours.drain", 4, "TaskHarbor without", jobs=60_000),
        },
        {"alone": 0.85},
        rounds=5,
        setup=Side("making future jobs on NATS", "backlog.make", made, 10, database="future"),
    )


def _processes() -> Iterator[AnyMeasure]:
    for engine, title, most in ((NATS, "NATS", 5), (NATS_THREE, "NATS, three replicas", 8)):
        yield Measure(
            f"latency-{engine}",
            f"{title}: latency across two idle processes, p50",
            {"ours": _ours("processes.latency", 7, engine=engine, jobs=60)},
            value="p50",
            unit="ms",
            limits={"p50": most},
        )
    yield Measure(
        "idle-nats",
        "NATS: CPU of an idle worker",
        {"ours": _ours("processes.idle", 12, seconds=10.0)},
        value="percent",
        unit="% of a core",
        rounds=1,
    )


def _starts() -> Iterator[AnyMeasure]:
    """From the call that begins a worker until its first job has ended, and what its memory has grown by then."""
    for kind, jobs, limits in (("full", LINE, {"seconds": 3.0}), ("singles", LINE // 4, {})):
        label = "full pages" if kind == "full" else "pages of one"
        yield Measure(
            f"start-nats-{kind}",
            f"NATS: start of a worker beside {jobs:,} jobs in {label}",
            {"ours": _ours("processes_nats.start", 8, database=kind)},
            value="seconds",
            unit="s",
            limits=limits,
            rounds=3 if limits else 1,
            setup=Side(
                f"making {jobs:,} jobs in {label} on NATS",
                "processes_nats.make",
                {"engine": NATS, "jobs": jobs, "page": 100 if kind == "full" else 1},
                20,
                database=kind,
            ),
        )
