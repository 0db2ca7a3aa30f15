"""Every mutant of the statements by libpq is caught by the test that it names, on a real server."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import asyncpg
import psycopg
import pytest

from drivers.postgres import test_direct
from servers.postgres import PostgresServer

from .catching import COMPLAINTS
from .directs import DIRECT
from .kit import parameters
from .mutant import Mutant

pytestmark = pytest.mark.filterwarnings("ignore")


def _catchers() -> Generator[tuple[str, Callable[[Any], None]]]:
    """The tests that need a connection and nothing else."""
    for name, test in vars(test_direct).items():
        if name.startswith("test_"):
            for label, given in parameters(test):
                if inspect.signature(test).parameters.keys() - given.keys() == {"connection"}:
                    yield f"{name}[{label}]" if label else name, partial(test, **given)


CATCHERS = dict(_catchers())


def ask(catcher: str, server: PostgresServer, database: str) -> None:
    """Let a test complain about the driver as it is now."""
    with test_direct.connected(server, database) as connection:
        CATCHERS[catcher](connection)


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.mark.parametrize("mutant", DIRECT.mutants, ids=lambda mutant: mutant.name)
def test_it_is_caught(
    mutant: Mutant, postgres: PostgresServer, database: str, record_property: Callable[[str, object], None]
) -> None:
    for catcher in mutant.caught_by:
        ask(catcher, postgres, database)
        with mutant.applied(), pytest.raises((*COMPLAINTS, OSError, asyncpg.PostgresError, psycopg.Error)):
            ask(catcher, postgres, database)
    record_property("mutant", (mutant.kind, mutant.name, mutant.caught_by))
