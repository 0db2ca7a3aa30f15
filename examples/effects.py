"""Exactly-once effects on PostgreSQL: a handler's own writes commit together with the end of its job, or not at all.

Run it: TASKHARBOR_URL=postgresql://user:password@host/database python examples/effects.py
It makes a table of its own there, `account`.
"""

from __future__ import annotations

import asyncio
import sys

from taskharbor import Harbor, chain, current, group

harbor = Harbor()  # TASKHARBOR_URL
crashes = {3, 7}


@harbor.task
async def open_account(name: str) -> None:
    """Create an empty account, unless it exists."""
    async with current().transaction() as tx:
        await tx.execute("CREATE TABLE IF NOT EXISTS account (name text PRIMARY KEY, cents bigint NOT NULL)")
        await tx.execute("INSERT INTO account VALUES ($1, 0) ON CONFLICT DO NOTHING", name)


@harbor.task(max_attempts=3)
async def deposit(account: str, cents: int, number: int) -> None:
    """Book an amount. Some runs die right before the commit: their writes are rolled back."""
    async with current().transaction() as tx:
        await tx.execute("UPDATE account SET cents = cents + $2 WHERE name = $1", account, cents)
        if number in crashes and current().attempt == 1:
            raise ConnectionError("the power fails here")


async def main() -> None:
    """Make twenty deposits, some of them tried twice; each is booked once."""
    if not harbor.url.startswith(("postgresql://", "postgres://")):
        sys.exit("this needs PostgreSQL: set TASKHARBOR_URL=postgresql://user:password@host/database")
    await harbor.amigrate()
    async with harbor.open():
        deposits = group(deposit.step("Ada", 100, number) for number in range(20))
        run = await chain(open_account.step("Ada"), deposits).aenqueue()
        async with harbor.worker():
            await run.aresult(timeout=60)
        failed = [job for job in await harbor.admin.jobs.alist(f"workflow:{run.id}") if job.attempts]
        print(f"{len(failed)} deposits were tried again")


if __name__ == "__main__":
    asyncio.run(main())
