"""Reserve and extend: claims in the order of D11, and heartbeats (D6)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import repeat

from taskharbor.core.job import JobRecord
from taskharbor.core.lease import Extended, Report
from taskharbor.core.line import shares
from taskharbor.core.reserved import in_line
from taskharbor.core.steps.settle import settle
from taskharbor.core.transition import Fail
from taskharbor.drivers.redis import damage
from taskharbor.drivers.redis.calls import RedisCalls
from taskharbor.drivers.redis.connection import Arg, Server
from taskharbor.drivers.redis.damage import UNDECODABLE, damaged_fail
from taskharbor.drivers.redis.drafts import run
from taskharbor.drivers.redis.parts import ClaimPart, Parts, compose, micros, moment, pack
from taskharbor.drivers.redis.scripts import load
from taskharbor.drivers.shared.claims import ClaimTerms
from taskharbor.drivers.shared.columns import split_token

RESERVE, EXTEND = load("reserve"), load("extend")
AGAIN = 1  # the reply of a script that has done enough for one turn
DEAD_LETTERED = "store.corrupt: job %r is in the dead-letter queue: %s"

logger = logging.getLogger("taskharbor.redis")


class Reserving:
    """Claims jobs in line. It knows the paused queues of the last call; the script says if they are others."""

    def __init__(self, calls: RedisCalls) -> None:
        self._calls = calls
        self._paused: tuple[str, ...] = ()

    async def claim(self, terms: ClaimTerms, queues: Sequence[str], limit: int) -> list[JobRecord]:
        """Claim up to `limit` due jobs of the queues, best first."""
        claim = pack(ClaimPart(terms.worker, terms.now))
        fixed: tuple[Arg, ...] = micros(terms.now), micros(terms.expires_at), terms.tokens, claim, max(limit, 0)
        skips: Sequence[Arg] = ()
        while True:
            open_queues = [queue for queue in in_line(queues) if queue not in self._paused]
            wanted = [word for queue, share in shares(open_queues, limit).items() for word in (queue, share)]
            reply = await self._calls.run(
                RESERVE, *fixed, len(self._paused), *self._paused, len(skips) // 2, *skips, *wanted
            )
            if reply[0] is None:
                jobs, damaged = _records(reply, claim, terms.now)
                await self._dead_letter(damaged, terms.now)
                return jobs
            if reply[0] == AGAIN:
                skips = reply[1]
            else:
                self._paused = tuple(sorted(name.decode() for name in reply[0]))

    async def _dead_letter(self, damaged: Sequence[Fail], now: datetime) -> None:
        if damaged:
            await run(self._calls, settle, damaged, now)
        for fail in damaged:
            logger.error(DEAD_LETTERED, fail.id, fail.last_error)


def _records(reply: Sequence[Sequence[bytes]], claim: bytes, now: datetime) -> tuple[list[JobRecord], list[Fail]]:
    """The claimed jobs, and the outcomes of those that cannot be read."""
    _, ids, heads, cards, *more = reply
    ends, rests = more or (repeat(None), repeat(None))
    jobs: list[JobRecord] = []
    damaged: list[Fail] = []
    for name, head, card, end, rest in zip(ids, heads, cards, ends, rests, strict=False):
        id, stored = name.decode(), Parts(head, card, claim, None, None, end, rest)
        try:
            jobs.append(compose(id, stored))
        except UNDECODABLE:
            damaged.append(damaged_fail(damage.compose(id, stored), stored, now))
    return jobs, damaged


async def extend(
    server: Server, reports: Sequence[Report], now: datetime, lease_for: timedelta
) -> list[Extended | None]:
    """Renew leases; None for a report that is refused."""
    words: list[Arg] = [micros(now), micros(now + lease_for)]
    for report in reports:
        token, number, id = split_token(report.token)
        started = b"" if report.started_at is None else str(micros(report.started_at)).encode()
        progress = b"" if report.progress is None else pack(report.progress)
        words += (report.id, token if id == report.id else "", number, started, progress)
    answers = await server.run(EXTEND, *words)
    return [
        None if answer is None else Extended(moment(answer[0].decode()), answer[1] == b"1", answer[1] == b"2")
        for answer in answers
    ]
