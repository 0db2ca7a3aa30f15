"""A repair beside busy workers, of a store whose indexes are damaged meanwhile: nothing is lost, nothing runs twice."""

from __future__ import annotations

from pathlib import Path

from servers.valkey import ValkeyServer

from .crew import Crew
from .storm import MIXED

ROUNDS = 8


def test_repairs_beside_busy_workers(tmp_path: Path, valkey: ValkeyServer) -> None:
    """G1, G3, D12, K2, T1: the checker finds every promise kept, and all indexes fit in the end."""
    name = valkey.new_namespace()
    crew = Crew(tmp_path, url=valkey.url(namespace=name))
    try:
        client = crew.client(MIXED, rounds=ROUNDS, pause=0.02)
        for _ in range(2):
            crew.worker(lease=5.0)
        client.go()
        damages = 0
        while client.running or damages < ROUNDS:
            damages += _damage(valkey, f"{{{name}}}:")
            crew.harbor.admin.repair()
        assert client.ends() == 0
        crew.drained()
        crew.judge()
        crew.harbor.admin.repair()
        found = crew.harbor.admin.repair(dry=True)
        assert found is not None
        assert (found.misfits, found.counted) == (0, True), found.examples
        crew.let_go()
    finally:
        crew.close()
    valkey.drop_namespace(name)


def _damage(valkey: ValkeyServer, prefix: str) -> int:
    """Take entries away, and put in some that belong to no job; counts go wrong."""
    for key in valkey.command("KEYS", f"{prefix}line:*"):
        valkey.command("ZREMRANGEBYRANK", key, 0, 1)
    valkey.command("ZREMRANGEBYRANK", f"{prefix}all", 0, 1)
    valkey.command("ZREMRANGEBYRANK", f"{prefix}ended", -2, -1)
    valkey.command("HINCRBY", f"{prefix}counts", "ready default", 3)
    valkey.command("ZADD", f"{prefix}dead", 1, "nobody")
    return 1
