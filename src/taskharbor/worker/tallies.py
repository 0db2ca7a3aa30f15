"""What totals mean: which of them are runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from taskharbor.core.tally import NOT_STARTED, added
from taskharbor.driver import Tally


def totals(tallies: Sequence[Tally]) -> tuple[list[Tally], list[Tally]]:
    """The totals by outcome, and the part of them that did not start."""
    unstarted = [
        replace(tally, outcome=tally.outcome.removeprefix(NOT_STARTED))
        for tally in tallies
        if tally.outcome.startswith(NOT_STARTED)
    ]
    sums: dict[tuple[datetime, str, str, str], Tally] = {}
    for tally in [*(tally for tally in tallies if not tally.outcome.startswith(NOT_STARTED)), *unstarted]:
        key = tally.minute, tally.queue, tally.task, tally.outcome
        known = sums.get(key)
        sums[key] = tally if known is None else added(known, tally)
    return [sums[key] for key in sorted(sums)], unstarted
