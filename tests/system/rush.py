"""Many processes that reserve from one store at once: `python -m system.rush PROCESSES LIMIT`, settings as ever.

Forked, so that all are there at the same moment; each opens the store by itself. Says `ready`, waits for a line, and
ends when every process has found nothing left. A process leaves some of its claims behind, to be taken over by others.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from taskharbor.core.decide import token_of
from taskharbor.core.transition import Ack
from taskharbor.driver import Inspect, capability
from taskharbor.drivers import from_url
from taskharbor.testing.recorder import Recorder

from .app import Diary, Settings

LEASE = timedelta(seconds=0.5)
FORGOTTEN = 0.1


async def rush(number: int, limit: int, settings: Settings, start: int) -> None:
    """Reserve and settle until everything has ended."""
    rng = Random(number)
    driver = await from_url(settings.url)
    who = f"{settings.who}-{number}"
    recorder = Recorder(driver, who, Diary(Path(settings.folder), who))
    os.read(start, 1)
    while True:
        jobs = await recorder.reserve(["default"], datetime.now(UTC), LEASE, rng.randint(1, limit), who)
        kept = [job for job in jobs if job.crashes or rng.random() > FORGOTTEN]
        keep_until = datetime.now(UTC) + timedelta(days=1)
        acks = [Ack(id=job.id, token=token_of(job), keep_until=keep_until) for job in kept]
        if acks:
            await recorder.settle(acks, datetime.now(UTC))
        elif not jobs:
            counts = await capability(driver, Inspect).counts(datetime.now(UTC))
            if not any(it.ready + it.claimed + it.running + it.lapsed for it in counts):
                break
            await asyncio.sleep(0.02)
    await driver.close()


def main(processes: int, limit: int) -> None:
    """Fork them, let them go together, and wait for all."""
    settings = Settings.given()
    start, go = os.pipe()
    children: list[int] = []
    for number in range(processes):
        child = os.fork()
        if child == 0:
            asyncio.run(rush(number, limit, settings, start))
            os._exit(0)
        children.append(child)
    print("ready", flush=True)
    sys.stdin.readline()
    os.write(go, b"!" * processes)
    ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(0 if not any(ended) else f"some failed: {ended}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
