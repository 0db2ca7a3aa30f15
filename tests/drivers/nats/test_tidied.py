"""The NATS driver keeps the contract where every page that has ended is out of LINE at once, and pages are small."""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

import pytest

from servers.nats import NatsServer
from taskharbor.testing.kit import EphemeralKit, Harness, NewStore

from . import consistency, tidied


class TestTidied(EphemeralKit):
    """Every case of the kit."""

    histories: ClassVar[int] = 25

    @pytest.fixture
    def new_store(self, nats: NatsServer) -> Generator[NewStore]:
        made: list[str] = []

        def new() -> Harness:
            made.append(namespace := nats.new_namespace())
            return tidied.harness(nats.url(namespace=namespace))

        with tidied.small_pages():
            yield new
        for namespace in made:
            consistency.check(nats, namespace)
            nats.drop_namespace(namespace)
