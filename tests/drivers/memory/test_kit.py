"""The memory driver keeps the contract."""

from __future__ import annotations

import pytest

from taskharbor.driver import Driver
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.testing.kit import BlockingKit, EphemeralKit, Harness, NewStore


class Peek:
    """Looks into the dict behind the verbs."""

    def state(self, driver: Driver, id: str) -> str | None:
        assert isinstance(driver, MemoryDriver)
        job = driver._store.jobs.get(id)
        return None if job is None else job.state

    def count(self, driver: Driver) -> int:
        assert isinstance(driver, MemoryDriver)
        return len(driver._store.jobs)


class TestMemory(EphemeralKit):
    """Every case that a store without a second handle can show. Random histories compare the model with itself."""

    histories = 10

    @pytest.fixture
    def new_store(self) -> NewStore:
        return lambda: Harness(url="memory://", probe=Peek())

    def test_G2_the_memory_driver_says_that_it_forgets(self) -> None:  # noqa: N802
        """G2: ephemeral, and it says so."""
        assert MemoryDriver().ephemeral


class TestMemoryBlocking(BlockingKit):
    """Enqueues on the caller's thread."""

    @pytest.fixture
    def new_store(self) -> NewStore:
        return lambda: Harness(url="memory://", probe=Peek())
