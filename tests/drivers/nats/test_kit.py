"""The NATS driver keeps the contract, on a real server; after each case all that is stored fits together."""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

import pytest

from servers.nats import NatsServer
from taskharbor.driver import Driver
from taskharbor.testing.kit import DriverKit, Harness, NewStore

from . import consistency


class TestNats(DriverKit):
    """Every case of the kit."""

    histories: ClassVar[int] = 35

    @pytest.fixture
    def new_store(self, nats: NatsServer) -> Generator[NewStore]:
        made: list[str] = []

        def new() -> Harness:
            made.append(namespace := nats.new_namespace())
            return Harness(url=nats.url(namespace=namespace))

        yield new
        for namespace in made:
            consistency.check(nats, namespace)
            nats.drop_namespace(namespace)


_ = Driver
