"""Broken statements by libpq: the blocking enqueue on PostgreSQL. Tests of the driver catch them, on a real server."""

from __future__ import annotations

from typing import Any

import asyncpg
from psycopg.pq import ExecStatus

from taskharbor.drivers.postgres import direct
from taskharbor.drivers.postgres.direct import LibpqConnection

from .mutant import MutantRegistry

DIRECT = MutantRegistry("direct")
mutant = DIRECT.mutant


@mutant((direct, "_encoded"), by="test_values_arrive_as_they_are[subclasses]")
def direct_times_without_their_zone(encoded: Any, value: Any) -> bytes | None:
    """A job is due at another time, unless its caller thinks in UTC."""
    sent: bytes | None = encoded(value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value)
    return sent


@mutant((direct, "_encoded"), by="test_a_nul_is_refused_not_cut_off")
def direct_texts_end_at_a_nul(encoded: Any, value: Any) -> bytes | None:
    """A payload is stored up to its first NUL, as texts of C end there."""
    sent: bytes | None = encoded(value)
    return None if sent is None else sent.partition(b"\0")[0]


@mutant((LibpqConnection, "__init__"), by="test_the_first_error_of_several_statements_is_raised")
def direct_errors_overlooked(init: Any, self: LibpqConnection, *given: Any) -> None:
    """Every answer of the server is taken for a success."""
    init(self, *given)
    self._good = tuple(ExecStatus)  # type: ignore[assignment]


@mutant((LibpqConnection, "_failure"), by="test_a_nul_is_refused_not_cut_off")
def direct_refusals_are_lost_connections(failure: Any, self: LibpqConnection, answer: Any) -> Exception:
    """A call that the server refuses is tried again on another connection, for ever."""
    return ConnectionError(str(failure(self, answer)))


@mutant((LibpqConnection, "_failure"), by="test_the_first_error_of_several_statements_is_raised")
def direct_errors_without_their_kind(failure: Any, self: LibpqConnection, answer: Any) -> Exception:
    """A key that exists, a missing table and a full disk look alike."""
    return asyncpg.PostgresError(str(failure(self, answer)))


@mutant((LibpqConnection, "count"), by="test_values_arrive_as_they_are[plain]")
def direct_prepared_every_time(count: Any, self: LibpqConnection, *given: Any) -> int:
    """The second enqueue of a connection fails: its statement exists."""
    self._prepared.clear()
    number: int = count(self, *given)
    return number


@mutant((LibpqConnection, "count"), by="test_rows_are_counted")
def direct_rows_not_counted(count: Any, self: LibpqConnection, *given: Any) -> int:
    """An enqueue that stored nothing is confirmed."""
    count(self, *given)
    return 1
