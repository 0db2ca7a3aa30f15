"""The limit: the least that a correct leased queue asks of SQLite, in a bare loop without any Python around it.

One table whose rows are kept. Jobs have unique ids, a queue and a priority; one partial index over what is not done is
the line. A claim counts the version up, writes a token and moves the job behind its lease's expiry, so that a lapsed
lease is claimed again by the very same statement; an ack is fenced by both, and notes until when the row is kept, in an
index, or nothing could ever prune it. Same library (apsw), journal (WAL), synchronous setting and cache as the driver,
so the ratio shows our own cost.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

import apsw

from benchmarks.clock import LONGEST, Sample, payload, rate, repeat

BATCH = 100
LEASE = 30_000_000
KEPT = 24 * 3600 * 1_000_000
Claimed = tuple[str, list[tuple[int, str, int, bytes]]]

SCHEMA = """
CREATE TABLE job (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, done INTEGER NOT NULL, queue TEXT NOT NULL,
    priority INTEGER NOT NULL, free_at INTEGER NOT NULL, version INTEGER NOT NULL, token TEXT, keep_until INTEGER,
    payload BLOB NOT NULL
) STRICT;
CREATE INDEX line ON job (queue, priority DESC, free_at, seq) WHERE done = 0;
CREATE INDEX ended ON job (keep_until) WHERE done = 1;
"""
INSERT = (
    "INSERT INTO job (id, done, queue, priority, free_at, version, payload) VALUES (?1, 0, 'default', 0, ?2, 0, ?3)"
)
CLAIM = """
UPDATE job SET version = version + 1, token = ?1, free_at = ?2
WHERE seq IN (
    SELECT seq FROM job
    WHERE done = 0 AND queue = 'default' AND priority = 0 AND free_at <= ?3 ORDER BY free_at, seq LIMIT ?4
)
RETURNING seq, id, version, payload
"""
ACK = "UPDATE job SET done = 1, token = NULL, keep_until = ?4 WHERE seq = ?1 AND token = ?2 AND free_at > ?3"


def open_file(folder: Path, synchronous: str) -> apsw.Connection:
    """An empty queue."""
    db = apsw.Connection(str(folder / "raw.db"))
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", synchronous)
    db.pragma("cache_size", -16384)
    db.pragma("wal_autocheckpoint", 4000)
    db.execute(SCHEMA)
    return db


def now() -> int:
    """Microseconds."""
    return time.time_ns() // 1000


def new_id() -> str:
    """An id that sorts by its time, as short-lived queues like them."""
    return f"{time.time_ns():016x}-{secrets.randbits(64):016x}"


def insert_single(folder: Path, synchronous: str, seconds: float) -> Sample:
    """One insert, one commit."""
    db = open_file(folder, synchronous)
    return repeat(seconds, lambda number: db.execute(INSERT, (new_id(), now(), payload(number))))


def insert_batch(folder: Path, synchronous: str, jobs: int, batch: int = 1000) -> Sample:
    """Many inserts, one commit; the rows are made within the time, as they would be."""
    db = open_file(folder, synchronous)
    payloads = [payload(number) for number in range(jobs)]
    begun = time.perf_counter()
    for first in range(0, jobs, batch):
        due = now()
        with db:
            db.executemany(INSERT, [(new_id(), due, it) for it in payloads[first : first + batch]])
    return rate(jobs, time.perf_counter() - begun)


def drain(folder: Path, synchronous: str, jobs: int, batch: int = BATCH) -> Sample:
    """Claim a batch, acknowledge a batch, each in a transaction of its own, until nothing is left."""
    db = open_file(folder, synchronous)
    with db:
        db.executemany(INSERT, [(new_id(), now(), payload(number)) for number in range(jobs)])
    done, begun = 0, time.perf_counter()
    while time.perf_counter() < begun + LONGEST and (claimed := _claim(db, batch)):
        _ack(db, claimed)
        done += len(claimed[1])
    return rate(done, time.perf_counter() - begun)


def _claim(db: apsw.Connection, batch: int) -> Claimed | None:
    token, at = secrets.token_urlsafe(12), now()
    db.execute("BEGIN IMMEDIATE")
    rows: list[Any] = db.execute(CLAIM, (token, at + LEASE, at, batch)).fetchall()
    db.execute("COMMIT")
    return (token, rows) if rows else None


def _ack(db: apsw.Connection, claimed: Claimed) -> None:
    token, rows = claimed
    at = now()
    db.execute("BEGIN IMMEDIATE")
    db.executemany(ACK, [(row[0], token, at, at + KEPT) for row in rows])
    db.execute("COMMIT")
