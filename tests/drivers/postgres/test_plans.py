"""How PostgreSQL answers: by looking things up, whatever else there is. Pages and rows are counted, not seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from servers.postgres import PostgresServer
from taskharbor.core.line import SINCE_EVER
from taskharbor.drivers import from_url
from taskharbor.drivers.postgres.login import SESSION
from taskharbor.drivers.postgres.sql import statements

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(days=1)
SCHEMA = "plans"
# So many future jobs of a higher priority, as many finished ones, 200 that are due, and 100 that are held. Of the
# finished ones a thousand are dead, a tenth belong to two hundred workflows, many have keys, some of which have run
# out, and many were waited for.
MANY, FEWER = 200_000, 20_000
# No job is updated: its old version would cost each look-up a page, until the server knows that nothing can see it.
CROWD = """
INSERT INTO plans.job (id, type, queue, priority, created_at, run_at, payload, workflow_id)
SELECT kind || '-' || n, 't', 'q', priority, '2030-01-01Z', run_at, '',
    CASE WHEN kind = 'finished' AND n % 10 = 0 THEN 'w-' || ({size} + n) / {share} END
FROM (VALUES ('future', {size}, 5, '2030-01-02Z'::timestamptz), ('finished', {size}, 5, NULL), ('due', 200, 0, NULL),
    ('held', 100, 0, NULL)) AS given (kind, number, priority, run_at), generate_series(1, number) AS n;

INSERT INTO plans.live (seq, priority, due_at, run_at, state, queue)
SELECT seq, priority, coalesce(run_at, created_at), run_at, 'ready', queue FROM plans.job
WHERE id NOT LIKE 'finished-%';
UPDATE plans.live SET state = 'inflight', version = 1, token = 'token.', worker = 'w', claimed_at = created_at,
    lease_expires_at = '2030-01-02Z'
FROM plans.job WHERE job.seq = live.seq AND id LIKE 'held-%';

INSERT INTO plans.ended (
    seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, completed_at, keep_until, state, queue,
    dlq_reason, fingerprint
)
SELECT seq, 1, 0, 0, 0, 0, created_at, created_at, '2030-01-02Z'::timestamptz + seq * interval '1 ms',
    CASE WHEN seq % {nth} = 0 THEN 'dlq' ELSE 'done' END, queue, CASE WHEN seq % {nth} = 0 THEN 'x' END,
    CASE WHEN seq % {nth} = 0 THEN 'cause ' || seq % 7 END
FROM plans.job WHERE id LIKE 'finished-%';

INSERT INTO plans.keys (key, owner, digest) SELECT 'key-' || id, id, '' FROM plans.job WHERE seq % 4 = 0;
INSERT INTO plans.keys (key, owner, digest, expires_at)
SELECT 'over-' || n, CASE WHEN n % 20 > 0 THEN 'finished-' || n ELSE 'w-' || 200 + n END, '', '2029-01-01Z'
FROM generate_series(1, 1000) AS n;
INSERT INTO plans.keys (key, owner, digest) SELECT 'key-w-' || n, 'w-' || n, '' FROM generate_series(200, 400) AS n;
INSERT INTO plans.edge (child, position, parent, policy, satisfied)
SELECT 'finished-' || n, 0, 'finished-' || n + 1, 'hold', n % 10 > 0 FROM generate_series(1, {half}) AS n;
"""
BIG = ("job", "live", "ended")
TABLES = (*BIG, "keys", "edge")


def _asked(size: int) -> dict[str, tuple[Any, ...]]:
    """Calls of each statement; for one that is called in several ways, the text after its name says which."""
    middle = size + size // 2
    due, held, old, new = ([f"{kind}-{n}" for n in range(1, 101)] for kind in ("due", "held", "finished", "new"))
    claim = NOW, LATER, "w", "token."
    leases = list(range(2 * size + 201, 2 * size + 301)), ["token."] * 100
    none, zeros = [None] * 100, [0] * 100
    outcomes = *[zeros] * 3, *[none] * 4
    counts = [1] * 100, NOW, ["q"], ["t"], ["done"]
    jobs = new, ["t"] * 100, ["q"] * 100, [b""] * 100, zeros, *[[]] * 5, new, *[[]] * 5
    over = *jobs[:10], [f"over-{n}" for n in range(1, 101)], *jobs[11:]
    ended = [NOW] * 100, [LATER] * 100
    page = 100, 2**63 - 1, *[None] * 9
    return {
        "reserve": (*claim, 100, ["q"], [100]),
        "reserve_on": (*claim, ["q"], [0], [SINCE_EVER], [0], [100]),
        "reserve_by_id": (*claim, 100, due),
        "extend_lease": (*leases, none, none, NOW, LATER),
        "next_due": (["q", "other"],),
        "enqueue": (*jobs, NOW, None),
        "enqueue_group": (*jobs, NOW, zeros, False),
        "enqueue_awaited": (due,),
        "enqueue_keyed": (*jobs, NOW, None, [b""] * 100),
        "enqueue_keyed over": (*over, NOW, None, [b""] * 100),
        "enqueue_waiting": (old, [1] * 100),
        "settle_done": (leases[0], ["token."], [LATER], none, NOW, False, *counts),
        "settle_done all": (*leases, [LATER] * 100, none, NOW, True, *counts),
        "settle_ended": (*leases, ["done"] * 100, *outcomes, [LATER] * 100, *[none] * 4, NOW, LATER),
        "settle_ended cancelled": (
            *leases,
            ["cancelled"] * 100,
            *outcomes,
            [LATER] * 100,
            *[none] * 3,
            ["cancel"] * 100,
            NOW,
            LATER,
        ),
        "settle_put_back": (*leases, *outcomes, [NOW] * 100, NOW),
        "hold": (held,),
        "hold_ended": (old,),
        "dependants": (old,),
        "dependants_satisfy": (old, zeros),
        "dependants_release": (due, zeros, NOW),
        "dependants_release_ended": (old, zeros),
        "parents": (old, 1000),
        "get": (due,),
        "is_live": ("due-7",),
        "states": (due,),
        "step_hold_parents": (old,),
        "step_jobs": (due,),
        "step_jobs ended": (old,),
        "step_hold_live": (due,),
        "step_hold_ended": (old,),
        "step_hold": (due,),
        "step_hold more": (old,),
        "step_above": (old,),
        "step_below": (old,),
        "step_line": (old,),
        "step_keys": (["key-due-4", "key-due-5"],),
        "step_owned": (["w-300", "w-301"],),
        "step_unfinished": (["w-300", "due-4"],),
        "step_payloads": (due,),
        "step_kept": (["w-300", "w-301"],),
        "step_members": ("w-300", 100),
        "step_put": (due, [], [NOW] * 100, [], [], *ended, [], [], [], ["cancelled"] * 100, *[[]] * 6, *[zeros] * 6),
        "step_put again": (old, [], [NOW] * 100, *[[]] * 7, ["ready"] * 100, *[[]] * 6, *[zeros] * 6),
        "step_edge": (old, zeros, [True] * 100),
        "step_remove": (old,),
        "step_remove_edges": (old,),
        "key_put": (new, new, [b""] * 100, none),
        "step_keep": (["w-300", "w-301"], [LATER, LATER]),
        "sweep_expired": (NOW, 100),
        "sweep_stopping": (NOW, 100),
        "prune": (NOW, SINCE_EVER, 0, 100),
        "prune much": (NOW + timedelta(days=2), SINCE_EVER, 0, 100),
        "prune more": (NOW + timedelta(days=2), LATER + timedelta(milliseconds=middle), 0, 100),
        "prune_delete": (old,),
        "hold_free": (old,),
        "key_remove": (["key-due-4", "key-due-5"],),
        "key_free": (due,),
        "key_hold": (["key-due-4", "key-due-5"],),
        "key_leave": (["key-due-4", "key-due-5"],),
        "key_living": (["key-due-4", "key-due-5"], NOW),
        "key_living over": (["over-1", "over-2"], NOW),
        "key_take": (new, new, [b""] * 100, none, NOW),
        "key_take over": (over[10], new, [b""] * 100, none, NOW),
        "query": (*page, NOW, None),
        "query more": (100, middle, *page[2:], NOW, None),
        "query_dead": page,
        "query_held": (*page[:-1], "w", NOW, ["claimed", "running"]),
        "query_workflow": (*page, NOW, None, "w-300"),
        "query_after": ("due-7",),
        "workflows": (10, None, None),
        "workflows more": (10, "w-300", None),
        "workflows few": (10, None, ["w-300", "w-301", "nothing"]),
        "dead_groups": (10, *[None] * 10),
    }


NAMES = list(_asked(MANY))
ASKED = {size: _asked(size) for size in (MANY, FEWER)}
# For a hundred jobs, each of which is looked up in several places. All have some 20,000 pages and a million rows; and
# if each of a hundred were compared with each, that would show too.
MOST_PAGES, MOST_ROWS = 8000, 8000

FOR_VALUES, ONCE, OURS = "planned for its values", "planned once", "in a session of ours"
SESSIONS: dict[str, Mapping[str, str]] = {
    FOR_VALUES: {"plan_cache_mode": "force_custom_plan"},
    ONCE: {"plan_cache_mode": "force_generic_plan"},
    OURS: SESSION,
}
EXCEPTIONS = {
    # Thousands of edges that the server has not taken note of: it reads them all, and will know better in a minute.
    ("unknown", "step_remove_edges", FOR_VALUES),
    ("unknown", "step_remove_edges", ONCE),
    # Workers do not reserve in a new session, where plans are made once and anything is possible.
    *((kind, name, ONCE) for kind in ("analysed", "unknown") for name in ("reserve", "reserve_on", "reserve_by_id")),
}
# A queue that was empty: a session of ours made its plans before the crowd came.
OLDER = ("grown", "drained")
Connection = psycopg.Connection[Any]


class Crowd:
    """A crowded store; `ours` is a session that is older than the crowd."""

    def __init__(self, url: str, kind: str, ours: Connection) -> None:
        self._url, self.kind, self._ours = url, kind, ours
        self.sessions = [OURS] if kind in OLDER else list(SESSIONS)
        self.size = _size(kind)

    def explained(self, name: str, session: str) -> dict[str, Any]:
        """How a statement was done."""
        if session == OURS:
            return _explained(self._ours, name, self.size, "ANALYZE, BUFFERS, ")
        with _session(self._url, SESSIONS[session]) as connection:
            _prepare(connection, name)
            return _explained(connection, name, self.size, "ANALYZE, BUFFERS, ")


@pytest.fixture(scope="module", params=["analysed", "unknown", *OLDER])
def crowd(request: pytest.FixtureRequest, postgres: PostgresServer) -> Generator[Crowd]:
    """A store that the server has looked at, one that it knows nothing about, or one that was empty when our session
    made its plans: a new one, or one that was drained and vacuumed, of which the server knows that it holds no rows."""
    database = postgres.new_database()
    url = postgres.url(database)

    async def make() -> None:
        await (await from_url(postgres.url(database, namespace=SCHEMA, migrate="true"))).close()

    asyncio.run(make())
    with _session(url, {"enable_nestloop": "off"}) as others, _session(url, SESSION) as ours:
        for table in TABLES:
            others.execute(f"ALTER TABLE plans.{table} SET (autovacuum_enabled = off)".encode())
        if request.param == "drained":
            _fill(others, FEWER)
            _drain(others)
        others.commit()
        size = _size(request.param)
        for name in NAMES:
            _prepare(ours, name)
            if request.param in OLDER:
                _explained(ours, name, size, "")
        _fill(others, size)
        if request.param == "analysed":
            others.execute("ANALYZE")
        others.commit()
        yield Crowd(url, request.param, ours)
    postgres.drop_database(database)


def _size(kind: str) -> int:
    return FEWER if kind == "drained" else MANY


def _fill(connection: Connection, size: int) -> None:
    connection.execute(CROWD.format(size=size, half=size // 2, nth=size // 1000, share=size // 200).encode())


def _drain(connection: Connection) -> None:
    """All jobs go, and the pages stay."""
    for table in TABLES:
        connection.execute(f"DELETE FROM plans.{table}".encode())
    connection.execute("ALTER SEQUENCE plans.job_seq_seq RESTART")
    connection.commit()
    connection.autocommit = True
    for table in TABLES:
        connection.execute(f"VACUUM (TRUNCATE off) plans.{table}".encode())
    connection.autocommit = False


def _session(url: str, settings: Mapping[str, str]) -> Connection:
    connection = psycopg.connect(url, prepare_threshold=None)
    for setting in settings.items():
        connection.execute("SELECT set_config(%s, %s, false)", setting)
    connection.commit()
    return connection


def _prepare(connection: Connection, name: str) -> None:
    """A plan that is made once is made for what was prepared; EXPLAIN alone always plans for the values it is given."""
    connection.execute(f'PREPARE "{name}" AS {statements(SCHEMA)[name.split()[0]]}'.encode())
    connection.commit()


def _explained(connection: Connection, name: str, size: int, options: str) -> dict[str, Any]:
    with psycopg.ClientCursor(connection) as cursor:
        values = ", ".join(cursor.mogrify("%s", [value]) for value in ASKED[size][name])
        explain = f'EXPLAIN ({options}FORMAT JSON) EXECUTE "{name}" ({values})'
        found = cursor.execute(explain.encode()).fetchone()
    connection.rollback()
    assert found is not None
    plan: dict[str, Any] = found[0][0]["Plan"]
    return plan


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _rows(node: dict[str, Any]) -> float:
    """How many rows a node had in its hands."""
    removed = sum(number for name, number in node.items() if name.startswith("Rows Removed by"))
    rows: float = (node["Actual Rows"] + removed) * node["Actual Loops"]
    return rows


@pytest.mark.parametrize("name", NAMES)
def test_no_statement_reads_a_whole_table(crowd: Crowd, name: str) -> None:
    """D11, K2: 200,000 future and 200,000 finished jobs cost nothing, whatever the planner knows or thinks of them, and
    a hundred cost no more than a hundred times one."""
    for session in crowd.sessions:
        if (crowd.kind, name, session) in EXCEPTIONS:
            continue
        plan = crowd.explained(name, session)
        nodes = list(_nodes(plan))
        assert not [it for it in nodes if it["Node Type"] == "Seq Scan" and it["Relation Name"] in BIG], session
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < MOST_PAGES, session
        assert sum(map(_rows, nodes)) < MOST_ROWS, session
        # Looked up there by its number, a job would cost all that have ended.
        assert name.startswith("prune") or "ended_kept" not in {node.get("Index Name") for node in nodes}, session


def test_dead_jobs_are_listed_by_their_own_index(crowd: Crowd) -> None:
    """Q1: a hundred of a thousand, and none of the 200,000 that ended well."""
    for session in crowd.sessions:
        plan = crowd.explained("query_dead", session)
        assert "ended_dead" in {node.get("Index Name") for node in _nodes(plan)}, session
        assert plan["Actual Rows"] == 100


def test_dead_jobs_are_counted_by_their_own_index(crowd: Crowd) -> None:
    """Q1: a thousand that died of seven causes, and none of the 200,000 that ended well."""
    for session in crowd.sessions:
        plan = crowd.explained("dead_groups", session)
        assert "ended_dead" in {node.get("Index Name") for node in _nodes(plan)}, session
        assert plan["Actual Rows"] == 7


def test_workflows_are_walked_from_one_to_the_next(crowd: Crowd) -> None:
    """K5: of two hundred workflows of a hundred the members of ten are read, and one entry on the way to each."""
    for session in crowd.sessions:
        for name, rows in (("workflows", 19), ("workflows more", 20)):  # done and dead; the newest has one member
            plan = crowd.explained(name, session)
            read = [node for node in _nodes(plan) if node.get("Relation Name") == "job"]
            indexes = {node["Index Name"] for node in _nodes(plan) if "Index Name" in node}
            assert indexes == {"job_workflow", "live_pkey", "ended_pkey"}, session
            assert sum(node["Actual Rows"] * node["Actual Loops"] for node in read) <= 10 * 100 + 10, session
            assert plan["Actual Rows"] == rows


def test_reserve_walks_the_line(crowd: Crowd) -> None:
    """D11: and finds what is due behind the future jobs of a higher priority."""
    plan = crowd.explained("reserve", OURS)
    assert "live_line" in {node.get("Index Name") for node in _nodes(plan)}
    assert plan["Actual Rows"] == 100
