"""A server or a stream without room: new jobs are refused with the fix, and all go on when there is room again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from servers.fixtures import NewNats
from servers.nats import NatsServer
from taskharbor import Harbor
from taskharbor.drivers import parse
from taskharbor.drivers.nats.streams import configurations
from taskharbor.drivers.nats.url import address
from taskharbor.errors import DriverUnavailable

ROOM = 400_000
MOST = 2_000


def limited_stream(nats: NatsServer, most: int) -> None:
    """Give JOBS a limit, as an operator may."""
    for name, wanted in configurations(address(*parse(nats.url()))).items():
        if name.endswith("JOBS"):
            verb = "UPDATE" if nats.streams("taskharbor") else "CREATE"
            nats.api(f"STREAM.{verb}.{name}", {**wanted, "max_bytes": most})


def limited_account(nats: NatsServer, most: int) -> None:
    """Give the account a limit, by another configuration."""
    user = "user: me, password: pw"
    nats.config = f"accounts {{ A {{ jetstream: {{ max_file: {most} }}, users: [ {{ {user} }} ] }} }}"
    nats.login = "me:pw"
    nats.restart()


@pytest.mark.parametrize("limit", [limited_stream, limited_account])
def test_what_has_no_room_says_so(new_nats: NewNats, limit: Callable[[NatsServer, int], None]) -> None:
    """X2, X5, G2: `enqueue` names the fix at once, nothing is half-stored, and every job that was acknowledged runs."""
    nats = new_nats()
    limit(nats, ROOM)
    with closing(Harbor(nats.url())) as harbor:
        task = harbor.task(name="nothing")(_nothing)
        stored: list[str] = []
        with pytest.raises(DriverUnavailable, match="raise max_file of JetStream there, or the limits of the account"):
            stored.extend(task.enqueue("x" * 1_000).id for _ in range(MOST))
        limit(nats, 100 * ROOM)
        assert harbor.drain() == len(stored) > 50
        assert task.enqueue("again").id


def _nothing(text: str) -> None:
    """A handler."""
