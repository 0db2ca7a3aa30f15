"""The test server itself: a real Valkey that keeps what it was given, and that nothing leaves behind."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import hiredis
import pytest

from .fixtures import NewValkey
from .test_postgres_server import awaited
from .valkey import ValkeyServer


def test_it_is_valkey_9_with_its_log_on(valkey: ValkeyServer) -> None:
    info = valkey.command("INFO").decode()
    assert "valkey_version:9." in info
    assert "aof_enabled:1" in info
    assert valkey.command("CONFIG", "GET", "appendfsync") == [b"appendfsync", b"everysec"]


def test_namespaces_are_new_and_apart(valkey: ValkeyServer) -> None:
    one, two = valkey.new_namespace(), valkey.new_namespace()
    for name in (one, two):
        assert valkey.keys(name) == []
        valkey.command("SET", f"{{{name}}}:x", name)
    valkey.drop_namespace(one)
    assert (valkey.keys(one), valkey.keys(two)) == ([], [f"{{{two}}}:x".encode()])
    valkey.drop_namespace(two)


def test_a_server_in_use_is_not_stopped(valkey: ValkeyServer) -> None:
    for act in (valkey.stop, valkey.restart, valkey.kill, valkey.start, valkey.freeze):
        with pytest.raises(RuntimeError, match="new_valkey"):
            act()
    assert valkey.command("PING") == b"PONG"


@pytest.mark.parametrize("durable", [False, True])
def test_stopping_and_killing_keeps_what_was_written(new_valkey: NewValkey, durable: bool) -> None:
    server = new_valkey(durable=durable, settings={"hz": "20"})
    assert server.command("CONFIG", "GET", "hz") == [b"hz", b"20"]
    assert server.command("CONFIG", "GET", "appendfsync")[1] == (b"always" if durable else b"everysec")
    before = server.url(), server.socket_url(), server.pid
    for number, end in enumerate((server.stop, server.kill)):
        server.command("RPUSH", "kept", number)
        end()
        with pytest.raises(OSError, match=r"refused|No such file"):
            server.command("PING")
        server.start()
    assert server.command("LRANGE", "kept", 0, -1) == [b"0", b"1"]
    assert (server.url(), server.socket_url()) == before[:2]
    assert server.pid != before[2]
    with pytest.raises(RuntimeError, match="runs already"):
        server.start()
    with pytest.raises(hiredis.ReplyError, match="WRONGTYPE"):
        server.command("GET", "kept")


@pytest.mark.parametrize("end", [ValkeyServer.stop, ValkeyServer.kill, ValkeyServer.freeze, ValkeyServer.close])
def test_closing_leaves_no_process_and_no_folder(end: Callable[[ValkeyServer], None]) -> None:
    with ValkeyServer() as server:
        folder: Path = server.folder
        with awaited(server.pid, server.guarded.pid):
            end(server)
            server.close()
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="not started"):
        server.stop()


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)ended while starting.*no-such-setting"):
        ValkeyServer(settings={"no-such-setting": "1"}).__enter__()


def test_a_server_whose_guardian_is_killed_ends_too() -> None:
    with ValkeyServer() as server:
        folder = server.folder
        with awaited(server.pid):
            os.kill(server.guarded.pid, signal.SIGKILL)
    shutil.rmtree(folder)
