"""Cron where clocks are put forward and back: every zone, every change of 16 years, by a plain reading of the rules.

Zones whose clocks change alike are compared once. It takes some minutes on two cores, and needs no root.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, available_timezones

from core.dst import Change, changes, compare
from torture.ground import say

SINCE, UNTIL = datetime(2020, 1, 1, tzinfo=UTC), datetime(2036, 1, 1, tzinfo=UTC)
SHOWN = 20


def dst(minutes: float, seed: int) -> str:
    """Cron in every zone at every change of its clock from 2020 to 2035; --minutes does not matter."""
    zones = sorted(available_timezones())
    say(f"looking for changes of {len(zones)} clocks")
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        groups = alike(zones, pool.map(_changes, zones, chunksize=8))
        work = [(zone, change) for found, zone in groups.items() for change in found]
        say(f"{len(work)} changes in {len(groups)} groups of zones that change alike")
        compared = _compared(len(work), pool.map(compare, *zip(*work, strict=True)))
    return f"{len(zones)} zones, {len(work)} changes, {compared} answers compared"


def alike(zones: Iterable[str], found: Iterable[tuple[Change, ...]]) -> dict[tuple[Change, ...], str]:
    """One zone for all whose clocks change alike; those that never change are left out."""
    groups = dict(zip(found, zones, strict=True))
    groups.pop((), None)
    return groups


def _changes(zone: str) -> tuple[Change, ...]:
    return tuple(changes(ZoneInfo(zone), SINCE, UNTIL))


def _compared(total: int, results: Iterable[tuple[int, list[str]]]) -> int:
    compared, told, wrong = 0, time.monotonic(), list[str]()
    for done, (count, found) in enumerate(results, 1):
        compared += count
        wrong += found
        for line in found[: max(SHOWN - len(wrong) + len(found), 0)]:
            say(line)
        if time.monotonic() - told > 10 or done == total:
            told = time.monotonic()
            say(f"{done} of {total} changes, {compared} answers, {len(wrong)} of them wrong")
    assert not wrong, f"{len(wrong)} of {compared} answers are wrong: {wrong[0]}"
    return compared
