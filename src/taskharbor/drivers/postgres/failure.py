"""Translates errors of PostgreSQL into ours, each with the fix."""

from __future__ import annotations

import ssl

import asyncpg

from taskharbor.drivers.postgres.db import Connection
from taskharbor.drivers.postgres.login import Login
from taskharbor.drivers.shared import tls
from taskharbor.errors import ConfigError, DriverError, DriverUnavailable, HarborError, SchemaMismatch

AWAY: tuple[type[BaseException], ...] = (
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InternalClientError,
    asyncpg.InterfaceError,
    asyncpg.PostgresIOError,
    ConnectionError,
    TimeoutError,
    OSError,
)
REFUSED: tuple[type[BaseException], ...] = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidPasswordError,
)
NO_SCHEMA: tuple[type[BaseException], ...] = (
    asyncpg.UndefinedTableError,
    asyncpg.InvalidSchemaNameError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedObjectError,
)
# Two transactions were in conflict: one of them has to be repeated.
CROSSED: tuple[type[Exception], ...] = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


class Moved(DriverError):
    """A job moved between live and ended while a transaction waited to lock it: the transaction has to begin again."""

    def __init__(self) -> None:
        super().__init__("other callers change the same jobs without pause: try again")


def is_conflict(error: BaseException) -> bool:
    """Whether a transaction was in conflict with another one, and has to be repeated."""
    return isinstance(error, Moved) or isinstance(error.__cause__, CROSSED)


def is_harmless(error: BaseException, connection: Connection) -> bool:
    """Whether the connection is certainly usable: the server itself has refused a statement."""
    return (
        isinstance(error, asyncpg.PostgresError | HarborError)
        and not isinstance(error, AWAY)
        and not connection.is_closed()
        and not connection.is_in_transaction()
    )


def failure(error: Exception, login: Login, *, asked: bool = False) -> Exception:
    """Translate an error of asyncpg; return others as they are. `asked`: the server may have received the request."""
    where = login.where
    if isinstance(error, HarborError):
        return error
    if (unsafe := _unsafe(error, login)) is not None:
        return unsafe
    if isinstance(error, REFUSED):
        return ConfigError(f"{where} refuses the login: check user, password and database in the URL ({error})")
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return ConfigError(f"{where}: there is no such database: check its name in the URL, or create it ({error})")
    if isinstance(error, NO_SCHEMA):
        return SchemaMismatch(
            f"{where} has no TaskHarbor schema {login.schema!r} of this version: run `taskharbor migrate` ({error})"
        )
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return ConfigError(f"{where}: {login.user} may not do this: see the roles in docs/postgres.md ({error})")
    if isinstance(error, AWAY):
        return away(error, login, asked=asked)
    if isinstance(error, asyncpg.PostgresError):
        return DriverError(f"{where}: {type(error).__name__}: {error}")
    return error


def away(error: Exception, login: Login, *, asked: bool) -> DriverUnavailable:
    """The error for a server that is gone or does not answer."""
    unknown = "; the operation may still take effect" if asked else ""
    reason = str(error) or type(error).__name__
    return DriverUnavailable(f"{login.where} does not answer{unknown}: is it running and reachable? ({reason})")


def _unsafe(error: Exception, login: Login) -> ConfigError | None:
    """The error for a connection that is less safe than the URL requires, with the fix."""
    where = login.where
    if isinstance(error, ssl.SSLCertVerificationError):
        return tls.unverified(error, where)
    if isinstance(error, ConnectionError) and "rejected SSL upgrade" in str(error):
        return ConfigError(f"{where} offers no TLS: set ssl=on there, or add sslmode=disable to the URL")
    return None
