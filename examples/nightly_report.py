"""A report for every night in Berlin, one for every month by the same task, and a poller that pauses between its runs.

Run it: python examples/nightly_report.py
In earnest: taskharbor worker nightly_report:harbor (in this folder), and look with `taskharbor recurring ls`
"""

from __future__ import annotations

import asyncio
from datetime import UTC, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from taskharbor import Harbor, current

harbor = Harbor("sqlite:///reports.db")
BERLIN = ZoneInfo("Europe/Berlin")
looked = asyncio.Event()


# Two schedules, one task: the lower one creates it and shares its name, the upper one needs its own name.
@harbor.recurring(name="monthly", cron="30 6 1 * *", tz="Europe/Berlin", arguments={"days": 30})
@harbor.recurring(cron="0 3 * * *", tz="Europe/Berlin")
async def nightly(days: int = 1) -> str:
    """The sales of the days before. Retried in the morning or run late, it is still for the night of its slot."""
    job = current()
    until = (job.slot or job.record.created_at).astimezone(BERLIN).date()  # no slot if it was enqueued by hand
    return f"sales from {until - timedelta(days=days)} to {until - timedelta(days=1)}"


@harbor.recurring(every=timedelta(seconds=1), mode="fixed_delay")
async def poll() -> None:
    """Poll for new orders, a second after the last poll has ended: slow polls never pile up."""
    await asyncio.sleep(0.1)
    looked.set()


async def show_plan() -> None:
    """Print what runs when, in words and in Berlin time."""
    for task in await harbor.admin.recurring.alist():
        at = "" if task.next_run is None else f", next {task.next_run.astimezone(BERLIN):%Y-%m-%d %H:%M:%S%z}"
        print(f"{task.name}: {task.words}{at}")


async def show_changes_of_clocks() -> None:
    """The nights of the coming year in which 03:00 is at another time in UTC than the night before."""
    nights = [time.astimezone(BERLIN) for time in await harbor.admin.recurring.anext("nightly_report.nightly", 366)]
    for before, after in pairwise(nights):
        if before.utcoffset() != after.utcoffset():
            utc = f"{before.astimezone(UTC):%H:%M} to {after.astimezone(UTC):%H:%M}"
            print(f"{after:%Y-%m-%d}: the clocks change, {after:%H:%M} in Berlin moves from {utc} UTC")


async def main() -> None:
    """An operator's view of it, and the next report now."""
    async with harbor.open(), harbor.worker():
        await looked.wait()  # a starting worker stores the declared schedules, then runs them
        looked.clear()
        await show_plan()
        await show_changes_of_clocks()

        job = await harbor.admin.recurring.arun("nightly_report.nightly")
        print(f"run by hand: {await job.aresult(timeout=30)}")

        rests = await harbor.admin.recurring.apause("monthly")
        print(f"{rests.name} is paused: {rests.paused}, next {rests.next_run}")
        await harbor.admin.recurring.aresume("monthly")

        await looked.wait()
        print("the poller has looked again")


if __name__ == "__main__":
    asyncio.run(main())
