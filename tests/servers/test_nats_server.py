"""The test server itself: a real NATS that keeps what it was given, and that nothing leaves behind; and a cluster."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from .fixtures import NewNats
from .nats import ApiRefused, NatsCluster, NatsServer
from .test_postgres_server import awaited


def stream(name: str, **settings: object) -> dict[str, object]:
    return {"name": name, "subjects": [f"{name}.>"], "storage": "file", "num_replicas": 1, **settings}


def test_it_has_jetstream(nats: NatsServer) -> None:
    assert nats.api("INFO")["api"]["level"] >= 2


def test_namespaces_are_new_and_apart(nats: NatsServer) -> None:
    one, two = nats.new_namespace(), nats.new_namespace()
    for name in (one, two):
        assert nats.streams(name) == []
        nats.api(f"STREAM.CREATE.{name}", stream(name))
    nats.drop_namespace(one)
    assert (nats.streams(one), nats.streams(two)) == ([], [two])
    nats.drop_namespace(two)


def test_a_server_in_use_is_not_stopped(nats: NatsServer) -> None:
    for act in (nats.stop, nats.restart, nats.kill, nats.start, nats.freeze):
        with pytest.raises(RuntimeError, match="new_nats"):
            act()
    assert nats.api("INFO")["type"].endswith("account_info_response")


@pytest.mark.parametrize("durable", [False, True])
def test_stopping_and_killing_keeps_what_was_written(new_nats: NewNats, durable: bool) -> None:
    server = new_nats(durable=durable, max_payload=5_000)
    assert ("sync_interval: always" in (server.folder / "nats.conf").read_text(encoding="utf-8")) is durable
    before = server.url(), server.pid
    for number, end in enumerate((server.stop, server.kill)):
        server.api(f"STREAM.CREATE.s{number}", stream(f"s{number}"))
        end()
        with pytest.raises(OSError, match="refused"):
            server.api("INFO")
        server.start()
    assert server.api("STREAM.NAMES")["streams"] == ["s0", "s1"]
    assert server.url() == before[0]
    assert server.pid != before[1]
    with pytest.raises(RuntimeError, match="runs already"):
        server.start()


def test_logins_are_configured(new_nats: NewNats) -> None:
    server = new_nats(config="authorization { user: me, password: secret }", login="me:secret")
    assert server.api("INFO")["streams"] == 0
    assert server.url(namespace="x") == f"nats://me:secret@127.0.0.1:{server.port}/?namespace=x"
    server.login = "me:wrong"
    with pytest.raises(ApiRefused, match="Authorization"):
        server.api("INFO")


@pytest.mark.parametrize("end", [NatsServer.stop, NatsServer.kill, NatsServer.freeze, NatsServer.close])
def test_closing_leaves_no_process_and_no_folder(end: Callable[[NatsServer], None]) -> None:
    with NatsServer() as server:
        folder: Path = server.folder
        with awaited(server.pid, server.guarded.pid):
            end(server)
            server.close()
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="not started"):
        server.stop()


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)ended while starting.*no_such_setting"):
        NatsServer(config="no_such_setting: 1").__enter__()


def test_a_server_whose_guardian_is_killed_ends_too() -> None:
    with NatsServer() as server:
        folder = server.folder
        with awaited(server.pid):
            os.kill(server.guarded.pid, signal.SIGKILL)
    shutil.rmtree(folder)


def test_a_cluster_goes_on_without_its_leader(nats_cluster: NatsCluster) -> None:
    nats_cluster.api("STREAM.CREATE.kept", stream("kept", num_replicas=3))
    leader = nats_cluster.leader_of("kept")
    leader.kill()
    successor = nats_cluster.leader_of("kept")
    assert successor is not leader
    leader.start()
    assert nats_cluster.api("STREAM.INFO.kept")["config"]["num_replicas"] == 3
    assert nats_cluster.url(replicas="3").count(",") == 2
