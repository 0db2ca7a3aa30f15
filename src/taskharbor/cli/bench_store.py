"""A throw-away store for `taskharbor bench`: the same engine and settings on the same disk, and nobody's jobs in it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from msgspec import Struct

from taskharbor.errors import CapabilityMissing, ConfigError, DriverUnavailable
from taskharbor.harbor import Harbor

PREFIX = ".taskharbor-bench-"
BLOCK = b"x" * 4096
MOST_FSYNCS = 200


class Ground(Struct, frozen=True):
    """Where to measure: a URL of its own, and the folder behind it if there is one."""

    url: str
    engine: str
    synchronous: str | None = None
    folder: Path | None = None


@contextmanager
def throwaway(url: str) -> Generator[Ground]:
    """A store like the one that the URL names, gone at the end. The named one is neither opened nor made."""
    Harbor(url)  # says what is wrong with it, if anything
    parts = urlsplit(url)
    if parts.scheme == "memory":
        yield Ground(url, "memory")
    elif parts.scheme == "sqlite":
        with _folder_beside(_file(parts)) as folder:
            query = f"?{parts.query}" if parts.query else ""
            options = dict(parse_qsl(parts.query))
            yield Ground(
                f"sqlite:///{quote(str(folder / 'bench.db'))}{query}",
                "sqlite",
                options.get("synchronous", "full").lower(),
                folder,
            )
    else:
        raise CapabilityMissing(
            f"bench cannot make a throw-away store on {parts.scheme}:// yet: name a file (sqlite:///jobs.db) or memory://"
        )


def _file(parts: SplitResult) -> Path:
    name = unquote(parts.path[1:])
    if parts.netloc or name in ("", ":memory:"):
        raise ConfigError(
            "a sqlite URL names a file and no host, such as sqlite:///taskharbor.db; for a store in memory use memory://"
        )
    return Path(name).absolute()


@contextmanager
def _folder_beside(file: Path) -> Generator[Path]:
    """A folder on the file system of the file, for SQLite keeps several files."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=file.parent))
    except FileNotFoundError:
        raise ConfigError(f"there is no folder {file.parent}: make it first, or name another file") from None
    except OSError as error:
        raise DriverUnavailable(
            f"cannot write in {file.parent} ({error.strerror}): make it writable, or name a file elsewhere"
        ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fsync_ms(folder: Path, seconds: float) -> float:
    """How long the disk takes to promise 4 KiB, in milliseconds: the mean of some tries."""
    file = folder / "fsync"
    taken: list[float] = []
    give_up = time.perf_counter() + seconds
    with file.open("ab", buffering=0) as disk:
        while not taken or (len(taken) < MOST_FSYNCS and time.perf_counter() < give_up):
            disk.write(BLOCK)
            begun = time.perf_counter()
            os.fsync(disk.fileno())
            taken.append((time.perf_counter() - begun) * 1000)
    file.unlink()
    return fmean(taken)
