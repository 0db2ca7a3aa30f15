"""A client in a process of its own: says `ready`, waits for a line, enqueues what it was given, prints the results.

`python -m system.submit ORDER`, a JSON object: `each` are the jobs of one round as [task, arguments, options], and
`members` how many a chord beside them has; `rounds` how often (null: until SIGTERM), `beside` how many at a time from
one event loop, `threads` how many blocking threads.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from taskharbor import Flow, Harbor, chord, group
from taskharbor.errors import DriverUnavailable
from taskharbor.workflows.step import Step

from .app import Settings, Watched, opened

ENOUGH = threading.Event()


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The order of a client. `pause` is the time between rounds; `insists` repeats until the store takes it."""

    each: list[tuple[str, dict[str, Any], dict[str, Any]]]
    rounds: int | None = 1
    beside: int = 1
    threads: int = 0
    pause: float = 0.0
    members: int = 0
    insists: bool = False


def main(order: Order) -> None:
    """Act and report: one line of JSON with [id, created] for every job that the store has acknowledged."""
    harbor = asyncio.run(opened(Settings.given()))
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    signal.signal(signal.SIGTERM, lambda *_: ENOUGH.set())
    with ThreadPoolExecutor(max(order.threads, 1)) as pool:
        blocking = [pool.submit(_blocking, harbor, order) for _ in range(order.threads)]
        got = asyncio.run(_beside(harbor, order))
        for each in blocking:
            got += each.result()
    harbor.close()
    print(json.dumps(got), flush=True)


async def _beside(harbor: Watched, order: Order) -> list[tuple[str, bool]]:
    lists = await asyncio.gather(*(_one_after_another(harbor, order) for _ in range(order.beside)))
    return [made for each in lists for made in each]


async def _one_after_another(harbor: Watched, order: Order) -> list[tuple[str, bool]]:
    got: list[tuple[str, bool]] = []
    rounds = 0
    while not ENOUGH.is_set() and (order.rounds is None or rounds < order.rounds):
        try:
            got += [(job.id, job.created) for job in await harbor.aenqueue_many(_steps(harbor, order))]
            if order.members:
                run = await _chord(harbor, order.members).aenqueue()
                got.append((run.id, run.created))
            rounds += 1
        except DriverUnavailable as error:
            print(f"refused: {error}", flush=True)
            if not order.insists:
                break
        await asyncio.sleep(order.pause)
    return got


def _blocking(harbor: Harbor, order: Order) -> list[tuple[str, bool]]:
    got: list[tuple[str, bool]] = []
    for _ in range(order.rounds or 0):
        got += [(job.id, job.created) for job in harbor.enqueue_many(_steps(harbor, order))]
        time.sleep(order.pause)
    return got


def _chord(harbor: Watched, members: int) -> Flow[Any]:
    return chord(group(harbor.by_name["quick"].step(number) for number in range(members)), harbor.by_name["total"])


def _steps(harbor: Harbor, order: Order) -> list[Step[Any]]:
    return [harbor.step(task, arguments, **options) for task, arguments, options in order.each]


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Order))
