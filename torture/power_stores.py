"""The stores whose power is cut: a file of SQLite, and a Valkey with its log on the same disk."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from drivers.redis import indexes
from servers.valkey import ValkeyServer
from system.crew import Crew
from taskharbor.harbor import Harbor

NAMESPACE = "power"


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


class ServerOnDisk:
    """A Valkey whose log is on the disk, written before every answer or every second."""

    control = "appendfsync everysec"
    most = 2.0  # the server waits that long for a disk that is busy

    def __init__(self, base: Path, disk: Path, *, durable: bool) -> None:
        base.mkdir()
        folder = disk / base.name
        folder.mkdir()
        for place, mode in ((base.parent, 0o755), (disk, 0o755), (folder, 0o777)):  # root starts it as another user
            place.chmod(mode)
        self.server = ValkeyServer(durable=durable, settings={"dir": str(folder)})
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
