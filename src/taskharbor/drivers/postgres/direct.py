"""Statements on a connection of psycopg, run by libpq itself: a cursor takes twice as long.

The waits are short ones in a row, as psycopg's own are, so that Ctrl-C ends them. After an error that is not the
server's answer, the state of the connection is unknown.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import asyncpg

if TYPE_CHECKING:
    import psycopg
    from psycopg.pq.abc import PGresult

# Milliseconds between two looks for signals: one that arrives just before a wait does not interrupt it.
LONGEST_WAIT = 100
Value = str | bytes | int | datetime | None


class LibpqConnection:
    """A connection in autocommit mode that one thread uses at a time. Its errors are those of asyncpg."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        from psycopg import Error
        from psycopg.pq import DiagnosticField, ExecStatus

        self._pgconn = connection.pgconn
        self._wait = _waiting(self._pgconn.socket)
        self._prepared: dict[str, bytes] = {}
        self._error = Error
        self._good = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)
        self._sqlstate = DiagnosticField.SQLSTATE

    def execute(self, text: bytes) -> None:
        """Run statements without values."""
        self._answer(lambda: self._pgconn.send_query(text))

    def count(self, name: str, text: bytes, values: Sequence[Value]) -> int:
        """The number of rows of a statement, which is prepared under its name when it is first run.

        The server takes the types of the values from its casts.
        """
        pgconn = self._pgconn
        if (known := self._prepared.get(name)) is None:
            known = name.encode()
            self._answer(lambda: pgconn.send_prepare(known, text))
            self._prepared[name] = known
        sent = [_encoded(value) for value in values]
        formats = [isinstance(value, _WHOLE) for value in values]
        return self._answer(lambda: pgconn.send_query_prepared(known, sent, formats)).ntuples

    def _answer(self, send: Callable[[], None]) -> PGresult:
        try:
            send()
            while self._pgconn.flush():  # the socket takes no more at once; the server may wait to be read first
                self._wait(True)
                self._pgconn.consume_input()
            answers = list(iter(self._result, None))
        except self._error as error:
            raise ConnectionError(str(error)) from error
        if not answers:
            raise ConnectionError("the connection was lost")
        for answer in answers:
            if answer.status not in self._good:
                raise self._failure(answer)
        return answers[-1]

    def _result(self) -> PGresult | None:
        pgconn = self._pgconn
        while pgconn.is_busy():
            self._wait(False)
            pgconn.consume_input()
        return pgconn.get_result()

    def _failure(self, answer: PGresult) -> Exception:
        """The server's error as one of asyncpg; without a SQLSTATE, the connection broke."""
        message, state = answer.error_message.decode(errors="replace").strip(), answer.error_field(self._sqlstate)
        if state is None:
            return ConnectionError(message)
        return asyncpg.PostgresError.new({"C": state.decode(), "M": message})


# Sent with their length: as C's text they would end at a NUL, which only the server may refuse.
_WHOLE = (str, bytes)


def _encoded(value: Value) -> bytes | None:
    if isinstance(value, str):
        return str.encode(value)
    if isinstance(value, int):
        return b"%d" % value
    return value.isoformat().encode() if isinstance(value, datetime) else value


def _waiting(descriptor: int) -> Callable[[bool], object]:
    """Return a function that waits until a socket can be read or (True) written, at most LONGEST_WAIT."""
    if not hasattr(select, "poll"):
        return lambda writes: select.select([descriptor], [descriptor] if writes else [], [], LONGEST_WAIT / 1000)
    reads, both = select.poll(), select.poll()
    reads.register(descriptor, select.POLLIN)
    both.register(descriptor, select.POLLIN | select.POLLOUT)
    return lambda writes: (both if writes else reads).poll(LONGEST_WAIT)
