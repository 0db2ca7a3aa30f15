"""`harbor.admin.repair()`: how long it may take."""

from __future__ import annotations

import asyncio
from typing import Any

from taskharbor.driver import Driver, RepairReport
from taskharbor.testing import Recording
from world import World, virtual

STORE_TIMEOUT = 5.0


class Indexed(Recording):
    """A store whose indexes take minutes to compare."""

    async def repair(self, *, dry: bool) -> RepairReport:
        """Compare them."""
        await asyncio.sleep(60 * STORE_TIMEOUT)
        return RepairReport(jobs=10_000_000, misfits=0)


@virtual
async def test_a_repair_of_a_large_store_takes_its_time() -> None:
    """X2: `store_timeout` is for a store that does not answer, and this one works."""

    def indexed(inner: Driver) -> Any:
        return Indexed(inner)

    world = World(wrap=indexed, store_timeout=STORE_TIMEOUT)
    found = await world.harbor.admin.arepair(dry=True)
    assert found is not None
    assert found.jobs == 10_000_000
