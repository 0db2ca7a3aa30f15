"""How PostgreSQL answers: by the index of the line, whatever else is in its tables. Pages are counted, not seconds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from servers.postgres import PostgresServer
from taskharbor.drivers.postgres.sql import statements

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SCHEMA = "plans"
JOBS = """
INSERT INTO plans.job (id, type, queue, priority, created_at, run_at, payload)
SELECT '{name}-' || n, 't', 'q', {priority}, $1, $2, '{{}}' FROM generate_series(1, {number}) AS n
"""
LIVE = """
INSERT INTO plans.live (seq, priority, due_at, run_at, state, queue)
SELECT seq, priority, coalesce(run_at, created_at), run_at, 'ready', queue FROM plans.job WHERE id LIKE '{name}-%'
"""
ENDED = """
INSERT INTO plans.ended (
    seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, completed_at, keep_until, state, queue
)
SELECT seq, 1, 0, 0, 0, 0, created_at, created_at, created_at + interval '1 day', 'done', queue
FROM plans.job WHERE id LIKE '{name}-%'
"""


@pytest.fixture(scope="module", params=["analysed", "fresh"])
def crowded(request: pytest.FixtureRequest, postgres: PostgresServer) -> Generator[str]:
    """A store with 200,000 future jobs of a higher priority, 200,000 finished ones, and 300 that are due."""
    name = postgres.new_database()
    asyncio.run(_fill(postgres.url(name), analysed=request.param == "analysed"))
    yield postgres.url(name)
    postgres.drop_database(name)


async def _fill(url: str, *, analysed: bool) -> None:
    from taskharbor.drivers import from_url

    await (await from_url(f"{url}?namespace={SCHEMA}&migrate=true")).close()
    connection = await asyncpg.connect(url)
    try:
        for kind, number, priority, run_at, then in (
            ("future", 200_000, 5, NOW + timedelta(days=1), LIVE),
            ("finished", 200_000, 5, None, ENDED),
            ("due", 300, 0, None, LIVE),
        ):
            await connection.execute(JOBS.format(name=kind, number=number, priority=priority), NOW, run_at)
            await connection.execute(then.format(name=kind))
        if analysed:
            await connection.execute("ANALYZE")
    finally:
        await connection.close()


RESERVE = ["q"], [100], 100, NOW, NOW + timedelta(seconds=30), "w", "token."
ASKED: dict[str, tuple[Any, ...]] = {
    "reserve": RESERVE,
    "reserve_ids": (["due-1"], 1, NOW, NOW + timedelta(seconds=30), "w", "token."),
    "settle_done": ([400_001], ["token."], NOW, NOW + timedelta(days=1), ["due-1"]),
    "extend_lease": ([400_001], ["token."], [None], [None], NOW, NOW + timedelta(seconds=30)),
    "next_due": (["q"],),
    "get": (["due-1"],),
    "sweep_expired": (NOW, 100),
    "sweep_stopping": (NOW, 100),
    "prune": (NOW, 100),
}
MOST_PAGES = 4000  # of some 20,000 in all; a claim of 100 writes and looks up each of them


@pytest.mark.parametrize("generic", [False, True], ids=["planned for its values", "planned once"])
@pytest.mark.parametrize("name", ASKED)
def test_no_statement_of_a_worker_reads_a_whole_table(crowded: str, name: str, generic: bool) -> None:
    """D11: 200,000 future and 200,000 finished jobs cost nothing, whatever the planner knows about them."""
    plan = asyncio.run(_explained(crowded, name, generic))
    scanned = [node for node in _nodes(plan) if node["Node Type"] == "Seq Scan" and node["Relation Name"] in BIG]
    assert not scanned
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < MOST_PAGES


def test_reserve_walks_the_line(crowded: str) -> None:
    """D11: and finds what is due behind the future jobs of a higher priority."""
    plan = asyncio.run(_explained(crowded, "reserve", generic=True))
    assert "live_line" in {node.get("Index Name") for node in _nodes(plan)}
    assert plan["Actual Rows"] == 100


BIG = ("job", "live", "ended")


async def _explained(url: str, name: str, generic: bool) -> dict[str, Any]:
    connection = await asyncpg.connect(url)
    try:
        mode = "force_generic_plan" if generic else "force_custom_plan"
        await connection.execute(f"SET plan_cache_mode = {mode}")
        transaction = connection.transaction()
        await transaction.start()
        text = await connection.fetchval(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statements(SCHEMA)[name]}", *ASKED[name]
        )
        await transaction.rollback()
        plan: dict[str, Any] = json.loads(text)[0]["Plan"]
        return plan
    finally:
        await connection.close()


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)
