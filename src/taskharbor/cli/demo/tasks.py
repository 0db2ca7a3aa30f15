"""The tasks of the demo: an application of TaskHarbor in one screen.

`taskharbor worker taskharbor.cli.demo.tasks:harbor` would run them, as it would run yours.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from datetime import UTC, datetime
from typing import Any

from taskharbor import Harbor, Retry, current

harbor = Harbor()  # the store comes from TASKHARBOR_URL here; the default is ./taskharbor.db


@harbor.task
async def greet(name: str) -> str:
    """A quick one. `greet.enqueue("Ada")` stores a job; `await greet("Ada")` stays a plain call."""
    await asyncio.sleep(0.02)
    return f"Ahoy, {name}!"


@harbor.task(timeout=30)
def render(page: int) -> int:
    """A slow one, in blocking code: a `def` runs in a thread, and its heartbeats continue."""
    for step in range(1, 9):
        time.sleep(0.1)
        current().progress(step / 8, f"page {page}")
    return page


@harbor.task(max_attempts=5, retry=Retry(base=0.4, cap=1))
async def fetch(url: str, failures: int) -> str:
    """A flaky one: fails as often as requested, then works. Retries wait for a random time below a growing limit."""
    await asyncio.sleep(0.02)
    if current().attempt <= failures:
        raise ConnectionError(f"{url} does not answer")
    return f"the page at {url}"


@harbor.task(max_attempts=3, retry=Retry.fixed(0.2))
async def parse(document: str) -> Any:
    """Poison, if the document is not JSON: fails every time and ends in the dead-letter queue."""
    return json.loads(document)


@harbor.task
async def remind(who: str) -> datetime:
    """Scheduled, by `remind.using(delay=3)`; returns when it ran."""
    return datetime.now(UTC)


@harbor.task(queue="express")
async def deliver(parcel: str) -> int:
    """Prioritised, by `deliver.using(priority=10)`; returns when it began."""
    began = time.monotonic_ns()
    await asyncio.sleep(0.02)
    return began


@harbor.task
async def charge(invoice: str, cents: int) -> str:
    """Must not be stored twice: enqueued with an idempotency key."""
    await asyncio.sleep(0.02)
    return f"{invoice}: {cents / 100:.2f} paid"


@harbor.task
async def weigh(crate: int) -> int:
    """One member of a chord: `chord(group(weigh.step(crate) for crate in hold), total)`."""
    await asyncio.sleep(0.02)
    return 100 + crate


@harbor.task
async def total(weights: list[int]) -> int:
    """Its last step: runs once, when every crate is weighed, and receives all results in order."""
    return sum(weights)


@harbor.recurring(every=1, catch_up="all", overlap="allow")
async def bell() -> int:
    """Rings every second while any worker lives: each checks what is due, and one stores the job. No leader."""
    return os.getpid()


@harbor.task(queue="voyages")
async def sail(to: str, legs: int) -> dict[str, int]:
    """The long one, whose worker is killed. The lease version lets outside systems reject an older run."""
    job = current()
    for leg in range(1, legs + 1):
        await asyncio.sleep(0.25)
        job.progress(leg / legs, f"leg {leg} to {to}")
    return {"pid": os.getpid(), "lease_version": job.lease_version}
