"""Everything that is measured, with the floors of the project. `make bench ONLY=…` picks by a part of the key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks import measures_nats, measures_postgres, measures_redis
from benchmarks.model import Measure, Side

BACKLOG = 200_000
HONKER_AT_BEST = 27_000.0  # its bare batch loop on a quiet machine of the same kind, measured before this project
FSYNC = {"full": "on", "normal": "off"}  # of huey, whose "off" is less than SQLite's NORMAL, in its favour
NAMES = {"full": "SQLite FULL", "normal": "SQLite NORMAL", "memory": "memory"}


def measures(quick: bool) -> list[Measure]:
    """All measures; the quick ones are too small and too few to be quoted."""
    found = [
        *_drains(),
        *_threads(),
        *_enqueues(),
        *_blocking(),
        *_chords(),
        *_backlogs(),
        *_processes(),
        *_slots(),
        *measures_postgres.measures(),
        *measures_redis.measures(),
        *measures_nats.measures(),
    ]
    return [_smaller(measure) for measure in found] if quick else found


def _smaller(measure: Measure) -> Measure:
    sides = {name: _shorter(side) for name, side in measure.sides.items()}
    setup = None if measure.setup is None else _shorter(measure.setup)
    return replace(measure, sides=sides, setup=setup, rounds=1)


def _shorter(side: Side) -> Side:
    smaller = {"jobs": 0.15, "seconds": 0.25, "times": 0.4, "span": 0.15}
    arguments = {name: type(value)(value * smaller.get(name, 1)) if name in smaller else value
                 for name, value in side.arguments.items()}  # fmt: skip
    return replace(side, arguments=arguments, weight=0.4 + side.weight * 0.2)


def _side(label: str, function: str, weight: float = 2.0, **arguments: Any) -> Side:
    return Side(label, function, arguments, weight)


def _rival(package: str, label: str, function: str, weight: float = 2.0, **arguments: Any) -> Side:
    return Side(label, function, arguments, weight, package)


def _drains() -> Iterator[Measure]:
    """No-op jobs that wait in line, run through the whole worker with 100 slots."""
    for engine, jobs, floor in (("full", 30_000, 0.4), ("normal", 40_000, 0.3)):
        sides = {
            "ours": _side("TaskHarbor", "ours.drain", 4, engine=engine, jobs=jobs),
            "raw": _side("raw loop", "raw.drain", 1.5, synchronous=engine, jobs=50_000),
            **_draining_rivals(engine),
        }
        floors = {"raw": floor}
        if engine == "normal":
            floors |= {"huey": 3, "litequeue": 3, "honker": 3, "honker_batch": 1}
        yield Measure(f"drain-{engine}", f"{NAMES[engine]}: drain, async jobs", sides, floors, rounds=5)
    yield Measure(
        "drain-memory",
        "memory: drain, async jobs",
        {
            "ours": _side("TaskHarbor", "ours.drain", 4, engine="memory", jobs=60_000),
            "bare": _side("bare dispatch, contextvars and JSON", "dispatch.bare", 1.5, jobs=100_000),
        },
        {"bare": 0.35},
        rounds=5,
    )


def _threads() -> Iterator[Measure]:
    """`def` handlers beside `async def` ones, and blocking ones beside short ones."""
    rows = (("normal", 4, 0.6), ("normal", 20, 0.75), ("normal", 100, 0.85), ("full", 20, 0.6), ("full", 100, None))
    for engine, slots, floor in rows:
        jobs = {4: 10_000, 20: 20_000, 100: 30_000}[slots]
        sides = {
            "ours": _side("TaskHarbor, def", "ours.drain", 3, engine=engine, jobs=jobs, task="plain", slots=slots),
            "async": _side("TaskHarbor, async def", "ours.drain", 3, engine=engine, jobs=jobs, slots=slots),
        }
        title = f"{NAMES[engine]}: drain, def jobs, {slots} slots"
        yield Measure(f"drain-def-{engine}-{slots}", title, sides, {} if floor is None else {"async": floor}, rounds=5)
    yield Measure(
        "drain-def-memory",
        "memory: drain, def jobs in threads",
        {
            "ours": _side("TaskHarbor", "ours.drain", 3, engine="memory", jobs=15_000, task="plain"),
            "bare": _side("bare dispatch to threads", "dispatch.bare_threads", 2, jobs=20_000),
        },
    )
    yield Measure(
        "def-behind",
        "SQLite NORMAL: the outcome of a def job before a long one, until its caller has it, worst",
        {"ours": _side("TaskHarbor", "ours.behind_a_long_job", 4, engine="normal", times=20)},
        value="ms",
        unit="ms",
        limits={"ms": 20},
        rounds=5,
    )
    yield Measure(
        "def-blocking",
        "SQLite NORMAL: 20 blocking def jobs, from the first that runs until all do, worst",
        {"ours": _side("TaskHarbor", "ours.all_blocking", 4, engine="normal", times=20)},
        value="ms",
        unit="ms",
        limits={"ms": 10},
        rounds=5,
    )


def _draining_rivals(engine: str) -> dict[str, Side]:
    huey, lite = f"huey, consumer, fsync {FSYNC[engine]}", "litequeue, pop and done"
    sides = {
        "huey": _rival("huey", huey, "rivals.huey_drain", 2, synchronous=engine, jobs=3_000),
        "litequeue": _rival("litequeue", lite, "rivals.litequeue_drain", 2.5, synchronous=engine, jobs=3_000),
    }
    if engine == "normal":
        batch = _rival("honker", "honker, bare batch loop", "rivals.honker_batch", 3, jobs=20_000)
        sides["honker_batch"] = replace(batch, known=HONKER_AT_BEST)
        sides["honker"] = _rival("honker", "honker, claim iterator", "rivals.honker_claim", 2, jobs=1_500)
    return sides


def _enqueues() -> Iterator[Measure]:
    for engine in ("full", "normal", "memory"):
        durable, rounds = engine == "full", 5 if engine == "full" else 3
        timed = {"engine": engine, "seconds": 1.0}
        yield Measure(
            f"enqueue-single-{engine}",
            f"{NAMES[engine]}: aenqueue one after another",
            {
                "ours": _side("TaskHarbor", "ours.enqueue_single", 1.5, **timed),
                **_single_inserts(engine),
                **_enqueuing_rivals(engine),
            },
            {"raw": 0.4} if durable else {},
            rounds=rounds,
        )
        yield Measure(
            f"enqueue-concurrent-{engine}",
            f"{NAMES[engine]}: aenqueue from 50 producers",
            {"ours": _side("TaskHarbor", "ours.enqueue_concurrent", 1.5, **timed), **_single_inserts(engine)},
            {"raw": 4} if durable else {},
            rounds=rounds,
        )
        yield Measure(
            f"enqueue-bulk-{engine}",
            f"{NAMES[engine]}: enqueue_many of 10,000 prepared steps",
            {
                "ours": _side("TaskHarbor", "ours.enqueue_bulk", 1.5, engine=engine, jobs=10_000, times=5),
                **_batch_inserts(engine),
            },
            {"raw": 0.25} if durable else {},
            rounds=rounds,
        )


def _single_inserts(engine: str) -> dict[str, Side]:
    raw = _side("raw single inserts", "raw.insert_single", 1.4, synchronous=engine, seconds=1.0)
    return {} if engine == "memory" else {"raw": raw}


def _batch_inserts(engine: str) -> dict[str, Side]:
    raw = _side("raw inserts, batch 1,000", "raw.insert_batch", 0.6, synchronous=engine, jobs=50_000)
    return {} if engine == "memory" else {"raw": raw}


def _enqueuing_rivals(engine: str) -> dict[str, Side]:
    if engine == "memory":
        return {}
    timed = {"synchronous": engine, "seconds": 1.0}
    sides = {
        "huey": _rival("huey", f"huey, fsync {FSYNC[engine]}", "rivals.huey_enqueue", 1.4, **timed),
        "litequeue": _rival("litequeue", "litequeue", "rivals.litequeue_enqueue", 1.4, **timed),
    }
    if engine == "normal":
        sides["honker"] = _rival("honker", "honker", "rivals.honker_enqueue", 1.4, seconds=1.0)
    return sides


def _blocking() -> Iterator[Measure]:
    """`task.enqueue` on the caller's thread, beside a bare insert there."""
    for engine, single, crowd, keyed in (("full", 0.75, 1.0, 0.5), ("normal", 0.75, 0.5, 0.25)):
        raw = _side("bare inserts, one thread", "blocking.bare", 2, synchronous=engine, seconds=1.0)
        rivals = {name: side for name, side in _enqueuing_rivals(engine).items() if name != "honker"}
        ahead = {}
        if engine == "normal":  # huey's own setting never syncs, and a power cut may damage its file
            label = "huey, set to NORMAL"
            rivals["huey_normal"] = _rival("huey", label, "rivals.huey_enqueue_normal", 1.4, seconds=1.0)
            ahead = {"huey_normal": 1.0, "litequeue": 1.0}
        kinds: tuple[tuple[str, str, float, dict[str, Any], dict[str, Side]], ...] = (
            ("1", "blocking enqueue, 1 thread", single, {}, rivals),
            ("8", "blocking enqueue, 8 threads", crowd, {"threads": 8}, {}),
            ("key", "blocking enqueue, unique keys", keyed, {"keyed": True}, {}),
        )
        for key, title, floor, more, others in kinds:
            yield Measure(
                f"enqueue-blocking-{key}-{engine}",
                f"{NAMES[engine]}: {title}",
                {
                    "ours": _side("TaskHarbor", "blocking.ours", 2, engine=engine, seconds=1.0, **more),
                    "raw": raw,
                    **others,
                },
                {"raw": floor, **(ahead if others else {})},
                rounds=5,
            )


def _chords() -> Iterator[Measure]:
    """The cost of waiting for each other: a chord may take 1.5 times as long as its jobs would on their own."""
    sides = {
        "ours": _side("TaskHarbor, a chord", "ours.chord", 2, engine="full", jobs=10_000),
        "plain": _side("TaskHarbor, plain jobs", "ours.plain", 2, engine="full", jobs=10_000),
    }
    yield Measure(
        "chord-full", f"{NAMES['full']}: a chord of 10,000, enqueue included", sides, {"plain": 0.67}, rounds=5
    )


def _backlogs() -> Iterator[Measure]:
    for engine in ("full", "normal"):
        for kind in ("future", "finished"):
            sides = {
                "ours": _side(
                    f"TaskHarbor beside {BACKLOG:,} {kind} jobs",
                    "backlog.drain",
                    3.5,
                    engine=engine,
                    jobs=20_000,
                    kind=kind,
                ),
                "alone": _side("TaskHarbor without", "ours.drain", 3, engine=engine, jobs=20_000),
            }
            title = f"{NAMES[engine]}: drain beside {BACKLOG:,} {kind} jobs"
            setup = _side(f"making {kind} jobs", "backlog.make", 12, kind=kind, jobs=BACKLOG)
            yield Measure(f"backlog-{kind}-{engine}", title, sides, {"alone": 0.85}, rounds=5, setup=setup)


def _slots() -> Iterator[Measure]:
    """Jobs in processes of their own."""
    yield Measure(
        "slot-noop",
        "a no-op in a process slot",
        {
            "ours": _side("TaskHarbor", "slots.no_op", 1.5, jobs=5_000),
            "echo": _side("bare echo between two processes", "slots.echo", 0.6, jobs=10_000),
        },
        value="us",
        unit="µs",
        limits={"us": 150},
        rounds=5,
    )
    yield Measure(
        "slot-cpu",
        "work for a core, in two process slots",
        {
            "ours": _side("TaskHarbor", "slots.cpu", 3, jobs=160),
            "bare": _side("two bare processes", "slots.bare_cpu", 3, jobs=160),
        },
        {"bare": 0.9},
        rounds=5,
    )


def _processes() -> Iterator[Measure]:
    for engine in ("full", "normal"):
        sides = {"ours": _side("TaskHarbor", "processes.latency", 6, engine=engine, jobs=60)}
        for name in ("huey", "litequeue", "honker")[: 2 if engine == "full" else 3]:
            sides[name] = _rival(name, name, "processes.rival_latency", 6, rival=name, synchronous=engine, jobs=60)
        yield Measure(
            f"latency-{engine}",
            f"{NAMES[engine]}: latency across two idle processes, p50",
            sides,
            value="p50",
            unit="ms",
            limits={"p50": 10},
        )
    idle = {"ours": _side("TaskHarbor", "processes.idle", 12, engine="full", seconds=10.0)}
    for name in ("huey", "litequeue", "honker"):
        side = _rival(name, name, "processes.rival_idle", 12, rival=name, synchronous="normal", seconds=10.0)
        idle[name] = replace(side, rounds=1)
    yield Measure(
        "idle", "SQLite FULL: CPU of an idle worker", idle, value="percent", unit="% of a core", limits={"percent": 1}
    )
    memory = {"ours": _side("TaskHarbor", "processes.memory", 30, engine="full", jobs=BACKLOG)}
    yield Measure(
        "memory",
        f"SQLite FULL: a worker's resident memory, drain of {BACKLOG:,} jobs",
        memory,
        value="mib",
        unit="MiB",
        limits={"mib": 60, "growth": 5},
        rounds=1,
    )
    importing = {
        "ours": _side("TaskHarbor", "processes.importing", 0.3, module="taskharbor"),
        "huey": _rival("huey", "huey", "processes.importing", 0.3, module="huey"),
    }
    yield Measure("import", "`import taskharbor`", importing, value="ms", unit="ms", rounds=5)
