"""A driver that tidies before every verb, and whose pages are small: what has ended is never in LINE for long."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest import mock

from taskharbor.drivers import parse
from taskharbor.drivers.nats import commit, enqueue
from taskharbor.drivers.nats.driver import NatsDriver
from taskharbor.drivers.nats.line import ALL
from taskharbor.testing.kit import Harness

SMALL = 2
VERBS: tuple[str, ...] = (
    "enqueue",
    "reserve",
    "extend_lease",
    "settle",
    "get",
    "find_key",
    "query",
    "counts",
    "dead_groups",
    "cancel",
)
VERBS += ("dead_letter", "delete", "replay", "reschedule", "pause", "sweep", "prune", "parents", "workflows")
VERBS += ("free_workflow_key", "next_due", "schedules", "swap_schedules", "tallies", "forget_tallies")


class HandDriver(NatsDriver):
    """Tidies when it is asked to."""

    async def tidy(self) -> None:
        """Do as a worker does from time to time: move ended pages out of LINE."""
        self._server.check()
        await self._watch.barrier()
        with mock.patch.object(self._watch, "rank", return_value=ALL):
            await self._upkeep.tidy(asyncio.get_running_loop().time())


class TidyDriver(HandDriver):
    """Moves every ended page out of LINE before each verb."""


def _tidying(verb: Any) -> Any:
    @wraps(verb)
    async def tidied(driver: TidyDriver, *args: Any, **kwargs: Any) -> Any:
        await driver.tidy()
        return await verb(driver, *args, **kwargs)

    return tidied


for name in VERBS:
    setattr(TidyDriver, name, _tidying(getattr(NatsDriver, name)))


def harness(url: str) -> Harness:
    """Opens such drivers."""

    async def opened() -> NatsDriver:
        return await TidyDriver.open(*parse(url))

    return Harness(open=opened)


@contextmanager
def small_pages() -> Generator[None]:
    """Have a page list two jobs at most, and a card two edges."""
    with (
        mock.patch.object(enqueue, "PAGE", SMALL),
        mock.patch.object(commit, "PAGE", SMALL),
        mock.patch.object(commit, "EDGES", SMALL),
    ):
        yield
