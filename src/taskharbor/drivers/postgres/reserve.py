"""Reserve and extend: claims in the order of D11 by one statement, and heartbeats (D6)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from secrets import token_urlsafe

from taskharbor.core.job import JobRecord
from taskharbor.core.lease import refusal
from taskharbor.core.line import shares
from taskharbor.driver import Extended, Report
from taskharbor.drivers.postgres.db import Db
from taskharbor.drivers.postgres.inspection import get
from taskharbor.drivers.postgres.rows import claimed, json_or_none, split_token
from taskharbor.errors import LeaseError, StoreCorrupt


async def reserve(
    db: Db,
    queues: Sequence[str],
    now: datetime,
    lease_for: timedelta,
    limit: int,
    worker: str,
    ids: Sequence[str] | None,
) -> list[JobRecord]:
    """Claim due jobs of the queues, best first, or exactly `ids`."""
    if limit <= 0 or (not queues and ids is None):
        return []
    tokens, expires_at = f"{token_urlsafe(12)}.", now + lease_for
    if ids is None:
        share = shares(queues, limit)
        rows = await db.rows("reserve", list(share), list(share.values()), limit, now, expires_at, worker, tokens)
    else:
        rows = await db.rows("reserve_ids", list(dict.fromkeys(ids)), limit, now, expires_at, worker, tokens)
    return [claimed(row, tokens, now, expires_at, worker) for row in sorted(rows, key=_place)]


def _place(row: Sequence[int]) -> int:
    return row[0]


async def extend(db: Db, reports: Sequence[Report], now: datetime, lease_for: timedelta) -> list[Extended | LeaseError]:
    """Renew leases; what the fenced update did not touch is told why."""
    answers: dict[int, Extended | LeaseError] = {}
    left = dict(enumerate(reports))
    while left:  # of several reports on one job each gets its turn
        turn: dict[str, int] = {}
        for place, report in left.items():
            turn.setdefault(report.id, place)
        chosen = {place: left.pop(place) for place in turn.values()}
        renewed = await _extend(db, list(chosen.values()), now, now + lease_for)
        for place, report in chosen.items():
            answers[place] = renewed.get(report.id) or await _refused(db, report, now)
    return [answers[place] for place in range(len(reports))]


async def _extend(db: Db, reports: Sequence[Report], now: datetime, until: datetime) -> dict[str, Extended]:
    """What the leases of these jobs became, of each job one."""
    given = [(split_token(report.token), report) for report in reports]
    fitting = [(part, report) for part, report in given if part[2] == report.id]
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
    return {ids[row[0]]: Extended(row[1], row[2]) for row in rows}


async def _refused(db: Db, report: Report, now: datetime) -> LeaseError:
    [job] = await get(db, [report.id])
    refused = refusal(job, report.id, report.token, now)
    if refused is None:
        raise StoreCorrupt(f"the lease on job {report.id} is in order, but could not be renewed")
    return refused
