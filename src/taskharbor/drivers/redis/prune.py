"""Prune: a script finds records past their retention, the step of the core removes them (X8)."""

from __future__ import annotations

from datetime import datetime

from taskharbor.core.steps import forget
from taskharbor.drivers.redis.calls import RedisCalls
from taskharbor.drivers.redis.drafts import run
from taskharbor.drivers.redis.parts import micros
from taskharbor.drivers.redis.scripts import load

PRUNE = load("prune")
PAGE = 200
# Entries and dependants that one call looks at.
AT_ONCE = 2000


async def prune(calls: RedisCalls, now: datetime, limit: int) -> int:
    """Remove up to `limit` records past those that have to stay; return their number."""
    until, done, passed, more = micros(now), 0, 0, 1
    while done < limit and more:
        needed, more, names = await calls.run(PRUNE, until, passed, PAGE, AT_ONCE)
        ids = [name.decode() for name in names]
        passed += needed
        if ids:
            gone = await run(calls, forget.prune, ids, now, limit - done)
            done += gone
            left = await calls.command("ZMSCORE", f"{calls.prefix}ended", *ids)
            # A workflow goes as a whole: others of its records may have been among those that were passed.
            others = gone - left.count(None)
            passed = max(0, passed + sum(score is not None and float(score) <= until for score in left) - others)
    return done
