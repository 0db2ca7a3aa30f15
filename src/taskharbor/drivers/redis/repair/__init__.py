"""The repair pass: compares every index with what the records say, and mends the difference.

Records (the hashes of `parts`), edges (`up:`) and keys are the truth, everything else follows from them. It reads in
pages and mends in bites. Each bite is one commit that compares what it rests on (a head changes with every write), so
running workers and a repair do not harm each other: a bite that meets a change is read again.

    jobs      records that cannot be read, entries that are missing or wrong
    members   entries too many
    links     dependencies from the other side, idempotency keys
    totals    counts by state

Internal; only the Redis driver imports it.
"""

from __future__ import annotations

from taskharbor.driver import RepairReport
from taskharbor.drivers.redis.calls import RedisCalls
from taskharbor.drivers.redis.repair import jobs, links, members, totals
from taskharbor.drivers.redis.repair.bites import Bites

__all__ = ["repair"]


async def repair(calls: RedisCalls, *, dry: bool) -> RepairReport:
    """Compare, and unless `dry` mend. A dry run counts what it would mend."""
    bites = Bites(calls, dry=dry)
    seen = await jobs.check(bites)
    await members.check(bites)
    await links.check(bites)
    counted = await totals.check(bites)
    return RepairReport(jobs=seen, misfits=bites.misfits, examples=tuple(bites.examples), counted=counted)
