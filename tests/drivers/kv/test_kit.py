"""The steps of the core keep the contract, on a key-value store that runs every verb as one (D14)."""

from __future__ import annotations

import pytest

from taskharbor.driver import Driver
from taskharbor.testing.kit import EphemeralKit, Harness, NewStore

from .bucket import Bucket
from .driver import KvDriver


class Peek:
    """Looks into the bucket behind the verbs."""

    def state(self, driver: Driver, id: str) -> str | None:
        assert isinstance(driver, KvDriver)
        stored = driver.kv.bucket.get(f"job/{id}").value
        return None if stored is None else stored.job.state

    def count(self, driver: Driver) -> int:
        assert isinstance(driver, KvDriver)
        return len(driver.kv.bucket.scan("job/"))


async def _open() -> Driver:
    return KvDriver(Bucket())


class TestKv(EphemeralKit):
    """Every case that a store inside one process can show. `test_interleavings.py` has more histories."""

    histories = 40

    @pytest.fixture
    def new_store(self) -> NewStore:
        return lambda: Harness(open=_open, probe=Peek())
