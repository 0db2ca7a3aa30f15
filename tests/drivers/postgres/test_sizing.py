"""How many connections there are: what docs/postgres.md says in "Sizing"."""

from __future__ import annotations

import asyncio

from servers.postgres import PostgresServer
from taskharbor import Harbor

AT_MOST = 4 + 4 + 1  # the worker's loop, its heartbeats, its ear


def test_a_worker_process_keeps_to_its_connections(postgres: PostgresServer) -> None:
    """With all its slots busy, and producers on the same loop beside it."""
    database = postgres.new_database()
    harbor = Harbor(postgres.url(database, migrate="true"))
    asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
    seen: list[int] = []

    @harbor.task(name="look")
    async def look() -> None:
        [(found,)] = await asyncio.to_thread(postgres.execute, asked, [database])
        seen.append(found)

    async def act() -> None:
        async with harbor.open(), harbor.worker(concurrency=50, lease=0.6):
            jobs = await asyncio.gather(*(look.aenqueue() for _ in range(100)))
            for job in jobs:
                await job.aresult(timeout=60)

    asyncio.run(act())
    assert 0 < max(seen) <= AT_MOST
    postgres.drop_database(database)
