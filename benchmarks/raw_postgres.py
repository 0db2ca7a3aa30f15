"""The limit on PostgreSQL: the least that a correct leased queue asks of it, with asyncpg on one connection.

Jobs have unique ids, a queue and a priority. A claim counts the version up, writes a token and the lease's expiry, and
takes jobs whose lease has lapsed by the very same statement; an ack is fenced by token and expiry. Finished rows are
kept and can be found for pruning. A claim of 100 and an ack of 100 are two statements, each its own commit.

Finished jobs move to a table of their own, and the line is an index without the expiry, so that a claim changes nothing
that is indexed and stays on its page (fillfactor). Of the layouts tried side by side in six alternating rounds this was
the fastest: 1.5 times an update in place with the expiry in the index, which was as fast (1.06) as moving alone;
updating in place without the expiry in the index gave 1.1. What is running is walked over by the next claim, which
costs little as long as that is a few hundred jobs.

The planner is set to use the indexes and to plan once: without statistics it sorts the whole line for every claim.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
import uuid
from typing import Any

import asyncpg

from benchmarks.app import arrived, ready
from benchmarks.clock import LONGEST, Sample, arepeat, payload, rate
from benchmarks.decay import hold_snapshot, pace

BATCH = 100
LEASE = 30_000_000
KEPT = 24 * 3600 * 1_000_000
CHANNEL = "bench"
COLUMNS = ("id", "queue", "priority", "free_at", "version", "payload")

SCHEMA = """
CREATE TABLE job (
    id uuid PRIMARY KEY, queue text NOT NULL, priority smallint NOT NULL, free_at bigint NOT NULL,
    version integer NOT NULL, token uuid, payload bytea NOT NULL
) WITH (fillfactor = 60);
CREATE INDEX line ON job (queue, priority DESC, id);
CREATE TABLE done (
    id uuid PRIMARY KEY, queue text NOT NULL, priority smallint NOT NULL, version integer NOT NULL,
    payload bytea NOT NULL, keep_until bigint NOT NULL
);
CREATE INDEX ended ON done (keep_until);
"""
PLANNER = {
    "enable_bitmapscan": "off",
    "enable_seqscan": "off",
    "enable_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
}
INSERT = """
WITH made AS (
    INSERT INTO job (id, queue, priority, free_at, version, payload) VALUES ($1, 'default', 0, $2, 0, $3)
)
SELECT pg_notify('bench', '')
"""
INSERT_MANY = """
WITH made AS (
    INSERT INTO job (id, queue, priority, free_at, version, payload)
    SELECT id, 'default', 0, $2, 0, payload FROM unnest($1::uuid[], $3::bytea[]) AS new (id, payload)
)
SELECT pg_notify('bench', '')
"""
CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT id FROM job
    WHERE queue = 'default' AND priority = 0 AND free_at <= $3 ORDER BY id LIMIT $4 FOR UPDATE SKIP LOCKED
)
UPDATE job SET version = version + 1, token = $1, free_at = $2
FROM picked WHERE job.id = picked.id
RETURNING job.id, job.version, job.payload
"""
ACK = """
WITH gone AS (
    DELETE FROM job WHERE id = ANY ($1::uuid[]) AND token = $2 AND free_at > $3
    RETURNING id, queue, priority, version, payload
)
INSERT INTO done (id, queue, priority, version, payload, keep_until)
SELECT id, queue, priority, version, payload, $4 FROM gone
"""


class Raw:
    """A connection with everything prepared."""

    def __init__(self, connection: Any, insert: Any, insert_many: Any, claim: Any, ack: Any) -> None:
        self.connection = connection
        self.insert = insert.fetchval
        self.insert_many = insert_many.fetchval
        self.claim = claim.fetch
        self.ack = ack.fetch

    @classmethod
    async def open(cls, url: str, new: bool = True) -> Raw:
        """In a database that is still empty, by default."""
        connection: Any = await asyncpg.connect(url, server_settings=PLANNER)
        if new:
            await connection.execute(SCHEMA)
        return cls(connection, *[await connection.prepare(it) for it in (INSERT, INSERT_MANY, CLAIM, ACK)])

    async def copy(self, payloads: list[bytes]) -> None:
        """Rows by COPY; they are made within the time, as they would be."""
        due = now()
        rows = [(new_id(), "default", 0, due, 0, it) for it in payloads]
        await self.connection.copy_records_to_table("job", records=rows, columns=COLUMNS)

    async def turn(self, batch: int = BATCH) -> list[Any]:
        """Claim a batch, acknowledge it."""
        token, at = uuid.uuid4(), now()
        rows: list[Any] = await self.claim(token, at + LEASE, at, batch)
        if rows:
            at = now()
            await self.ack([row[0] for row in rows], token, at, at + KEPT)
        return rows


def now() -> int:
    """Microseconds."""
    return time.time_ns() // 1000


def new_id() -> uuid.UUID:
    """An id that sorts by its time, as indexes like them."""
    return uuid.UUID(int=time.time_ns() << 64 | secrets.randbits(64))


def insert_single(url: str, seconds: float) -> Sample:
    """One insert with its NOTIFY, one commit."""

    async def main() -> Sample:
        raw = await Raw.open(url)
        return await arepeat(seconds, lambda number: raw.insert(new_id(), now(), payload(number)))

    return asyncio.run(main())


def insert_coalesced(url: str, seconds: float, producers: int = 50) -> Sample:
    """Producers who wait for their job each; whatever came together goes over in one statement with one NOTIFY."""

    async def main() -> Sample:
        raw = await Raw.open(url)
        waiting: list[tuple[uuid.UUID, bytes, asyncio.Future[None]]] = []
        wanted = asyncio.Event()

        async def collect() -> None:
            while True:
                await wanted.wait()
                wanted.clear()
                taken = waiting[:]
                waiting.clear()
                await raw.insert_many([it[0] for it in taken], now(), [it[1] for it in taken])
                for _, _, told in taken:
                    told.set_result(None)

        async def produce(until: float) -> int:
            done = 0
            while time.perf_counter() < until:
                told = asyncio.get_running_loop().create_future()
                waiting.append((new_id(), payload(done), told))
                wanted.set()
                await told
                done += 1
            return done

        collector = asyncio.create_task(collect())
        begun = time.perf_counter()
        counts = await asyncio.gather(*(produce(begun + seconds) for _ in range(producers)))
        passed = time.perf_counter() - begun
        collector.cancel()
        return rate(sum(counts), passed)

    return asyncio.run(main())


def insert_copy(url: str, jobs: int, times: int = 3) -> Sample:
    """COPY of many rows, a few times."""

    async def main() -> Sample:
        raw = await Raw.open(url)
        payloads = [payload(number) for number in range(jobs)]
        begun = time.perf_counter()
        for _ in range(times):
            await raw.copy(payloads)
        return rate(jobs * times, time.perf_counter() - begun)

    return asyncio.run(main())


def drain(url: str, jobs: int, batch: int = BATCH) -> Sample:
    """Claim and acknowledge until nothing is left."""

    async def main() -> Sample:
        raw = await Raw.open(url)
        await raw.copy([payload(number) for number in range(jobs)])
        done, begun = 0, time.perf_counter()
        while time.perf_counter() < begun + LONGEST and (rows := await raw.turn(batch)):
            done += len(rows)
        return rate(done, time.perf_counter() - begun)

    return asyncio.run(main())


def decay(url: str, jobs: int, span: int, snapshot: bool) -> Sample:
    """The same over many jobs: how fast the last `span` of them are against the first."""

    async def main() -> Sample:
        raw = await Raw.open(url)
        for first in range(0, jobs, 50_000):
            await raw.copy([payload(number) for number in range(first, min(first + 50_000, jobs))])
        async with hold_snapshot(url, snapshot):
            seen, done = [(0, time.perf_counter())], 0
            while rows := await raw.turn():
                done += len(rows)
                seen.append((done, time.perf_counter()))
        return pace(seen, span)

    return asyncio.run(main())


# latency


async def sender(url: str) -> Any:
    """The function that inserts a job that says when it was sent."""
    raw = await Raw.open(url)
    return lambda sent: raw.insert(new_id(), now(), b"%f" % sent)


async def listen(url: str) -> None:
    """LISTEN on one connection, claim and acknowledge on another, for ever."""
    woken = asyncio.Event()
    listening = await asyncpg.connect(url)
    raw = await Raw.open(url, new=False)
    await listening.add_listener(CHANNEL, lambda *_: woken.set())
    ready()
    while True:
        await woken.wait()
        woken.clear()
        token, at = uuid.uuid4(), now()
        rows = await raw.claim(token, at + LEASE, at, BATCH)
        for row in rows:
            arrived(float(row[2]))
        await raw.ack([row[0] for row in rows], token, now(), now() + KEPT)


if __name__ == "__main__":
    asyncio.run(listen(sys.argv[1]))
