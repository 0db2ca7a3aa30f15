"""The process that is killed at every system call: it enqueues, claims, fails, retries, settles and closes the store.

`python -m torture.victim`, settings in the environment like every process of the system tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from system.app import Settings, opened
from taskharbor import Harbor
from taskharbor.errors import DriverUnavailable, HarborError
from torture.ground import tell

LEASE = 0.3


async def attempt(act: Awaitable[object]) -> None:
    """A store that fails is reported and does not end the process."""
    try:
        await act
    except DriverUnavailable as error:
        tell(f"unavailable: {error}")


async def live(harbor: Harbor) -> None:
    """A short life with every verb in it."""
    for number in range(2):
        await attempt(harbor.aenqueue_many([harbor.step("quick", {"number": number})]))
    group = [harbor.step("flaky", {"failures": 1}), harbor.step("mother", {"children": 2}), harbor.step("snoozer", {})]
    await attempt(harbor.aenqueue_many(group))
    await attempt(
        harbor.aenqueue_many([harbor.step("quick", {"number": 9}, idempotency_key="one", idempotency_ttl=None)])
    )
    await attempt(harbor.adrain(lease=LEASE, concurrency=4))
    await attempt(harbor.aenqueue_many([harbor.step("bulky", {"cargo": "x" * 20_000})]))
    await attempt(harbor.adrain(lease=LEASE, concurrency=4))


def main() -> None:
    """Open, live, close."""
    try:
        harbor = asyncio.run(opened(Settings.given()))
    except HarborError as error:
        tell(f"not opened: {error}")
        return
    asyncio.run(live(harbor))
    harbor.close()
    tell("survived")


if __name__ == "__main__":
    main()
