"""The measures on PostgreSQL, with the floors of the project."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.model import COUNT, POSTGRES, Side
from benchmarks.model import Measure as AnyMeasure

Measure = partial(AnyMeasure, engine=POSTGRES)
BACKLOG = 200_000
LONG, SPAN = 300_000, 50_000
RIVALS = {
    "pgqueuer": "PgQueuer",
    "procrastinate": "procrastinate",
    "saq": "SAQ",
    "dbos": "DBOS",
    "chancy": "Chancy",
    "awa": "awa-pg (Rust)",
}
IN_PYTHON = tuple(name for name in RIVALS if name != "awa")
# As many jobs as each can do in a few seconds: a drain is cut short after four, a bulk is not.
DRAINED = {"pgqueuer": 20_000, "procrastinate": 2_000, "saq": 2_000, "dbos": 2_000, "chancy": 8_000, "awa": 10_000}
BULK = {"pgqueuer": 10_000, "procrastinate": 10_000, "saq": 1_000, "dbos": 1_000, "chancy": 3_000, "awa": 10_000}


def measures() -> Iterator[AnyMeasure]:
    """All of them."""
    yield from _drains()
    yield from _enqueues()
    yield from _blocking()
    yield from _chords()
    yield from _backlogs()
    yield from _decay()
    yield from _processes()


def _ours(function: str, weight: float, label: str = "TaskHarbor", database: str | None = None, **more: Any) -> Side:
    return Side(label, function, {"engine": POSTGRES, **more}, weight, database=database)


def _raw(label: str, function: str, weight: float, **more: Any) -> Side:
    return Side(label, function, {"url": POSTGRES, **more}, weight)


def _rival(name: str, function: str, weight: float, rounds: int | None = None, **more: Any) -> Side:
    return Side(RIVALS[name], function, {"url": POSTGRES, "rival": name, **more}, weight, name, rounds)


def _drains() -> Iterator[AnyMeasure]:
    """No-op jobs that wait in line, run through the whole worker; finished rows are kept."""
    for slots in (100, 200):
        yield Measure(
            f"drain-postgres-{slots}",
            f"PostgreSQL: drain, async jobs, {slots} slots",
            {
                "ours": _ours("ours.drain", 4, jobs=30_000, slots=slots),
                "raw": _raw("raw loop, batch 100", "raw_postgres.drain", 3, jobs=40_000),
                **{it: _rival(it, "rivals_postgres.drain", 7, jobs=DRAINED[it]) for it in RIVALS},
            },
            {"raw": 0.5, **dict.fromkeys(IN_PYTHON, 2.0)},
        )
    yield Measure(
        "drain-def-postgres",
        "PostgreSQL: drain, def jobs in threads",
        {
            "ours": _ours("ours.drain", 3, jobs=15_000, task="plain"),
            "raw": _raw("raw loop, batch 100", "raw_postgres.drain", 3, jobs=40_000),
        },
    )


def _blocking() -> Iterator[AnyMeasure]:
    """`task.enqueue` on the caller's thread, by psycopg, beside bare inserts of as many threads."""
    for threads, floor in ((1, 0.6), (8, 0.55)):
        timed = {"seconds": 1.0, "threads": threads}
        yield Measure(
            f"enqueue-blocking-{threads}-postgres",
            f"PostgreSQL: blocking enqueue, {threads} thread{'s' if threads > 1 else ''}",
            {
                "ours": _ours("blocking.ours", 3, **timed),
                "raw": _raw("bare inserts by psycopg, as many threads", "blocking.bare_postgres", 3, **timed),
            },
            {"raw": floor},
            rounds=5,
        )


def _enqueues() -> Iterator[AnyMeasure]:
    yield Measure(
        "enqueue-single-postgres",
        "PostgreSQL: aenqueue one after another",
        {
            "ours": _ours("ours.enqueue_single", 2, seconds=1.0),
            "raw": _raw("raw single inserts with NOTIFY", "raw_postgres.insert_single", 2, seconds=1.0),
            **{it: _rival(it, "rivals_postgres.enqueue_single", 3, seconds=1.0) for it in RIVALS},
        },
        {"raw": 0.7},
        rounds=5,
    )
    yield Measure(
        "enqueue-concurrent-postgres",
        "PostgreSQL: aenqueue from 50 producers",
        {
            "ours": _ours("ours.enqueue_concurrent", 2, seconds=1.0),
            "raw": _raw("raw inserts, coalesced", "raw_postgres.insert_coalesced", 2, seconds=1.0),
        },
        {"raw": 0.4},
        rounds=5,
    )
    yield Measure(
        "enqueue-bulk-postgres",
        "PostgreSQL: enqueue_many of 10,000 prepared steps",
        {
            "ours": _ours("ours.enqueue_bulk", 2, jobs=10_000, times=5),
            "raw": _raw("raw COPY of 10,000", "raw_postgres.insert_copy", 2, jobs=10_000, times=5),
            **{it: _rival(it, "rivals_postgres.enqueue_bulk", 5, jobs=BULK[it], times=3) for it in RIVALS},
        },
        {"raw": 0.25, **dict.fromkeys(RIVALS, 1.5)},
    )


def _chords() -> Iterator[AnyMeasure]:
    yield Measure(
        "chord-postgres",
        "PostgreSQL: a chord of 10,000, enqueue included",
        {
            "ours": _ours("ours.chord", 2, "TaskHarbor, a chord", jobs=10_000, slots=200),
            "plain": _ours("ours.plain", 2, "TaskHarbor, plain jobs", jobs=10_000, slots=200),
        },
        {"plain": 0.67},
        rounds=5,
    )


def _backlogs() -> Iterator[AnyMeasure]:
    for kind in ("future", "finished"):
        beside = f"TaskHarbor beside {BACKLOG:,} {kind} jobs"
        setup = Side(
            f"making {kind} jobs on PostgreSQL",
            "backlog.make",
            {"engine": POSTGRES, "kind": kind, "jobs": BACKLOG},
            20,
            database=kind,
        )
        yield Measure(
            f"backlog-{kind}-postgres",
            f"PostgreSQL: drain beside {BACKLOG:,} {kind} jobs",
            {
                "ours": _ours("ours.drain", 4, beside, kind, jobs=20_000),
                "alone": _ours("ours.drain", 4, "TaskHarbor without", jobs=20_000),
            },
            {"alone": 0.85},
            rounds=5,
            setup=setup,
        )


def _decay() -> Iterator[AnyMeasure]:
    """The last jobs of a long drain against the first, and the same beside a transaction that stays open."""
    for snapshot, least in ((False, 0.8), (True, 0.5)):
        beside = ", an old snapshot held" if snapshot else ""
        raw_jobs = 2 * SPAN if snapshot else LONG  # the plain layout takes minutes over the rest
        raw = _raw(
            f"raw loop over {raw_jobs:,}{beside}",
            "raw_postgres.decay",
            20,
            jobs=raw_jobs,
            span=SPAN,
            snapshot=snapshot,
        )
        raw = replace(raw, rounds=1)
        yield Measure(
            f"decay{'-snapshot' if snapshot else ''}-postgres",
            f"PostgreSQL: last {SPAN:,} of {LONG:,} jobs against the first{beside}",
            {"ours": _ours("decay.drain", 35, jobs=LONG, span=SPAN, snapshot=snapshot), "raw": raw},
            value="kept",
            unit="×",
            least={"kept": least},
        )


def _processes() -> Iterator[AnyMeasure]:
    yield Measure(
        "cpu-processes-postgres",
        "PostgreSQL: CPU-bound def jobs, --processes 2",
        {
            "ours": _ours("supervised.drain", 6, "TaskHarbor, 2 processes", processes=2, jobs=200),
            "one": _ours("supervised.drain", 6, "TaskHarbor, 1 process", processes=1, jobs=200),
            "bare": Side("2 bare processes", "supervised.bare", {"processes": 2, "jobs": 200}, 5),
            "bare one": Side("1 bare process", "supervised.bare", {"processes": 1, "jobs": 200}, 5),
        },
        {"one": 1.5},
        rounds=5,
    )
    yield Measure(
        "latency-postgres",
        "PostgreSQL: latency across two idle processes, p50",
        {
            "ours": _ours("processes.latency", 6, jobs=60),
            "raw": _raw("raw insert, NOTIFY, claim", "processes_postgres.raw_latency", 6, jobs=60),
            **{it: _rival(it, "processes_postgres.rival_latency", 8, jobs=60) for it in RIVALS},
        },
        {"raw": 2.0, **dict.fromkeys(RIVALS, 1.0)},
        value="p50",
        unit="ms",
    )
    yield Measure(
        "idle-postgres",
        "PostgreSQL: CPU of an idle worker",
        {
            "ours": _ours("processes_postgres.idle", 12, seconds=10.0),
            **{it: _rival(it, "processes_postgres.rival_idle", 14, rounds=1, seconds=10.0) for it in RIVALS},
        },
        value="percent",
        unit="% of a core",
        limits={"percent": 1, "server": 1},
    )
    yield Measure(
        "connections-postgres",
        "PostgreSQL: connections of one worker process",
        {"ours": _ours("processes_postgres.connections", 6, jobs=20_000, seconds=4.0)},
        value="connections",
        unit=COUNT,
        limits={"connections": 5},
    )
