"""One batch of requests in one transaction, so that concurrent calls share a commit.

After an unexpected error everything is rolled back and each request runs again in a transaction of its own, so that
only the one at fault fails. Refusals of the contract are values and raise nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from apsw import Connection
from msgspec import Struct, field

from taskharbor.drivers.sqlite.connection import concerns_all, failure
from taskharbor.drivers.wakeup import Wakeup

Work = Callable[[Connection], Any]

# A request's result, or the error that its caller gets.
RequestResult = tuple[Any, BaseException | None]


class Request(Struct, eq=False, kw_only=True):
    """Work for the connection. A `single` one is one statement, which commits by itself.

    `peek` answers a writing request without the write lock, or returns None if it needs the lock. After the commit the
    waiters of `wakes` are woken.
    """

    work: Work
    writes: bool = False
    single: bool = False
    peek: Work | None = None
    wakes: Sequence[Wakeup] = ()

    @property
    def abandoned(self) -> bool:
        """Whether the caller no longer waits: it was cancelled before its turn came."""
        raise NotImplementedError


class Awaited(Request, eq=False, kw_only=True):
    """A request whose answer is awaited in an event loop."""

    future: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def abandoned(self) -> bool:
        return self.future.cancelled()


def run(db: Connection, path: Path, requests: Sequence[Request]) -> list[RequestResult]:
    """Run requests in order, in as few transactions as possible."""
    try:
        if len(requests) == 1 and (one := requests[0]).single and not one.abandoned:
            return [(one.work(db), None)]
        return [(result, None) for result in _together(db, requests)]
    except BaseException as error:
        # No call comes before this one, so that no interrupt does. SQLite ends the transaction by itself after some
        # errors, such as a full disk.
        if db.in_transaction:
            db.execute("ROLLBACK")
        if not isinstance(error, Exception):
            raise
        if len(requests) == 1 or concerns_all(error):
            return [(None, failure(error, path)) for _ in requests]
        return [run(db, path, [request])[0] for request in requests]


def _together(db: Connection, requests: Sequence[Request]) -> list[Any]:
    if all(not it.writes or it.peek is not None for it in requests):
        answers = _read(db, requests)
        if answers is not None:
            return answers
    db.execute("BEGIN IMMEDIATE")
    answers = [None if it.abandoned else it.work(db) for it in requests]
    db.execute("COMMIT")
    return answers


def _read(db: Connection, requests: Sequence[Request]) -> list[Any] | None:
    """The answers from one snapshot, or None if a request needs the write lock."""
    answers: list[Any] = []
    db.execute("BEGIN")
    for it in requests:
        answer = (it.peek or it.work)(db)
        if answer is None and it.peek is not None:
            db.execute("COMMIT")
            return None
        answers.append(answer)
    db.execute("COMMIT")
    return answers
