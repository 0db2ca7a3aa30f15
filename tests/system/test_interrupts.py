"""Blocking enqueues under Ctrl-C, signal handlers, finalizers and the end of the interpreter, in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import pytest

from drivers.redis import indexes
from servers.nats import NatsServer
from servers.postgres import PostgresServer
from servers.valkey import ValkeyServer
from taskharbor import Harbor

TESTS = Path(__file__).resolve().parents[1]
WAYS = ("strike", "handle", "finalize", "stop")
SIZES = {"two": 2, "three": 3}


def interrupted(way: str, url: str, times: int) -> dict[str, Any]:
    """Run the program; it must end by itself."""
    command = [sys.executable, "-m", "system.interrupted", way, url, str(times)]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def check(report: dict[str, Any], times: int) -> None:
    """Nothing that was acknowledged is missing or stored twice, and every group is whole."""
    assert report["times"] >= times
    ids = [id for id, _ in report["jobs"]]
    assert len(ids) == len(set(ids))
    assert set(report["acknowledged"]) <= set(ids)
    sizes = Counter(tag for _, tags in report["jobs"] for tag in tags)
    assert [tag for tag, size in sizes.items() if size != SIZES[tag.split()[0]]] == []


@pytest.fixture(params=["full", "normal", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory://"
    return f"sqlite:///{tmp_path}/jobs.db?synchronous={request.param}"


@pytest.mark.parametrize("way", WAYS)
def test_interrupts_leave_nothing_half_stored_and_nothing_hanging(url: str, way: str) -> None:
    """P1, D1, G2: at any moment of an enqueue; other threads get on meanwhile, and later enqueues work."""
    check(interrupted(way, url, 200), 200)


@pytest.mark.parametrize(("way", "times"), [("strike", 100), ("handle", 50), ("finalize", 20)])
def test_interrupts_on_postgres(postgres: PostgresServer, way: str, times: int) -> None:
    """P1, D1, G2: a connection on which a call was interrupted is not used again."""
    check(interrupted(way, postgres.url(postgres.new_database(), migrate="true"), times), times)


@pytest.mark.parametrize(("way", "times"), [("strike", 100), ("handle", 50), ("finalize", 20), ("stop", 100)])
def test_interrupts_on_redis(valkey: ValkeyServer, way: str, times: int) -> None:
    """P1, D1, G2: as on PostgreSQL; afterwards the indexes are what the records say."""
    namespace = valkey.new_namespace()
    check(interrupted(way, valkey.url(namespace=namespace), times), times)
    indexes.check(valkey, namespace)
    valkey.drop_namespace(namespace)


@pytest.mark.parametrize(("way", "times"), [("strike", 100), ("handle", 50), ("finalize", 20), ("stop", 100)])
def test_interrupts_on_nats(nats: NatsServer, way: str, times: int) -> None:
    """P1, D1, G2: the enqueue goes on, on the loop of another thread."""
    namespace = nats.new_namespace()
    check(interrupted(way, nats.url(namespace=namespace), times), times)
    nats.drop_namespace(namespace)


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_thousands_of_interrupts(url: str, way: str) -> None:
    """P1, D1, G2: as in every run, many more of them."""
    check(interrupted(way, url, 3_000), 3_000)


def test_an_interrupted_transaction_does_not_stay_open(tmp_path: Path) -> None:
    """P1, X2: afterwards other processes can write at once, and the file is sound."""
    path = tmp_path / "jobs.db"
    check(interrupted("strike", f"sqlite:///{path}", 300), 300)
    db = apsw.Connection(str(path))
    db.execute("BEGIN IMMEDIATE; COMMIT")
    assert db.execute("PRAGMA integrity_check").get == "ok"
    db.close()


def test_the_interpreter_ends_while_daemon_threads_enqueue(tmp_path: Path) -> None:
    """P1, G2: it ends at once, an exit handler still enqueues, and every group is whole."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    interrupted("end", url, 200)
    check_end(url, 200)


def test_the_interpreter_ends_while_daemon_threads_enqueue_on_redis(valkey: ValkeyServer) -> None:
    """P1, G2: as on SQLite."""
    namespace = valkey.new_namespace()
    interrupted("end", valkey.url(namespace=namespace), 200)
    check_end(valkey.url(namespace=namespace), 200)
    indexes.check(valkey, namespace)
    valkey.drop_namespace(namespace)


def check_end(url: str, times: int) -> None:
    harbor = Harbor(url)
    jobs = harbor.admin.jobs.list(limit=1_000_000)
    harbor.close()
    assert len(jobs) > times
    check({"times": 0, "acknowledged": [], "jobs": [(job.id, list(job.tags)) for job in jobs]}, 0)
