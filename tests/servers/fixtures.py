"""Fixtures: the run's own PostgreSQL and Valkey, one of each version for all tests, and servers for one to break."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from .nats import NatsCluster, NatsServer
from .postgres import PostgresServer
from .valkey import ValkeyServer


class NewPostgres(Protocol):
    """Starts a server that belongs to one test."""

    def __call__(
        self, version: int = 18, *, durable: bool = False, settings: Mapping[str, str] | None = None
    ) -> PostgresServer: ...


class NewValkey(Protocol):
    """Starts a server that belongs to one test."""

    def __call__(self, *, durable: bool = False, settings: Mapping[str, str] | None = None) -> ValkeyServer: ...


class NewNats(Protocol):
    """Starts a server that belongs to one test."""

    def __call__(
        self,
        *,
        durable: bool = False,
        config: str = "",
        jetstream: bool = True,
        max_payload: int | None = None,
        login: str = "",
    ) -> NatsServer: ...


@pytest.fixture(scope="session")
def run_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if hasattr(request.config, "workerinput") else folder


@pytest.fixture(scope="session")
def postgres(run_folder: Path) -> Generator[PostgresServer]:
    """PostgreSQL 18, shared: take a `new_database`, and leave the server as it is."""
    server = PostgresServer.of_the_run(run_folder, 18)
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgres16(run_folder: Path) -> Generator[PostgresServer]:
    """PostgreSQL 16, shared likewise."""
    server = PostgresServer.of_the_run(run_folder, 16)
    yield server
    server.close()


@pytest.fixture
def new_postgres() -> Generator[NewPostgres]:
    """Servers to stop, kill and restart at will; each takes some two seconds to make."""
    with ExitStack() as stack:

        def new(
            version: int = 18, *, durable: bool = False, settings: Mapping[str, str] | None = None
        ) -> PostgresServer:
            return stack.enter_context(PostgresServer(version, durable=durable, settings=settings))

        yield new


@pytest.fixture(scope="session")
def valkey(run_folder: Path) -> Generator[ValkeyServer]:
    """Valkey 9, shared: take a `new_namespace`, and leave the server as it is."""
    server = ValkeyServer.of_the_run(run_folder)
    yield server
    server.close()


@pytest.fixture
def new_valkey() -> Generator[NewValkey]:
    """Servers to stop, kill and restart at will."""
    with ExitStack() as stack:

        def new(*, durable: bool = False, settings: Mapping[str, str] | None = None) -> ValkeyServer:
            return stack.enter_context(ValkeyServer(durable=durable, settings=settings))

        yield new


@pytest.fixture(scope="session")
def nats(run_folder: Path) -> Generator[NatsServer]:
    """NATS 2.15, shared: take a `new_namespace`, and leave the server as it is."""
    server = NatsServer.of_the_run(run_folder)
    yield server
    server.close()


@pytest.fixture
def new_nats() -> Generator[NewNats]:
    """Servers to stop, kill and restart at will."""
    with ExitStack() as stack:

        def new(
            *,
            durable: bool = False,
            config: str = "",
            jetstream: bool = True,
            max_payload: int | None = None,
            login: str = "",
        ) -> NatsServer:
            return stack.enter_context(
                NatsServer(durable=durable, config=config, jetstream=jetstream, max_payload=max_payload, login=login)
            )

        yield new


@pytest.fixture
def nats_cluster() -> Generator[NatsCluster]:
    """Three nodes for one test; they take some seconds to make."""
    with NatsCluster() as cluster:
        yield cluster
