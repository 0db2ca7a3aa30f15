"""Reserve and extend: claims in the order of D11 by one statement, and heartbeats (D6)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from taskharbor.core.job import JobRecord
from taskharbor.core.line import shares
from taskharbor.driver import Extended, Report
from taskharbor.drivers.postgres.bookmarks import Bookmarks, Mark
from taskharbor.drivers.postgres.db import Db, Row
from taskharbor.drivers.postgres.inspection import get
from taskharbor.drivers.postgres.rows import claimed, split_token
from taskharbor.drivers.shared.claims import ClaimTerms, not_renewed
from taskharbor.drivers.shared.columns import json_or_none
from taskharbor.errors import LeaseError


async def reserve(db: Db, to: ClaimTerms, queues: Sequence[str], limit: int, bookmarks: Bookmarks) -> list[JobRecord]:
    """Claim due jobs of the queues, best first."""
    share = shares(queues, limit)
    asked = asyncio.get_running_loop().time()
    rows = await _rows(db, "reserve", *to, limit, list(share), list(share.values()))
    bookmarks.note(queues, rows, limit, asked)
    return _claimed(rows, to)


async def reserve_on(
    db: Db, to: ClaimTerms, queues: Sequence[str], limit: int, bookmarks: Bookmarks, marks: Mapping[str, Mark]
) -> list[JobRecord]:
    """Claim the next jobs after these bookmarks; there may be more elsewhere."""
    share = shares([queue for queue in queues if queue in marks], limit)
    lines = [(queue, *marks[queue], some) for queue, some in share.items()]
    rows = await _rows(db, "reserve_on", *to, *map(list, zip(*lines, strict=True)))
    bookmarks.note(queues, rows, limit)
    return _claimed(rows, to)


async def reserve_ids(db: Db, to: ClaimTerms, ids: Sequence[str], limit: int) -> list[JobRecord]:
    """Claim exactly these ids, as far as possible."""
    return _claimed(await _rows(db, "reserve_by_id", *to, limit, list(dict.fromkeys(ids))), to)


async def _rows(db: Db, name: str, *values: object) -> list[Row]:
    return sorted(await db.rows(name, *values), key=_place)


def _place(row: Row) -> int:
    place: int = row[0]
    return place


def _claimed(rows: Sequence[Row], to: ClaimTerms) -> list[JobRecord]:
    return [claimed(row, *to) for row in rows]


async def extend(db: Db, reports: Sequence[Report], now: datetime, lease_for: timedelta) -> list[Extended | LeaseError]:
    """Renew leases; a report that the fenced update did not touch gets the reason."""
    answers: dict[int, Extended | LeaseError] = {}
    left = dict(enumerate(reports))
    while left:  # of several reports on one job each gets its turn
        turn: dict[str, int] = {}
        for index, report in left.items():
            turn.setdefault(report.id, index)
        chosen = {index: left.pop(index) for index in turn.values()}
        renewed = await _extend(db, list(chosen.values()), now, now + lease_for)
        for index, report in chosen.items():
            answers[index] = renewed.get(report.id) or not_renewed((await get(db, [report.id]))[0], report, now)
    return [answers[index] for index in range(len(reports))]


async def _extend(db: Db, reports: Sequence[Report], now: datetime, until: datetime) -> dict[str, Extended]:
    """Renew leases, one per job; return those renewed by job."""
    given = [(split_token(report.token), report) for report in reports]
    fitting = [(part, report) for part, report in given if part[2] == report.id]
    fitting.sort(key=lambda it: it[0][1])  # in the order of settles, to avoid deadlocks
    if not fitting:
        return {}
    rows = await db.rows(
        "extend_lease",
        [part[1] for part, _ in fitting],
        [part[0] for part, _ in fitting],
        [report.started_at for _, report in fitting],
        [json_or_none(report.progress) for _, report in fitting],
        now,
        until,
    )
    ids = {part[1]: report.id for part, report in fitting}
    return {ids[row[0]]: Extended(row[1], row[2], row[3]) for row in rows}
