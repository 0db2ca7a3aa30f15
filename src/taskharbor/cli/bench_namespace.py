"""The Redis or NATS store of `taskharbor bench`: a namespace of its own, which is removed at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from secrets import token_hex
from statistics import fmean

from taskharbor.core.urls import with_options
from taskharbor.driver import Erases, ServerClock, capability
from taskharbor.errors import DriverUnavailable, HarborError
from taskharbor.harbor import Harbor
from taskharbor.worker.transaction import to_its_end

SCHEMES = {"nats": "nats", "redis": "redis", "rediss": "redis", "tls": "nats", "unix": "redis", "valkey": "redis"}
PREFIX = "taskharbor_bench_"
PATIENCE = 30.0
MOST_TRIPS = 200


@asynccontextmanager
async def own_namespace(url: str) -> AsyncGenerator[Harbor]:
    """A harbor in a new namespace of the server that the URL names."""
    namespace = f"{PREFIX}{token_hex(6)}"
    harbor = Harbor(with_options(url, namespace=namespace), store_timeout=PATIENCE)
    await harbor.adriver()  # raises if there is no server, before there is anything to remove
    try:
        yield harbor
    finally:
        await to_its_end(_erase(harbor, namespace))


async def _erase(harbor: Harbor, namespace: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            await capability(await harbor.adriver(), Erases).erase()
            await harbor.aclose()
    except (HarborError, TimeoutError) as error:
        raise DriverUnavailable(
            f"bench could not remove its keys or streams ({str(error) or 'no answer'}): they begin with {namespace}"
        ) from error


async def may_lose(harbor: Harbor) -> list[str]:
    """The settings of the server that may lose jobs, in words."""
    settings = await harbor.admin.adurability() or []
    return [f"{it.name} {it.value or 'unknown'}: {it.message}" for it in settings if it.level != "fine"]


async def round_trip_ms(harbor: Harbor, seconds: float) -> float:
    """Measure a request that does nothing: the mean of several tries."""
    clock = capability(await harbor.adriver(), ServerClock)
    taken: list[float] = []
    give_up = time.perf_counter() + seconds
    while not taken or (len(taken) < MOST_TRIPS and time.perf_counter() < give_up):
        begun = time.perf_counter()
        await clock.server_now()
        taken.append((time.perf_counter() - begun) * 1000)
    return fmean(taken)
