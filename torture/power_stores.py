"""The stores whose power is cut: a file of SQLite, a Valkey and a NATS server with their files on the same disk."""

from __future__ import annotations

import asyncio
import math
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from drivers.redis import indexes
from servers.nats import NatsServer
from servers.valkey import ValkeyServer
from system.crew import Crew
from taskharbor.core.filter import Filter
from taskharbor.driver import Inspect, capability
from taskharbor.drivers import from_url
from taskharbor.harbor import Harbor

NAMESPACE = "power"
MANY = 1_000_000


class PowerStore(Protocol):
    """A store on a disk that loses its power."""

    crew: Crew
    control: str  # the setting with which acknowledged jobs may be lost
    most: float  # of how many seconds before the cut

    def down(self) -> None:
        """End what runs on the disk."""
        ...

    def up(self) -> None:
        """Start it again, with what the disk has kept."""
        ...

    def stored(self) -> set[str]:
        """The ids of the jobs that it has."""
        ...

    def check(self) -> str:
        """Fail if something is broken; otherwise say what was looked at."""
        ...

    def close(self) -> None:
        """End everything."""
        ...


class FileOnDisk:
    """A file of SQLite."""

    control = "synchronous=normal"
    most = math.inf

    def __init__(self, base: Path, disk: Path, *, durable: bool) -> None:
        base.mkdir()
        options = "" if durable else f"?{self.control}"
        self.crew = Crew(base, max_crashes=None, store=disk / f"{base.name}.db", options=options)

    def down(self) -> None:
        """A file has no process of its own."""

    def up(self) -> None:
        """It is opened by those who use it."""

    def stored(self) -> set[str]:
        if not self.crew.store.exists() or not self.crew.select("SELECT 1 FROM sqlite_schema WHERE name = 'job'"):
            return set()
        return {id for (id,) in self.crew.select("SELECT id FROM job")}

    def check(self) -> str:
        self.crew.check_file()
        return "integrity_check ok"

    def close(self) -> None:
        self.crew.close()


def _open_folder(base: Path, disk: Path) -> Path:
    """A folder on the disk for a server, which root starts as another user."""
    folder = disk / base.name
    folder.mkdir()
    for place, mode in ((base.parent, 0o755), (disk, 0o755), (folder, 0o777)):
        place.chmod(mode)
    synced = os.open(folder, os.O_RDONLY)  # or the first cut takes it along
    os.fsync(synced)
    os.close(synced)
    return folder


class ServerOnDisk:
    """A Valkey whose log is on the disk, written before every answer or every second."""

    control = "appendfsync everysec"
    most = 2.0  # the server waits that long for a disk that is busy

    def __init__(self, base: Path, disk: Path, *, durable: bool) -> None:
        base.mkdir()
        self.server = ValkeyServer(durable=durable, settings={"dir": str(_open_folder(base, disk))})
        self.server.start()
        self.crew = Crew(base, max_crashes=None, url=self.server.url(namespace=NAMESPACE))

    def down(self) -> None:
        with suppress(ProcessLookupError, RuntimeError):  # it may have given up by itself: its disk is gone
            self.server.kill()

    def up(self) -> None:
        self.server.start()

    def stored(self) -> set[str]:
        return {id.decode() for id in self.server.command("HKEYS", f"{{{NAMESPACE}}}:job")}

    def check(self) -> str:
        indexes.check(self.server, NAMESPACE)
        harbor = Harbor(self.crew.url)
        try:
            found = harbor.admin.repair(dry=True)
        finally:
            harbor.close()
        assert found is not None
        assert not found.misfits, found.examples
        return "all indexes fit"

    def close(self) -> None:
        self.crew.close()
        self.server.close()


class StreamsOnDisk:
    """A NATS server whose streams are on the disk, synced before every answer, or every two minutes."""

    control = "sync_interval of two minutes"
    most = math.inf

    def __init__(self, base: Path, disk: Path, *, durable: bool) -> None:
        base.mkdir()
        self.server = NatsServer(durable=durable, store=_open_folder(base, disk))
        self.server.start()
        self.crew = Crew(base, max_crashes=None, url=self.server.url(namespace=NAMESPACE))

    def down(self) -> None:
        with suppress(ProcessLookupError, RuntimeError):
            self.server.kill()

    def up(self) -> None:
        self.server.start()

    def stored(self) -> set[str]:
        return asyncio.run(self._stored())

    async def _stored(self) -> set[str]:
        driver = await from_url(self.crew.url)
        try:
            return {job.id for job in await capability(driver, Inspect).query(Filter(), datetime.now(UTC), MANY)}
        finally:
            await driver.close()

    def check(self) -> str:
        return asyncio.run(self._check())

    async def _check(self) -> str:
        """The numbers, which other records hold, are those of the jobs."""
        driver = await from_url(self.crew.url)
        try:
            inspect, now = capability(driver, Inspect), datetime.now(UTC)
            counted = sum(
                each.scheduled
                + each.ready
                + each.waiting
                + each.claimed
                + each.running
                + each.lapsed
                + each.done
                + each.dlq
                + each.cancelled
                for each in await inspect.counts(now)
            )
            listed = len(await inspect.query(Filter(), now, MANY))
            assert counted == listed, f"{listed} jobs, and {counted} are counted"
            return "all are counted"
        finally:
            await driver.close()

    def close(self) -> None:
        self.crew.close()
        self.server.close()
