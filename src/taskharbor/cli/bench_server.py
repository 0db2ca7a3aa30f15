"""The PostgreSQL store of `taskharbor bench`: a schema of its own, dropped at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from secrets import token_hex
from statistics import fmean
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from taskharbor.core.urls import with_options
from taskharbor.driver import OwnTransaction, Within, capability
from taskharbor.errors import ConfigError, DriverError, DriverUnavailable, HarborError, SchemaMismatch
from taskharbor.harbor import Harbor
from taskharbor.worker.transaction import to_its_end

PREFIX = "taskharbor_bench_"
PATIENCE = 30.0
MOST_COMMITS = 200
FORBIDDEN = "42501"


@asynccontextmanager
async def own_schema(url: str) -> AsyncGenerator[Harbor]:
    """A harbor in a new schema of the database that the URL names; the schema is dropped at the end."""
    schema = f"{PREFIX}{token_hex(6)}"
    harbor = Harbor(with_options(url, namespace=schema, migrate=None), store_timeout=PATIENCE)
    try:
        await to_its_end(harbor.amigrate())
    except ConfigError as error:
        if getattr(error.__cause__, "sqlstate", None) != FORBIDDEN:
            raise
        raise ConfigError(
            "bench creates a schema of its own and drops it again, and this user may not create one "
            f"({error.__cause__}): name a user in the URL who may (GRANT CREATE ON DATABASE … TO …)"
        ) from error
    except asyncio.CancelledError:
        await to_its_end(_drop(harbor, schema))
        raise
    try:
        async with _transaction(harbor) as tx:
            await _handle(tx).execute(f"CREATE TABLE {schema}.commits (n integer)")
            await tx.commit()
        yield harbor
    finally:
        await to_its_end(_drop(harbor, schema))


async def _drop(harbor: Harbor, schema: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            async with _transaction(harbor) as tx:
                await _handle(tx).execute(f"DROP SCHEMA {schema} CASCADE")
                await tx.commit()
            await harbor.aclose()
    except SchemaMismatch:  # it was not created
        return
    except (HarborError, TimeoutError) as error:
        raise DriverUnavailable(
            f"bench could not remove its schema ({str(error) or 'no answer'}): DROP SCHEMA {schema} CASCADE does"
        ) from error


@asynccontextmanager
async def _transaction(harbor: Harbor) -> AsyncGenerator[OwnTransaction]:
    """A transaction on the driver's connection, with its errors translated to TaskHarbor's."""
    driver = capability(await harbor.adriver(), Within)
    try:
        async with driver.transaction() as tx:
            yield tx
    except (HarborError, TimeoutError):
        raise
    except Exception as error:
        raise DriverError(f"{type(error).__name__}: {error}") from error


def _handle(tx: OwnTransaction) -> Any:
    return tx.handle


async def commit_durability(harbor: Harbor) -> str:
    """The durability of a commit: `synchronous_commit`, or `fsync=off`, which overrides it."""
    async with _transaction(harbor) as tx:
        fsync, synchronous = await _handle(tx).fetchrow(
            "SELECT current_setting('fsync'), current_setting('synchronous_commit')"
        )
    return "fsync=off" if fsync == "off" else str(synchronous)


async def commit_ms(harbor: Harbor, seconds: float) -> float:
    """Measure a commit of one row, round trip included: the mean of several tries."""
    schema = dict(parse_qsl(urlsplit(harbor.url).query))["namespace"]
    taken: list[float] = []
    give_up = time.perf_counter() + seconds
    while not taken or (len(taken) < MOST_COMMITS and time.perf_counter() < give_up):
        async with _transaction(harbor) as tx:
            await _handle(tx).execute(f"INSERT INTO {schema}.commits VALUES (1)")  # noqa: S608
            begun = time.perf_counter()
            await tx.commit()
            taken.append((time.perf_counter() - begun) * 1000)
    return fmean(taken)
