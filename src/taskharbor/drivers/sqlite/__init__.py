"""The SQLite driver: one file, one connection that threads use in turns, group commit.

Built on apsw, never on the standard library's sqlite3: two copies of SQLite on one file in one process cancel each
other's locks and lose committed data.

Internal: `taskharbor.drivers.from_url` opens it. It imports the core, the seam (`taskharbor.driver`),
the errors, and of `drivers` only `shared` and `wakeup`.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import SplitResult, unquote

from taskharbor.core.urls import redacted
from taskharbor.drivers.sqlite.driver import SqliteDriver
from taskharbor.errors import ConfigError

__all__ = ["SqliteDriver", "connect"]


async def connect(url: SplitResult, options: dict[str, str]) -> SqliteDriver:
    """Open the file that the URL names; create it if it does not exist."""
    path = file_of(url)
    if "namespace" in options:
        raise ConfigError("the sqlite driver has no namespaces: use another file")
    synchronous = options.pop("synchronous", "full").lower()
    if synchronous not in ("full", "normal"):
        raise ConfigError(f"synchronous={synchronous}: write full (survives a power cut) or normal (faster)")
    return await SqliteDriver.open(path, synchronous)


def file_of(url: SplitResult) -> Path:
    """The path in a URL: `sqlite:///relative.db`, `sqlite:////absolute.db`."""
    if url.netloc:
        name = redacted(url.netloc)
        raise ConfigError(f"sqlite:// takes no host: write sqlite:///{name} for a file in the working folder")
    name = unquote(url.path[1:])
    if name in ("", ":memory:"):
        raise ConfigError(
            "a sqlite URL names a file, such as sqlite:///taskharbor.db; for a store in memory use memory://"
        )
    if "\0" in name:
        raise ConfigError("a file name cannot contain a zero character (%00)")
    return Path(name).absolute()
