"""Extend: heartbeats, one swap for each page (D6)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from taskharbor.core.lease import Extended, Report, refusal
from taskharbor.drivers.nats.pages import NO_RARE, micros, moment, record, stored
from taskharbor.drivers.nats.reader import PageReader
from taskharbor.drivers.nats.store import Streams
from taskharbor.drivers.nats.swaps import Addressed, PageSwap, PageSwaps, by_page
from taskharbor.drivers.shared.claims import not_renewed
from taskharbor.errors import LeaseError


async def extend(
    store: Streams, swaps: PageSwaps, reports: Sequence[Report], now: datetime, lease_for: timedelta
) -> list[Extended | LeaseError]:
    """Renew leases; a refused report changes nothing."""

    async def judge(swapped: PageSwap, items: Sequence[tuple[Addressed, Report]]) -> dict[int, Extended | LeaseError]:
        found = {address.number: _renewed(swapped, address, report, now, lease_for) for address, report in items}
        return {index: answer for index, answer in found.items() if answer is not None}

    answers = await swaps.each(by_page(enumerate(reports)), judge, now)
    others = [index for index in range(len(reports)) if index not in answers]
    reader = PageReader(store)
    await reader.load(reports[index].id for index in others)
    for index in others:
        seen = reader.job(reports[index].id)
        answers[index] = not_renewed(None if seen is None else seen.record, reports[index], now)
    return [answers[index] for index in range(len(reports))]


def _renewed(
    swapped: PageSwap, address: Addressed, report: Report, now: datetime, lease_for: timedelta
) -> Extended | LeaseError | None:
    """Renew one lease in its page; None if the job is not there."""
    entry = swapped.entry(address.place, report.id)
    if entry is None:
        return None
    refused = refusal(record(entry, swapped.page, address.place), report.id, report.token, now)
    if refused is not None:
        return refused
    rare = entry.rare or NO_RARE
    if report.progress is not None:
        rare = replace(rare, progress=report.progress)
    until = max(entry.until, micros(now + lease_for))
    started = entry.started if report.started_at is None else stored(report.started_at)
    renewed = replace(entry, until=until, started=started, rare=None if rare == NO_RARE else rare)
    swapped.put(address.place, renewed)
    asked, dies = rare.stop_requested_at is not None, rare.stop_reason is not None
    return Extended(moment(until), asked and not dies, asked and dies)
