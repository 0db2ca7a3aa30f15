"""`taskharbor bench` on a NATS server: a namespace of its own, beside the jobs."""

from __future__ import annotations

import json
import signal

import limits
from servers.nats import NatsServer

from .desk import PATIENCE, Desk
from .test_bench import TINY, process, run


def strange(nats: NatsServer) -> list[str]:
    """The streams that benches have left."""
    found: list[str] = nats.api("STREAM.NAMES").get("streams") or []
    return [name for name in found if "taskharbor_bench_" in name]


def test_it_measures_beside_the_jobs_and_leaves_no_trace(desk: Desk, nats: NatsServer) -> None:
    """C: the user's jobs are not touched, and its own streams are gone."""
    namespace = nats.new_namespace()
    url = nats.url(namespace=namespace)
    code, told, complained = run(desk, url, *TINY, "--json")
    assert code == 0, complained
    assert complained == ""  # the verdict says what may be lost
    answer = json.loads(told)
    assert (answer["engine"], answer["fsync_ms"], answer["commit_ms"]) == ("nats", None, None)
    assert answer["round_trip_ms"] > 0
    assert answer["drain_per_second"] > 0
    assert answer["latency_ms"]["two_processes"] is True
    assert "no client can read sync_interval" in answer["verdict"][-1]
    assert nats.streams(namespace) == []
    code, told, _ = run(desk, url, *TINY)
    assert code == 0
    assert "round trip to the server" in told
    assert strange(nats) == []


def test_a_stop_removes_its_streams(desk: Desk, nats: NatsServer) -> None:
    """C: Ctrl-C in the midst of it."""
    running = process(desk, nats.url(namespace=nats.new_namespace()), "--seconds", "60")
    assert running.stdout is not None
    with limits.limited(running, "a bench that stops"):
        for line in running.stdout:
            if "measuring enqueue, one after another" in line:
                break
        assert strange(nats)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=PATIENCE)
    assert running.returncode == 1
    assert strange(nats) == []
