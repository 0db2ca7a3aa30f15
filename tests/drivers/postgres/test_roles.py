"""Least privilege: the roles of docs/postgres.md, as they stand there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from secrets import token_hex

import pytest

from servers.postgres import PostgresServer
from taskharbor import Harbor
from taskharbor.drivers import from_url, migrate
from taskharbor.errors import ConfigError
from taskharbor.testing.kit import Harness, NewStore, OwnTransactionKit
from taskharbor.testing.kit.beside import HintCases, WorkerCases
from taskharbor.testing.kit.flows import FlowCases
from taskharbor.testing.kit.groups import GroupCases
from taskharbor.testing.kit.keys import KeyCases
from taskharbor.testing.kit.leases import LeaseCases
from taskharbor.testing.kit.looking import ReadingCases
from taskharbor.testing.kit.order import OrderCases
from taskharbor.testing.kit.parallel import ThreadCases
from taskharbor.testing.kit.recurring import RecurringCases
from taskharbor.testing.kit.replay import ReplayCases
from taskharbor.testing.kit.reserve import ReserveCases
from taskharbor.testing.kit.settle import SettleCases
from taskharbor.testing.kit.totals import TotalCases
from taskharbor.testing.kit.upkeep import UpkeepCases

from .test_kit import Schemas

PAGE = Path(__file__).resolve().parents[3] / "docs" / "postgres.md"


class Roles:
    """Owner, worker and producer by names of this run's own, in a database of their own."""

    def __init__(self, server: PostgresServer) -> None:
        self.server, self.database = server, server.new_database()
        self._prefix = f"jobs_{token_hex(4)}_"
        self._made = False
        self._blocks = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        assert len(self._blocks) == 2

    def make(self, schema: str) -> None:
        """A schema with these roles, by what the page says."""
        administrator, owner = (self._words(block, schema) for block in self._blocks)
        if self._made:  # the roles are there
            administrator = "\n".join(line for line in administrator.splitlines() if "ROLE" not in line)
        self._made = True
        self.server.execute(administrator, database=self.database)
        asyncio.run(migrate(self.url("owner", schema)))
        self.server.execute(f"SET ROLE {self._prefix}owner;{owner}", database=self.database)

    def _words(self, block: str, schema: str) -> str:
        return block.replace("jobs_", self._prefix).replace("taskharbor", schema)

    def url(self, role: str, schema: str) -> str:
        url = self.server.url(self.database, namespace=schema)
        return url.replace("postgres@", f"{self._prefix}{role}@")


@pytest.fixture(scope="module")
def roles(postgres: PostgresServer) -> Roles:
    return Roles(postgres)


class OwnedSchemas(Schemas):
    """Stores that the owner made, opened by the worker."""

    def __init__(self, roles: Roles) -> None:
        super().__init__(roles.server, roles.database)
        everybodys = "GRANT INSERT ON orders TO PUBLIC; GRANT USAGE ON orders_number_seq TO PUBLIC"
        roles.server.execute(everybodys, database=roles.database)
        self._roles = roles
        self._seen: set[str] = set()

    def new(self) -> Harness:
        harness = super().new()
        schema = self._used[-1]
        if schema not in self._seen:
            self._seen.add(schema)
            self._roles.make(schema)
        return replace(harness, url=self._roles.url("worker", schema))


@pytest.fixture(scope="module")
def schemas(postgres16: PostgresServer) -> Generator[OwnedSchemas]:
    with OwnedSchemas(Roles(postgres16)) as schemas:
        yield schemas


class TestAsTheWorker(
    GroupCases,
    KeyCases,
    ReserveCases,
    OrderCases,
    LeaseCases,
    SettleCases,
    FlowCases,
    ReplayCases,
    UpkeepCases,
    ReadingCases,
    RecurringCases,
    WorkerCases,
    TotalCases,
    HintCases,
    ThreadCases,
    OwnTransactionKit,
):
    """Every statement with the rights of a worker, on the older server, where `make torture` runs the whole kit."""

    @pytest.fixture
    def harness(self, new_store: NewStore) -> Harness:
        return new_store()

    @pytest.fixture
    def new_store(self, schemas: OwnedSchemas) -> Generator[NewStore]:
        yield schemas.new
        schemas.give_back()


def harbor_of(url: str) -> Harbor:
    harbor = Harbor(url)

    @harbor.task(name="double")
    async def double(number: int) -> int:
        return 2 * number

    return harbor


def test_a_producer_enqueues_and_waits(roles: Roles) -> None:
    """One by one, many at once by COPY, with keys; and it gets the results of what a worker does."""
    roles.make("shared")
    producer, worker = harbor_of(roles.url("producer", "shared")), harbor_of(roles.url("worker", "shared"))

    async def act() -> None:
        async with producer.open(), worker.open(), worker.worker():
            step = producer.step("double", {"number": 21})
            keyed = producer.step("double", {"number": 1}, idempotency_key="k", idempotency_ttl=60)
            [one] = await producer.aenqueue_many([step])
            assert await one.aresult(timeout=30) == 42
            [first], [second] = await producer.aenqueue_many([keyed]), await producer.aenqueue_many([keyed])
            assert (first.id, second.created) == (second.id, False)
            many = await producer.aenqueue_many([producer.step("double", {"number": n}) for n in range(400)])
            assert await many[-1].aresult(timeout=30) == 798

    asyncio.run(act())


def test_a_producer_changes_nothing_else(roles: Roles) -> None:
    """X5: an error that names the page."""
    roles.make("mine")
    producer = harbor_of(roles.url("producer", "mine"))

    async def act() -> None:
        async with producer.open():
            [job] = await producer.aenqueue_many([producer.step("double", {"number": 1})])
            with pytest.raises(ConfigError, match=r"docs/postgres.md"):
                await job.acancel()
            driver = await from_url(producer.url)
            with pytest.raises(ConfigError, match=r"docs/postgres.md"):
                await driver.reserve(["default"], producer.admin.now(), timedelta(seconds=9), 1, "w")
            await driver.close()

    asyncio.run(act())


def test_only_the_owner_migrates(roles: Roles) -> None:
    """X5: a worker that runs migrate, and a role without any rights."""
    roles.make("kept")
    with pytest.raises(ConfigError, match="may not make or change schema 'new'"):
        asyncio.run(migrate(roles.url("worker", "new")))
    stranger = f"stranger_{token_hex(4)}"
    roles.server.execute(f"CREATE ROLE {stranger} LOGIN")
    url = roles.server.url(roles.database, namespace="kept").replace("postgres@", f"{stranger}@")
    with pytest.raises(ConfigError, match=r"may not do this: see the roles in docs/postgres.md"):
        asyncio.run(_opened(url))


async def _opened(url: str) -> None:
    await (await from_url(url)).close()
