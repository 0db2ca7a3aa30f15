"""`taskharbor bench` on a Valkey: a namespace of its own, beside the jobs."""

from __future__ import annotations

import json
import signal

import limits
from servers.valkey import ValkeyServer

from .desk import PATIENCE, Desk
from .test_bench import TINY, process, run


def strange(valkey: ValkeyServer) -> list[bytes]:
    """The keys that benches have left."""
    found: list[bytes] = valkey.command("KEYS", "*taskharbor_bench_*")
    return found


def test_it_measures_beside_the_jobs_and_leaves_no_trace(desk: Desk, valkey: ValkeyServer) -> None:
    """C: the user's jobs are not touched, and all other keys are gone."""
    namespace = valkey.new_namespace()
    url = valkey.url(namespace=namespace)
    code, told, complained = run(desk, url, *TINY, "--json")
    assert code == 0, complained
    assert complained == ""  # the verdict says what may be lost
    answer = json.loads(told)
    assert (answer["engine"], answer["fsync_ms"], answer["commit_ms"]) == ("redis", None, None)
    assert answer["round_trip_ms"] > 0
    assert answer["drain_per_second"] > 0
    assert answer["latency_ms"]["two_processes"] is True
    assert "appendfsync everysec: a power cut may lose" in answer["verdict"][-1]
    assert valkey.keys(namespace) == []
    code, told, _ = run(desk, url, *TINY)
    assert code == 0
    assert "round trip to the server" in told
    assert strange(valkey) == []


def test_a_stop_removes_its_keys(desk: Desk, valkey: ValkeyServer) -> None:
    """C: Ctrl-C in the midst of it."""
    running = process(desk, valkey.url(namespace=valkey.new_namespace()), "--seconds", "60")
    assert running.stdout is not None
    with limits.limited(running, "a bench that stops"):
        for line in running.stdout:
            if "measuring enqueue, one after another" in line:
                break
        assert strange(valkey)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=PATIENCE)
    assert running.returncode == 1
    assert strange(valkey) == []


def test_no_server_is_an_error_and_nothing_more(desk: Desk) -> None:
    """C: exit 3."""
    assert "127.0.0.1:1" in desk.bad(3, "bench", "redis://127.0.0.1:1", *TINY)
