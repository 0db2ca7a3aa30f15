"""The schema: created and migrated by numbered scripts, each run once, even if several processes migrate at a time.

Every script runs in a transaction under an advisory lock, and gives up if it cannot get its table locks at once: every
statement behind a waiting ALTER TABLE waits too, and that would be every worker. `version` has a row for each script
that was run. A program refuses an older schema, and a newer one only if a script is marked as breaking.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import asyncpg

from taskharbor.driver import Migration
from taskharbor.drivers.postgres.db import Connection
from taskharbor.drivers.postgres.login import Login
from taskharbor.drivers.postgres.sql import SchemaScript, migrations, quoted, statements
from taskharbor.errors import ConfigError, DriverUnavailable, SchemaMismatch

OLDEST_SERVER = 14
# A script blocks others for one second at most, lets them continue for two, and tries again.
LOCKS_WITHIN, PAUSE, TRIES = "1s", 2.0, 30
TURN_WITHIN, TURN_POLL = 300.0, 0.1
IN_THE_WAY: tuple[type[Exception], ...] = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)
SOMETHING_ELSE: tuple[type[Exception], ...] = (
    asyncpg.DuplicateTableError,
    asyncpg.DuplicateObjectError,
    asyncpg.UndefinedColumnError,
)
# From the tables of the catalog: functions such as to_regclass may answer from a stale cache.
TABLES = """
SELECT
    EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1),
    EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'version')
"""
Tell = Callable[[str], object]


class Found(NamedTuple):
    """The schema as found; version 0 means none. `works_with` is the oldest program that may use it."""

    version: int
    works_with: int
    has_schema: bool


async def look(connection: Connection, login: Login) -> Found:
    """Read the version of the schema."""
    _check_server(connection, login)
    has_schema, has_version = await connection.fetchrow(TABLES, login.schema) or (False, False)
    row = await connection.fetchrow(statements(login.schema)["version"]) if has_version else None
    if row is None:
        return Found(0, 0, has_schema)
    return Found(row[0], row[0] if row[1] is None else row[1], True)


def missing(found: Found, login: Login) -> list[SchemaScript]:
    """The scripts that lead from the schema as found to the newest one."""
    scripts = migrations(login.schema)
    if found.works_with > len(scripts):
        raise SchemaMismatch(
            f"{login.where}: schema {login.schema!r} was made by a newer TaskHarbor "
            f"(version {found.version}, this one knows {len(scripts)}): upgrade taskharbor"
        )
    return scripts[found.version :]


async def check(connection: Connection, login: Login) -> None:
    """Refuse a schema that this version cannot work with; in a transaction."""
    found = await look(connection, login)
    if missing(found, login):
        state = "is missing" if found.version == 0 else f"is of version {found.version}, older than this TaskHarbor"
        raise SchemaMismatch(
            f"{login.where}: schema {login.schema!r} {state}: run `taskharbor migrate` with the same URL"
        )


def _check_server(connection: Connection, login: Login) -> None:
    if connection.get_server_version().major < OLDEST_SERVER:
        raise ConfigError(f"{login.where} is too old: TaskHarbor needs PostgreSQL {OLDEST_SERVER} or newer")
    encoding = getattr(connection.get_settings(), "server_encoding", "UTF8")
    if encoding != "UTF8":
        raise ConfigError(f"{login.where} is in {encoding}: TaskHarbor needs a database with ENCODING 'UTF8'")


async def plan(login: Login) -> Migration:
    """Plan what `migrate` would do; changes nothing."""
    async with _connected(login) as connection:
        async with connection.transaction(readonly=True):
            found = await look(connection, login)
        return _migration(login, found, missing(found, login))


@asynccontextmanager
async def _connected(login: Login) -> AsyncGenerator[Connection]:
    connection = await login.connect()
    try:
        yield connection
    finally:
        await connection.close(timeout=5)


async def migrate(login: Login, tell: Tell = lambda _: None) -> Migration:
    """Bring the schema up to date, and return what was done. Other processes wait meanwhile, and find it done."""
    async with _connected(login) as connection:
        try:
            async with connection.transaction(readonly=True):
                found = await look(connection, login)
            done: list[SchemaScript] = []
            while (script := await _next_script(connection, login, tell)) is not None:
                tell(script.name)
                done.append(script)
            return _migration(login, found, done)
        except asyncpg.InsufficientPrivilegeError as error:
            raise ConfigError(
                f"{login.where}: this user may not make or change schema {login.schema!r} ({error}): migrate as its "
                "owner, or give the output of `taskharbor migrate --sql` to its owner"
            ) from error
        except SOMETHING_ELSE as error:
            raise ConfigError(
                f"{login.where}: schema {login.schema!r} has tables of another program ({error}): use another namespace"
            ) from error


def _migration(login: Login, found: Found, scripts: list[SchemaScript]) -> Migration:
    return Migration(
        what=f"schema {login.schema}",
        version=max([found.version, *(script.number for script in scripts)]),
        steps=tuple(script.name for script in scripts),
        sql=_whole(login.schema, found, scripts),
    )


async def _next_script(connection: Connection, login: Login, tell: Tell) -> SchemaScript | None:
    """Run one script; None if there is nothing left to do."""
    for _ in range(TRIES):
        try:
            return await _try_script(connection, login)
        except IN_THE_WAY:
            tell("another transaction holds a lock on our tables: trying again")
        await asyncio.sleep(PAUSE)
    raise DriverUnavailable(
        f"{login.where}: the tables of schema {login.schema!r} are locked by long transactions (see pg_locks): nothing "
        "was left half done, try again later"
    )


async def _try_script(connection: Connection, login: Login) -> SchemaScript | None:
    async with _turn(connection, login):
        found = await look(connection, login)
        script = next(iter(missing(found, login)), None)
        if script is not None:
            await connection.execute(f"SET LOCAL lock_timeout = '{LOCKS_WITHIN}'")
            if script.alone:
                await _run_alone(login, script)
            else:
                await connection.execute(_opening(login.schema, script, found) + script.text)
            await connection.execute(_record(login.schema, script))
        return script


@asynccontextmanager
async def _turn(connection: Connection, login: Login) -> AsyncGenerator[None]:
    """A transaction in which no other process migrates. The lock is polled, not waited for, because CREATE INDEX
    CONCURRENTLY itself waits for every running statement."""
    give_up = asyncio.get_running_loop().time() + TURN_WITHIN
    while asyncio.get_running_loop().time() < give_up:
        async with connection.transaction():
            if await connection.fetchval(f"SELECT pg_try_advisory_xact_lock({_key(login.schema)})"):
                yield
                return
        await asyncio.sleep(TURN_POLL)
    raise DriverUnavailable(
        f"{login.where}: another `taskharbor migrate` has been at schema {login.schema!r} for {TURN_WITHIN:g} s"
    )


async def _run_alone(login: Login, script: SchemaScript) -> None:
    """Run statements outside a transaction, on a connection of their own; the other one holds the lock."""
    async with _connected(login) as connection:
        for statement in script_statements(script):
            await connection.execute(statement)


def script_statements(script: SchemaScript) -> list[str]:
    """The statements of a script: in our files, each ends at the end of a line."""
    return [part.strip() for part in re.split(r";[ \t]*(?:\n|$)", script.text) if part.strip()]


def _key(schema: str) -> str:
    """The number of the lock."""
    return "hashtextextended('" + f"taskharbor {schema}".replace("'", "''") + "', 0)"


def _opening(schema: str, script: SchemaScript, found: Found) -> str:
    """The statements before the first script. The schema may exist: its owner need not be allowed to create one."""
    if script.number > 1:
        return ""
    name = quoted(schema)
    make = "" if found.has_schema else f"CREATE SCHEMA {name};\n"
    return f"{make}CREATE TABLE {name}.version (number integer PRIMARY KEY, works_with integer);\n"


def _record(schema: str, script: SchemaScript) -> str:
    known = migrations(schema)[: script.number]
    works_with = max((it.number for it in known if it.breaking), default=1)
    values = f"({script.number}, {works_with})"
    return f"INSERT INTO {quoted(schema)}.version (number, works_with) VALUES {values};\n"  # noqa: S608


def _whole(schema: str, found: Found, scripts: list[SchemaScript]) -> str:
    """All as one script for psql; empty if there is nothing to do."""
    if not scripts:
        return ""
    head = (
        f"-- TaskHarbor: {quoted(schema)} from version {found.version} to {scripts[-1].number}.\n"
        "-- Run it as the owner of the schema: psql -v ON_ERROR_STOP=1 -f FILE\n"
    )
    return head + "".join(_as_text(schema, script, found) for script in scripts)


def _as_text(schema: str, script: SchemaScript, found: Found) -> str:
    opening, record = _opening(schema, script, found), _record(schema, script)
    if script.alone:
        return f"\n-- {script.name}: not in a transaction\n{script.text.strip()}\n{record}"
    return (
        f"\n-- {script.name}\nBEGIN;\nSET LOCAL lock_timeout = '{LOCKS_WITHIN}';\n"
        f"SELECT pg_advisory_xact_lock({_key(schema)});\n"
        f"{opening}{script.text.strip()}\n{record}COMMIT;\n"
    )
