"""The measures on Redis, with the floors of the project."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.model import REDIS, Side
from benchmarks.model import Measure as AnyMeasure

Measure = partial(AnyMeasure, engine=REDIS)
BACKLOG = 200_000
RIVALS = {
    "celery": "Celery, solo",
    "rq": "RQ, SimpleWorker",
    "dramatiq": "dramatiq",
    "huey": "huey (at most once)",
    "arq": "arq",
    "saq": "SAQ",
    "taskiq_redis": "taskiq, streams",
    "streaq": "streaQ",
}
OLDER = ("arq", "saq")
# As many jobs as each can do in a few seconds: a drain is cut short after four.
DRAINED = {"celery": 6_000, "rq": 1_500, "dramatiq": 15_000, "huey": 20_000, "arq": 8_000, "saq": 8_000,
           "taskiq_redis": 15_000, "streaq": 5_000}  # fmt: skip
BULK = {"rq": 3_000, "streaq": 5_000, "saq": 5_000}  # who has one, and SAQ from 20 tasks at once


def measures() -> Iterator[AnyMeasure]:
    """All of them."""
    yield from _drains()
    yield from _enqueues()
    yield from _blocking()
    yield from _chords()
    yield from _backlogs()
    yield from _processes()


def _ours(function: str, weight: float, label: str = "TaskHarbor", database: str | None = None, **more: Any) -> Side:
    return Side(label, function, {"engine": REDIS, **more}, weight, database=database)


def _raw(label: str, function: str, weight: float, **more: Any) -> Side:
    return Side(label, function, {"url": REDIS, **more}, weight)


def _rival(name: str, function: str, weight: float, rounds: int | None = None, **more: Any) -> Side:
    arguments = {"url": REDIS, "rival": name, **more}
    return Side(RIVALS[name], function, arguments, weight, name, rounds, older=name in OLDER)


def _drains() -> Iterator[AnyMeasure]:
    """No-op jobs that wait in line, run through the whole worker; finished jobs are kept."""
    raw = _raw("raw scripts, batch 100", "raw_redis.drain", 2, jobs=100_000)
    yield Measure(
        "drain-redis-100",
        "Redis: drain, async jobs, 100 slots",
        {
            "ours": _ours("ours.drain", 4, jobs=60_000),
            "raw": raw,
            "kept": _raw("raw scripts that keep ended jobs", "raw_redis.drain", 2, jobs=100_000, kept=True),
            **{it: _rival(it, "rivals_redis.drain", 6, jobs=DRAINED[it]) for it in RIVALS},
        },
        {"raw": 0.4, **dict.fromkeys(RIVALS, 8.0)},
    )
    yield Measure(
        "drain-def-redis",
        "Redis: drain, def jobs in threads",
        {"ours": _ours("ours.drain", 3, jobs=30_000, task="plain"), "raw": raw},
    )


def _enqueues() -> Iterator[AnyMeasure]:
    yield Measure(
        "enqueue-single-redis",
        "Redis: aenqueue one after another",
        {
            "ours": _ours("ours.enqueue_single", 2, seconds=1.0),
            "raw": _raw("raw script for each", "raw_redis.enqueue_single", 2, seconds=1.0),
            **{it: _rival(it, "rivals_redis.enqueue_single", 3, seconds=1.0) for it in RIVALS},
        },
        {"raw": 0.6},
        rounds=5,
    )
    yield Measure(
        "enqueue-bulk-redis",
        "Redis: enqueue_many of 10,000 prepared steps",
        {
            "ours": _ours("ours.enqueue_bulk", 2, jobs=10_000, times=5),
            "raw": _raw("raw script, batch 100", "raw_redis.enqueue_batch", 2, jobs=10_000, times=5),
            **{it: _rival(it, "rivals_redis.enqueue_bulk", 3, jobs=jobs, times=3) for it, jobs in BULK.items()},
        },
        {"raw": 0.4},
        rounds=5,
    )


def _blocking() -> Iterator[AnyMeasure]:
    """`task.enqueue` on the caller's thread, beside a bare script by as many threads."""
    for threads in (1, 8):
        timed = {"seconds": 1.0, "threads": threads}
        yield Measure(
            f"enqueue-blocking-{threads}-redis",
            f"Redis: blocking enqueue, {threads} thread{'s' if threads > 1 else ''}",
            {
                "ours": _ours("blocking.ours", 3, **timed),
                "raw": _raw("bare scripts by redis-py, as many threads", "blocking.bare_redis", 3, **timed),
            },
            rounds=5,
        )


def _chords() -> Iterator[AnyMeasure]:
    yield Measure(
        "chord-redis",
        "Redis: a chord of 10,000, enqueue included",
        {
            "ours": _ours("ours.chord", 2, "TaskHarbor, a chord", jobs=10_000, slots=200),
            "plain": _ours("ours.plain", 2, "TaskHarbor, plain jobs", jobs=10_000, slots=200),
        },
        rounds=5,
    )


def _backlogs() -> Iterator[AnyMeasure]:
    """So many jobs are drained that the server has made its tables larger before: it moves a table bit by bit whenever
    it is used, and the first 30,000 jobs beside a backlog would pay for moving all of it."""
    setup = Side(
        "making future jobs on Redis",
        "backlog.make",
        {"engine": REDIS, "kind": "future", "jobs": BACKLOG},
        10,
        database="future",
    )
    yield Measure(
        "backlog-future-redis",
        f"Redis: drain beside {BACKLOG:,} future jobs",
        {
            "ours": _ours("ours.drain", 4, f"TaskHarbor beside {BACKLOG:,} future jobs", "future", jobs=60_000),
            "alone": _ours("ours.drain", 4, "TaskHarbor without", jobs=60_000),
        },
        {"alone": 0.85},
        rounds=5,
        setup=setup,
    )


def _processes() -> Iterator[AnyMeasure]:
    yield Measure(
        "latency-redis",
        "Redis: latency across two idle processes, p50",
        {
            "ours": _ours("processes.latency", 6, "TaskHarbor on uvloop, as those that can", jobs=60, uvloop=True),
            "stdlib": _ours("processes.latency", 6, "TaskHarbor on asyncio's own loop", jobs=60),
            "raw": _raw("raw script, PUBLISH, claim", "processes_redis.raw_latency", 6, jobs=60),
            **{it: _rival(it, "processes_redis.rival_latency", 7, jobs=60) for it in RIVALS},
        },
        dict.fromkeys(RIVALS, 1.0),
        value="p50",
        unit="ms",
        rounds=5,
    )
    yield Measure(
        "idle-redis",
        "Redis: CPU of an idle worker",
        {
            "ours": _ours("processes_redis.idle", 12, seconds=10.0),
            **{it: _rival(it, "processes_redis.rival_idle", 14, rounds=1, seconds=10.0) for it in RIVALS},
        },
        value="percent",
        unit="% of a core",
        limits={"percent": 1, "server": 1},
    )
    yield Measure(
        "memory-redis",
        "Redis: memory of the server for each job that waits",
        {
            "ours": _ours("processes_redis.memory", 3, jobs=20_000),
            "raw": _raw("raw scripts", "raw_redis.memory", 2, jobs=20_000),
            **{it: _rival(it, "rivals_redis.memory", 3, rounds=1, jobs=2_000) for it in RIVALS},
        },
        value="bytes",
        unit="bytes",
        rounds=1,
    )
    yield Measure(
        "memory-ended-redis",
        "Redis: memory of the server for each job that has ended",
        {"ours": _ours("processes_redis.memory", 3, jobs=20_000)},
        value="ended",
        unit="bytes",
        rounds=1,
    )
