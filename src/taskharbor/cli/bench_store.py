"""A throw-away store for `taskharbor bench`: the same engine and settings on the same disk, without any jobs."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from msgspec import Struct

from taskharbor.cli import bench_namespace
from taskharbor.errors import CapabilityMissing, ConfigError, DriverUnavailable
from taskharbor.harbor import Harbor

PREFIX = ".taskharbor-bench-"
BLOCK = b"x" * 4096
MOST_FSYNCS = 200


class Ground(Struct, frozen=True):
    """The URL to measure. `limit` measures for this many seconds what the engine itself needs, in milliseconds: an
    fsync for SQLite, a commit for PostgreSQL, a round trip for Redis and NATS. `may_lose` are settings of a server, in
    words."""

    url: str
    engine: str
    synchronous: str | None = None
    limit: Callable[[float], Awaitable[float]] | None = None
    may_lose: Sequence[str] = ()


@asynccontextmanager
async def throwaway(url: str) -> AsyncGenerator[Ground]:
    """A store like the one that the URL names, removed at the end. The named one is neither opened nor created."""
    Harbor(url)  # raises if the URL is invalid
    parts = urlsplit(url)
    if parts.scheme == "memory":
        yield Ground(url, "memory")
    elif parts.scheme == "sqlite":
        with _folder_beside(_file(parts)) as folder:
            query = f"?{parts.query}" if parts.query else ""
            own = f"sqlite:///{quote(str(folder / 'bench.db'))}{query}"
            synchronous = dict(parse_qsl(parts.query)).get("synchronous", "full").lower()
            yield Ground(own, "sqlite", synchronous, partial(fsync_ms, folder))
    elif parts.scheme in ("postgresql", "postgres"):
        from taskharbor.cli.bench_server import commit_durability, commit_ms, own_schema

        async with own_schema(url) as harbor:
            yield Ground(harbor.url, "postgresql", await commit_durability(harbor), partial(commit_ms, harbor))
    elif (engine := bench_namespace.SCHEMES.get(parts.scheme)) is not None:
        async with bench_namespace.own_namespace(url) as harbor:
            lost = await bench_namespace.may_lose(harbor)
            yield Ground(harbor.url, engine, None, partial(bench_namespace.round_trip_ms, harbor), lost)
    else:
        raise CapabilityMissing(
            f"bench cannot create a throw-away store on {parts.scheme}:// yet: name a file (sqlite:///jobs.db), a "
            "server (postgresql://…, redis://…, nats://…) or memory://"
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
    """A folder on the file system of the file, because SQLite keeps several files."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=file.parent))
    except OSError as error:
        if not file.parent.exists():
            raise ConfigError(f"there is no folder {file.parent}: create it first, or name another file") from None
        raise DriverUnavailable(
            f"cannot write in {file.parent} ({error.strerror}): make it writable, or name a file elsewhere"
        ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def fsync_ms(folder: Path, seconds: float) -> float:
    """Measure a write and fsync of 4 KiB, in milliseconds: the mean of several tries."""
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
