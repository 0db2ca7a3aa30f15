"""Connections of threads, by a deadline (X2)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Generator
from contextlib import closing
from typing import Any

import pytest

from taskharbor.drivers.redis import dial
from taskharbor.drivers.redis.blocking import BlockingLinks
from taskharbor.drivers.redis.dial import connected
from taskharbor.drivers.redis.url import Address
from taskharbor.errors import DriverUnavailable

from .talk import ECHO

SOON, PATIENCE = 0.05, 30.0


@pytest.fixture
def open_port() -> Generator[int]:
    """A port that takes connections."""
    with closing(socket.create_server(("127.0.0.1", 0))) as door:
        yield door.getsockname()[1]


@pytest.fixture
def closed_port() -> Generator[int]:
    """A port that takes none."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_a_resolver_that_hangs_does_not_put_the_deadline_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """X2: an enqueue ends in time whatever the name server does."""
    answer = threading.Event()
    resolve = socket.getaddrinfo

    def hang(host: str, port: int, **options: Any) -> Any:
        if options["flags"] != socket.AI_NUMERICHOST:
            answer.wait(PATIENCE)
        return resolve(host, port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    links = BlockingLinks(Address(host="jobs.invalid"))
    with pytest.raises(DriverUnavailable, match=r"the name jobs\.invalid was not resolved in time"):
        links.run(ECHO, "", (), SOON)
    answer.set()


def test_a_name_that_is_not_there_is_named() -> None:
    """X5."""
    with pytest.raises(DriverUnavailable, match=r"jobs\.invalid:6379"):
        BlockingLinks(Address(host="jobs.invalid")).run(ECHO, "", (), PATIENCE)


def test_without_a_thread_the_caller_resolves(monkeypatch: pytest.MonkeyPatch, open_port: int) -> None:
    """X2: as in a finalizer at the end of the interpreter."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(dial, "start_new_thread", refuse)
    connected(Address(host="localhost", port=open_port), time.monotonic() + PATIENCE).close()


def test_of_several_addresses_one_that_answers_is_taken(
    monkeypatch: pytest.MonkeyPatch, open_port: int, closed_port: int
) -> None:
    """X2: the name of a server in a failover may have the old address as well."""
    places: list[tuple[int, tuple[str, int]]] = [
        (socket.AF_INET, ("127.0.0.1", port)) for port in (closed_port, open_port)
    ]

    def look_up(_: Address, flags: int = 0) -> list[tuple[int, tuple[str, int]]]:
        return places

    monkeypatch.setattr(dial, "_looked_up", look_up)
    connected(Address(), time.monotonic() + PATIENCE).close()
    places.reverse()
    connected(Address(), time.monotonic() + PATIENCE).close()
    places[:] = [places[1], places[1]]
    with pytest.raises(ConnectionRefusedError):
        connected(Address(), time.monotonic() + PATIENCE)
    with pytest.raises(TimeoutError):
        connected(Address(), time.monotonic())
