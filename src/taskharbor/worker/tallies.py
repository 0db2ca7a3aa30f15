"""What totals and worker records mean: which totals are runs, whether they are complete, which workers are silent.

A worker stores its totals every ten seconds, and loses the rest when it is killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from taskharbor.core.durations import ago
from taskharbor.driver import Tally, WorkerRecord

VANISHED = "vanished"
NOT_STARTED = "not_started:"
MISSED = timedelta(seconds=20)  # a worker reports every ten
NAMED = 3


def vanished(worker: WorkerRecord) -> Tally:
    """What is left of a killed worker among the totals once its record is forgotten."""
    return Tally(worker.seen_at.replace(second=0, microsecond=0), "", "", VANISHED, 1)


def silent(worker: WorkerRecord, now: datetime) -> bool:
    """Whether the worker has missed two reports: what it last said about its runs no longer holds."""
    return worker.seen_at < now - MISSED


def not_started(outcome: str) -> str:
    """The outcome under which jobs are counted that ended without a run, such as those of an unknown task."""
    return NOT_STARTED + outcome


def totals(tallies: Sequence[Tally], since: datetime) -> tuple[list[Tally], list[Tally]]:
    """The totals by outcome, without the traces of killed workers; and the part of them that did not start."""
    kept = [tally for tally in tallies if tally.outcome != VANISHED and tally.minute >= since]
    unstarted = [
        replace(tally, outcome=tally.outcome.removeprefix(NOT_STARTED))
        for tally in kept
        if tally.outcome.startswith(NOT_STARTED)
    ]
    sums: dict[tuple[datetime, str, str, str], Tally] = {}
    for tally in [*(tally for tally in kept if not tally.outcome.startswith(NOT_STARTED)), *unstarted]:
        key = tally.minute, tally.queue, tally.task, tally.outcome
        known = sums.get(key)
        sums[key] = tally if known is None else replace(known, count=known.count + tally.count)
    return [sums[key] for key in sorted(sums)], unstarted


def partial(workers: Sequence[WorkerRecord], tallies: Sequence[Tally], since: datetime, now: datetime) -> str | None:
    """Why the totals since then are not complete, or None if they are.

    `workers` are all that are known, also those that have not reported lately.
    """
    lost = [worker for worker in workers if since - MISSED <= worker.seen_at and silent(worker, now)]
    if lost:
        names = ", ".join(f"{worker.id} (last seen {ago(worker.seen_at, now)})" for worker in lost[:NAMED])
        more = f" and {len(lost) - NAMED:,} more" if len(lost) > NAMED else ""
        who = f"{names}{more} stopped without a shutdown"
    elif traces := [tally for tally in tallies if tally.outcome == VANISHED]:
        who = f"workers stopped without a shutdown, the last at {max(tally.minute for tally in traces):%H:%M} UTC"
    else:
        return None
    return f"{who}: up to ten seconds of runs are not counted"
