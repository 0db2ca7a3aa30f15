"""Blocking enqueues, beside bare inserts on the caller's thread: one thread or several, with and without a unique key.

The bare insert is what an application without a queue would write: one table with a random text key, one index over the
line, SQLite's own settings but for WAL and `synchronous`. Files are warmed up first: a log that still grows makes every
commit slower.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from benchmarks.app import Port, url_of
from benchmarks.clock import ROUND, Sample, payload, rate

WARM_UP = 2_500
TABLE = "CREATE TABLE job (id text PRIMARY KEY, queue text, priority int, run_at int, state int, payload {bytes})"
INDEX = "CREATE INDEX line ON job (queue, priority, run_at, id) WHERE state = 0"
Act = Callable[[int], object]


def ours(folder: Path, engine: str, seconds: float, threads: int = 1, keyed: bool = False) -> Sample:
    """`task.enqueue`, with an idempotency key of its own if `keyed`."""
    port = Port(url_of(engine, folder))

    def enqueue(number: int) -> None:
        port.plain.enqueue(number)

    def enqueue_keyed(number: int) -> None:
        port.plain.using(idempotency_key=uuid.uuid4().hex).enqueue(number)

    try:
        return _timed(enqueue_keyed if keyed else enqueue, seconds, threads)
    finally:
        port.harbor.close()


def bare(folder: Path, synchronous: str, seconds: float) -> Sample:
    """One insert, one commit, in one thread."""
    db = apsw.Connection(str(folder / "bare.db"))
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", synchronous)
    db.execute(TABLE.format(bytes="blob"))
    db.execute(INDEX)
    insert = "INSERT INTO job VALUES (?, 'default', 0, 0, 0, ?)"
    return _timed(lambda number: db.execute(insert, (uuid.uuid4().hex, payload(number))), seconds, 1)


def bare_postgres(url: str, seconds: float, threads: int = 1) -> Sample:
    """One insert, one commit, on a connection of psycopg for each thread."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        db.execute(TABLE.format(bytes="bytea").encode())
        db.execute(INDEX.encode())
    own = threading.local()

    def insert(number: int) -> None:
        if not hasattr(own, "db"):
            own.db = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        given = (uuid.uuid4().hex, payload(number))
        own.db.execute("INSERT INTO job VALUES (%s, 'default', 0, 0, 0, %s)", given)

    return _timed(insert, seconds, threads)


def bare_redis(url: str, seconds: float, threads: int = 1) -> Sample:
    """One script, on a connection of redis-py for each thread."""
    import redis

    from benchmarks import raw_redis

    sha = str(raw_redis.client(url).script_load(raw_redis.ENQUEUE))
    own = threading.local()

    def enqueue(number: int) -> None:
        if not hasattr(own, "db"):
            own.db = redis.Redis.from_url(url, single_connection_client=True)
        given = (raw_redis.now(), raw_redis.new_id(), payload(number))
        own.db.evalsha(sha, 3, raw_redis.LINE, raw_redis.PAYLOAD, raw_redis.CHANNEL, *given)

    return _timed(enqueue, seconds, threads)


def _timed(act: Act, seconds: float, threads: int) -> Sample:
    for number in range(WARM_UP):
        act(number)
    begin, done = threading.Barrier(threads + 1), list[int]()

    def run() -> None:
        act(0)  # what a thread needs once
        begin.wait()
        count, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            for number in range(count, count + ROUND):
                act(number)
            count += ROUND
        done.append(count)

    if threads == 1:  # the main thread is the usual caller
        begin = threading.Barrier(1)
        begun = time.perf_counter()
        run()
        return rate(sum(done), time.perf_counter() - begun)
    crew: list[Any] = [threading.Thread(target=run) for _ in range(threads)]
    for thread in crew:
        thread.start()
    begin.wait()
    begun = time.perf_counter()
    for thread in crew:
        thread.join()
    return rate(sum(done), time.perf_counter() - begun)
