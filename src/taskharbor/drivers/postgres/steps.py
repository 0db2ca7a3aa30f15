"""A verb is a step: one connection for as long as it takes, in a transaction or by statements that are one each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from taskharbor.drivers.postgres.db import Db
from taskharbor.drivers.postgres.failure import CROSSED
from taskharbor.drivers.postgres.pool import Pool
from taskharbor.errors import HarborError

R = TypeVar("R")
Step = Callable[[Db], Awaitable[R]]
TRIES = 5


class Steps:
    """Takes steps on the connections of a pool: those of callers, or those that workers live by."""

    def __init__(self, pool: Pool, *, works: bool = False) -> None:
        self._pool = pool
        self._works = works

    async def read(self, step: Step[R]) -> R:
        """Look at something."""
        async with self._pool.connection(works=self._works) as db:
            if self._pool.login.pooled:
                async with db.transaction():
                    return await step(db)
            return await step(db)

    async def write(self, step: Step[R], *, whole: bool = True) -> R:
        """Do something in a transaction, again if it met another one crosswise. Without `whole` it needs none."""
        for attempt in range(TRIES):
            try:
                async with self._pool.connection(works=self._works) as db:
                    if not whole and not self._pool.login.pooled:
                        return await step(db)
                    async with db.transaction():
                        return await step(db)
            except HarborError as error:
                if not isinstance(error.__cause__, CROSSED) or attempt == TRIES - 1:
                    raise
        raise AssertionError("unreachable")
