"""The caller's own transactions: handles of other libraries, and how statements run through them.

A handle is recognised by the module of its class, so that no library is imported that the caller does not use. Errors
of that library pass through, because the caller handles them; refusals are ours. Everything runs in a savepoint, so
that no error here ends the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, cast

import asyncpg
from msgspec import Struct

from taskharbor.core.lease import Verdict
from taskharbor.core.transition import Transition
from taskharbor.driver import Group, GroupResult
from taskharbor.drivers.postgres import enqueue, settle
from taskharbor.drivers.postgres.db import Connection, Db, JoinedDb
from taskharbor.drivers.postgres.failure import Moved
from taskharbor.drivers.postgres.psycopg_db import INSTALL, AsyncPsycopgDb, BlockingPsycopgDb, has_psycopg
from taskharbor.drivers.postgres.sql import statements
from taskharbor.drivers.postgres.steps import TRIES
from taskharbor.errors import InvalidJob, MissingExtra

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy.ext.asyncio import AsyncConnection

ACCEPTED = (
    "an asyncpg connection, a psycopg 3 Connection or AsyncConnection, or a SQLAlchemy 2 Session, AsyncSession, "
    "Connection or AsyncConnection over one of these"
)

# What asyncpg and psycopg both call a deadlock.
DEADLOCK = "40P01"


class Location(Struct, frozen=True):
    """Where the store is, and the channel to notify of new jobs."""

    database: str
    schema: str
    channel: str

    @property
    def sql(self) -> Mapping[str, str]:
        """The statements of the store."""
        return statements(self.schema)


class OpenTransaction(Protocol):
    """A transaction that verbs run in; `db` returns its connection, ready for use."""

    @property
    def location(self) -> Location: ...
    async def db(self) -> Db: ...


async def enqueue_in(tx: OpenTransaction, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
    """Store groups if the transaction commits, which then notifies the workers."""
    db = await tx.db()
    async with db.transaction():
        return await enqueue.enqueue(db, groups, now, tx.location.channel)


async def settle_in(tx: OpenTransaction, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
    """Write outcomes if the transaction commits.

    After a conflict it is tried again: going back to the savepoint has released the locks on jobs.
    """
    db = await tx.db()
    for _ in range(TRIES - 1):
        try:
            return await _settle(db, tx.location.channel, transitions, now)
        except Exception as error:
            if not isinstance(error, Moved) and getattr(error, "sqlstate", None) != DEADLOCK:
                raise
    return await _settle(db, tx.location.channel, transitions, now)


async def _settle(db: Db, channel: str, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
    stirred: list[bool] = []
    async with db.transaction():
        verdicts = await settle.settle(db, transitions, now, lambda: stirred.append(True))
        if stirred:
            await db.rows("notify", channel)
        return verdicts


class JoinedTransaction:
    """The caller's transaction."""

    def __init__(self, handle: object, location: Location, kind: HandleKind) -> None:
        self.handle = handle
        self.location = location
        self.blocks = kind.blocks
        self._open = kind.open

    async def db(self) -> Db:
        """The connection below the handle: in a transaction, and to the store's database."""
        db = await self._open(self.handle, self.location)
        ((database, is_here),) = await db.rows("location", self.location.schema)
        if database != self.location.database:
            raise InvalidJob(
                f"tx= leads to the database {database!r}, the jobs are in {self.location.database!r}, and no "
                "transaction spans both: use a connection to that one"
            )
        if not is_here:
            raise InvalidJob(
                f"tx= leads to a server whose database {database!r} has no schema {self.location.schema!r}: use a "
                "connection to the server that the harbor's URL names"
            )
        return db

    async def enqueue(self, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
        return await enqueue_in(self, groups, now)

    async def settle(self, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
        return await settle_in(self, transitions, now)


class HandleKind(Struct, frozen=True):
    """How statements run through handles of one kind."""

    blocks: bool
    open: Callable[[Any, Location], Awaitable[Db]]


def joined(handle: object, location: Location) -> JoinedTransaction:
    """The transaction of a handle; `InvalidJob` names why it cannot be joined."""
    origins = {base.__module__.partition(".")[0] for base in type(handle).__mro__}
    kind: HandleKind | None = None
    if "asyncpg" in origins:
        kind = HandleKind(False, _asyncpg) if hasattr(handle, "is_in_transaction") else None
    elif "psycopg" in origins:
        kind = _psycopg_kind(handle)
    elif "sqlalchemy" in origins:
        kind = _sqlalchemy_kind(handle)
    if kind is None:
        raise InvalidJob(
            f"tx={_named(handle)} is not a transaction that can be joined: give {ACCEPTED}{_hint(origins)}"
        )
    return JoinedTransaction(handle, location, kind)


def _named(handle: object) -> str:
    return f"{type(handle).__module__}.{type(handle).__qualname__}"


def _hint(origins: set[str]) -> str:
    if "psycopg2" in origins:
        return f"; psycopg2 is not psycopg 3: {INSTALL}"
    if {"asyncpg", "psycopg_pool"} & origins:
        return "; a pool or a transaction is not its connection: give that"
    if "django" in origins:
        return "; Django has one below its own: give connection.connection inside transaction.atomic()"
    return ""


# asyncpg


async def _asyncpg(handle: Connection, location: Location) -> Db:
    if handle.is_closed():
        raise InvalidJob("tx= is a connection that was closed: open a new one, and enqueue inside its transaction")
    if not handle.is_in_transaction():
        raise InvalidJob("tx= has no open transaction: enqueue inside `async with connection.transaction():`")
    return JoinedDb(handle, location.schema)


# psycopg 3


def _psycopg_kind(handle: object) -> HandleKind | None:
    import psycopg

    if not has_psycopg():
        raise MissingExtra(f"tx= is of psycopg {psycopg.__version__}, 3.2 or newer is needed: {INSTALL}")
    if isinstance(handle, psycopg.AsyncConnection):
        return HandleKind(False, _async_psycopg)
    return HandleKind(True, _blocking_psycopg) if isinstance(handle, psycopg.Connection) else None


async def _async_psycopg(handle: psycopg.AsyncConnection[Any], location: Location) -> Db:
    _check_psycopg(handle, "`async with connection.transaction():`")
    return AsyncPsycopgDb(handle, location.sql)


async def _blocking_psycopg(handle: psycopg.Connection[Any], location: Location) -> Db:
    _check_psycopg(handle, "`with connection.transaction():`, with Django `with transaction.atomic():`")
    return BlockingPsycopgDb(handle, location.sql)


def _check_psycopg(handle: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], block: str) -> None:
    """Without autocommit a transaction begins by itself, with the first statement."""
    from psycopg.pq import PipelineStatus, TransactionStatus

    if handle.pgconn.pipeline_status != PipelineStatus.OFF:
        raise InvalidJob(
            "tx= is in pipeline mode, where answers come too late: enqueue outside of connection.pipeline()"
        )
    if handle.autocommit and handle.info.transaction_status == TransactionStatus.IDLE:
        raise InvalidJob(f"tx= is in autocommit mode and has no open transaction: enqueue inside {block}")


# SQLAlchemy 2, over one of the above


def _sqlalchemy_kind(handle: object) -> HandleKind | None:
    from sqlalchemy import Connection as SyncConnection
    from sqlalchemy.orm import Session, scoped_session

    if isinstance(handle, Session | scoped_session):
        return HandleKind(True, _session)
    if isinstance(handle, SyncConnection):
        return HandleKind(True, _connection)
    try:
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    except ImportError:  # without greenlet there are none
        return None
    if isinstance(handle, AsyncSession | async_scoped_session):
        return HandleKind(False, _async_session)
    return HandleKind(False, _async_connection) if isinstance(handle, AsyncConnection) else None


async def _session(handle: Any, location: Location) -> Db:
    return await _connection(handle.connection(), location)


async def _connection(handle: Any, location: Location) -> Db:
    handle.exec_driver_sql("SELECT 1")  # begins a transaction if there is none
    below = handle.connection.driver_connection
    if not _is_psycopg(below, "Connection"):
        raise _wrong_below(below)
    return await _blocking_psycopg(cast("psycopg.Connection[Any]", below), location)


async def _async_session(handle: Any, location: Location) -> Db:
    return await _async_connection(await handle.connection(), location)


async def _async_connection(handle: AsyncConnection, location: Location) -> Db:
    await handle.exec_driver_sql("SELECT 1")  # with asyncpg, SQLAlchemy begins no sooner
    below: object = (await handle.get_raw_connection()).driver_connection
    if isinstance(below, asyncpg.Connection):
        return await _asyncpg(cast(Connection, below), location)
    if not _is_psycopg(below, "AsyncConnection"):
        raise _wrong_below(below)
    return await _async_psycopg(cast("psycopg.AsyncConnection[Any]", below), location)


def _is_psycopg(below: object, name: str) -> bool:
    return any(base.__module__.partition(".")[0] == "psycopg" and base.__name__ == name for base in type(below).__mro__)


def _wrong_below(below: object) -> InvalidJob:
    if isinstance(below, asyncpg.Connection) or _is_psycopg(below, "AsyncConnection"):
        return InvalidJob("tx= is the blocking face of an asynchronous session: give the AsyncSession to aenqueue")
    return InvalidJob(
        f"tx= is SQLAlchemy over {_named(below)}, which cannot be joined: make the engine with "
        "postgresql+psycopg:// or postgresql+asyncpg://"
    )
