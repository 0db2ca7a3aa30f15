"""Runs each verb as one atomic step on one connection: in a transaction, or by statements that commit by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from taskharbor.core.backoff import CONFLICT_BACKOFF
from taskharbor.drivers.postgres.db import Db
from taskharbor.drivers.postgres.failure import is_conflict
from taskharbor.drivers.postgres.pool import Pool
from taskharbor.errors import HarborError

R = TypeVar("R")
DbWork = Callable[[Db], Awaitable[R]]
# Conflicts are rare. On a few jobs that many callers change without pause, every second try may end in one.
TRIES = 20
RNG = Random()


class StepRunner:
    """Runs steps on the connections of a pool, in the slots of callers or (`works`) of workers."""

    def __init__(self, pool: Pool, *, works: bool = False) -> None:
        self._pool = pool
        self._works = works

    async def read(self, step: DbWork[R]) -> R:
        """Run a step that only reads."""
        async with self._pool.connection(works=self._works) as db:
            if self._pool.login.pooled:
                async with db.transaction():
                    return await step(db)
            return await step(db)

    async def write(self, step: DbWork[R], *, whole: bool = True) -> R:
        """Run a step in a transaction, again after a conflict with another one. Without `whole` it needs none."""
        for attempt in range(TRIES):
            try:
                async with self._pool.connection(works=self._works) as db:
                    if not whole and not self._pool.login.pooled:
                        return await step(db)
                    async with db.transaction():
                        return await step(db)
            except HarborError as error:
                if not is_conflict(error) or attempt == TRIES - 1:
                    raise
            await asyncio.sleep(CONFLICT_BACKOFF.delay(attempt + 1, RNG))
        raise AssertionError("unreachable")
