"""Whether totals are complete: a worker stores its own every ten seconds, and loses the rest when it is killed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from taskharbor.core.durations import ago
from taskharbor.driver import Tally, WorkerRecord

VANISHED = "vanished"
MISSED = timedelta(seconds=20)  # a worker reports every ten
NAMED = 3


def vanished(worker: WorkerRecord) -> Tally:
    """What is left of a killed worker among the totals once its record is forgotten."""
    return Tally(worker.seen_at.replace(second=0, microsecond=0), "", "", VANISHED, 1)


def runs(tallies: Sequence[Tally], since: datetime) -> list[Tally]:
    """The totals of runs, without the traces of killed workers."""
    return [tally for tally in tallies if tally.outcome != VANISHED and tally.minute >= since]


def partial(workers: Sequence[WorkerRecord], tallies: Sequence[Tally], since: datetime, now: datetime) -> str | None:
    """Why the totals since then are not complete, or None if they are.

    `workers` are all that are known, also those that have not reported lately.
    """
    silent = [worker for worker in workers if since - MISSED <= worker.seen_at < now - MISSED]
    if silent:
        names = ", ".join(f"{worker.id} (last seen {ago(worker.seen_at, now)})" for worker in silent[:NAMED])
        more = f" and {len(silent) - NAMED:,} more" if len(silent) > NAMED else ""
        who = f"{names}{more} stopped without a shutdown"
    elif traces := [tally for tally in tallies if tally.outcome == VANISHED]:
        who = f"workers stopped without a shutdown, the last at {max(tally.minute for tally in traces):%H:%M} UTC"
    else:
        return None
    return f"{who}: up to ten seconds of runs are not counted"
