"""PostgreSQL's errors in our words, each with what to do about it."""

from __future__ import annotations

import ssl

import asyncpg

from taskharbor.drivers.postgres.db import Connection
from taskharbor.drivers.postgres.login import Login
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
# Two transactions met crosswise: one of them has to be done again.
CROSSED: tuple[type[Exception], ...] = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
# X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH
OTHER_NAMES = (62, 64)


def is_harmless(error: BaseException, connection: Connection) -> bool:
    """Whether the connection is certain to be as before: the server has refused something, and says so itself."""
    return (
        isinstance(error, asyncpg.PostgresError | HarborError)
        and not isinstance(error, AWAY)
        and not connection.is_closed()
        and not connection.is_in_transaction()
    )


def failure(error: Exception, login: Login, *, asked: bool = False) -> Exception:
    """An error of asyncpg in our words; others as they are. `asked` is whether the server had been told what to do."""
    where = login.where
    if isinstance(error, HarborError):
        return error
    if (unsafe := _unsafe(error, login)) is not None:
        return unsafe
    if isinstance(error, REFUSED):
        return ConfigError(f"{where} does not let us in: check user, password and database in the URL ({error})")
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
    """The server is not there, or does not answer."""
    unknown = "; the operation may still take effect" if asked else ""
    reason = str(error) or type(error).__name__
    return DriverUnavailable(f"{login.where} does not answer{unknown}: is it running and reachable? ({reason})")


def _unsafe(error: Exception, login: Login) -> ConfigError | None:
    """A line that is not as safe as the URL wants it, and how to make it so."""
    where = login.where
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in OTHER_NAMES:
            return ConfigError(
                f"{where} shows a certificate for another name ({error.verify_message}): write the host as the "
                "certificate names it, or add sslmode=verify-ca to the URL"
            )
        return ConfigError(
            f"{where} shows a certificate that nobody we trust has signed ({error.verify_message}): name its authority "
            "with sslrootcert=/path/to/ca.pem in the URL, or go unchecked with sslmode=require"
        )
    if isinstance(error, ConnectionError) and "rejected SSL upgrade" in str(error):
        return ConfigError(f"{where} offers no TLS: set ssl=on there, or add sslmode=disable to the URL")
    return None
