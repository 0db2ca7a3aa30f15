"""The crew: real processes that share a store, in the test's own folder or in a database of the test's own."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from drivers.redis import indexes
from servers.nats import NatsServer
from servers.postgres import PostgresServer
from servers.valkey import ValkeyServer

from .crew import Crew


@pytest.fixture(params=["sqlite", "postgres", "redis", "nats"])
def engine(request: pytest.FixtureRequest) -> str:
    """Every test of the crew runs on each, unless its module says otherwise."""
    name: str = request.param
    return name


@pytest.fixture
def crew(tmp_path: Path, engine: str, request: pytest.FixtureRequest) -> Generator[Crew]:
    """No process runs yet; those left at the end are ended."""
    url, valkey, nats, namespace = None, None, None, ""
    if engine == "redis":
        valkey = _valkey(request)
        namespace = valkey.new_namespace()
        url = valkey.url(namespace=namespace)
    if engine == "nats":
        nats = _nats(request)
        namespace = nats.new_namespace()
        url = nats.url(namespace=namespace)
    if engine == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url(server.new_database(), migrate="true")
    crew = Crew(tmp_path, url=url)
    try:
        yield crew
    finally:
        crew.close()
    if valkey is not None:
        indexes.check(valkey, namespace)
        valkey.drop_namespace(namespace)
    if nats is not None:
        nats.drop_namespace(namespace)


def _valkey(request: pytest.FixtureRequest) -> ValkeyServer:
    server: ValkeyServer = request.getfixturevalue("valkey")
    return server


def _nats(request: pytest.FixtureRequest) -> NatsServer:
    server: NatsServer = request.getfixturevalue("nats")
    return server
