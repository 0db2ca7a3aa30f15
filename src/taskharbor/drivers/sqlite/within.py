"""The caller's own transaction on the same file, through apsw.

The standard library's sqlite3 is another copy of SQLite: two copies on one file in one process cancel each other's
locks and lose committed data, so its handles are refused. Workers notice the commit as any other: they watch the file.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import apsw

from taskharbor.core.lease import Verdict
from taskharbor.core.transition import Transition
from taskharbor.driver import Group, GroupResult
from taskharbor.drivers.sqlite import enqueue, settle
from taskharbor.drivers.sqlite.files import Identity, identity_or_none
from taskharbor.errors import InvalidJob

STANDARD_LIBRARY = ("sqlite3", "aiosqlite", "sqlalchemy")


class JoinedConnection:
    """A transaction of the caller's. Its coroutines never wait: SQLite blocks."""

    blocks = True

    def __init__(self, handle: apsw.Connection) -> None:
        self.handle = handle

    async def enqueue(self, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
        with _savepoint(self.handle):
            return enqueue.enqueue(self.handle, groups, now)

    async def settle(self, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
        with _savepoint(self.handle):
            return settle.settle(self.handle, transitions, now)


def joined(handle: object, path: Path, file: Identity | None) -> JoinedConnection:
    """The transaction of a handle; `InvalidJob` names why it cannot be joined."""
    if not isinstance(handle, apsw.Connection):
        raise InvalidJob(f"tx={type(handle).__module__}.{type(handle).__qualname__} {_why_not(handle, path)}")
    if not handle.filename or identity_or_none(Path(handle.filename)) != file:
        raise InvalidJob(
            f"tx= is open on {handle.filename or 'no file'!r}, the jobs are in {str(path)!r}: use that file"
        )
    if not handle.in_transaction:
        raise InvalidJob('tx= has no open transaction: enqueue inside `with connection:`, or after "BEGIN IMMEDIATE"')
    return JoinedConnection(handle)


def _why_not(handle: object, path: Path) -> str:
    if {base.__module__.partition(".")[0] for base in type(handle).__mro__}.isdisjoint(STANDARD_LIBRARY):
        return (
            f"is not a transaction that can be joined: the jobs are in the SQLite file {str(path)!r}, so give an "
            "apsw.Connection to that file. For jobs in your own database, set the harbor's URL (TASKHARBOR_URL) to it"
        )
    return (
        "uses the standard library's sqlite3, which is another copy of SQLite than ours: two of them on one file in "
        "one process lose data. Give an apsw.Connection to the file of the jobs"
    )


@contextmanager
def _savepoint(db: apsw.Connection) -> Generator[None]:
    """Run the block all or none, without the traces that the caller may have set on its connection."""
    traces = db.row_trace, db.exec_trace
    db.row_trace = db.exec_trace = None
    db.execute("SAVEPOINT taskharbor")
    try:
        yield
    except BaseException:
        if db.in_transaction:  # some errors end it
            db.execute("ROLLBACK TO taskharbor; RELEASE taskharbor")
        raise
    else:
        db.execute("RELEASE taskharbor")
    finally:
        db.row_trace, db.exec_trace = traces
