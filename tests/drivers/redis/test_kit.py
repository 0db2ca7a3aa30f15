"""The Redis driver keeps the contract, on a real Valkey; after each case its indexes are what its records say."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from servers.valkey import ValkeyServer
from taskharbor.driver import Driver
from taskharbor.testing.kit import BlockingKit, DriverKit, Harness, NewStore

from . import indexes


class Peek:
    """Reads the server through a connection of its own."""

    def __init__(self, server: ValkeyServer, prefix: str) -> None:
        self._server, self._prefix = server, prefix

    def state(self, driver: Driver, id: str) -> str | None:
        head = self._server.command("HGET", f"{self._prefix}job", id)
        return None if head is None else head.decode().split(" ")[0]

    def count(self, driver: Driver) -> int:
        return int(self._server.command("HLEN", f"{self._prefix}job"))


class TestRedis(DriverKit, BlockingKit):
    """Every case of the kit."""

    @pytest.fixture
    def new_store(self, valkey: ValkeyServer) -> Generator[NewStore]:
        made: list[str] = []

        def new() -> Harness:
            made.append(namespace := valkey.new_namespace())
            return Harness(url=valkey.url(namespace=namespace), probe=Peek(valkey, f"{{{namespace}}}:"))

        yield new
        for namespace in made:
            indexes.check(valkey, namespace)
            valkey.drop_namespace(namespace)
