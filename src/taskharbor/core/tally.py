"""Totals of runs: what one settled run counts as, and how runs add up (D9, D13).

A transition carries the `Increment` of its run, and a driver that keeps totals adds it in the step that writes the
transition: what was refused or repeated counts nothing, and no crash comes between.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.core.transition import Transition

DONE, DEAD, CANCELLED, RETRIED, RELEASED = "done", "dlq", "cancelled", "retried", "released"
NOT_STARTED = "not_started:"
NO_TIME = timedelta(0)


class Tally(Struct, frozen=True):
    """The number of runs of a task that ended with one outcome within a minute.

    `seconds` is how long they ran and `waited` how long they were due before, in total. Jobs that were settled without
    a run have an outcome of their own, `not_started:…`.
    """

    minute: datetime
    queue: str
    task: str
    outcome: str
    count: int
    seconds: float = 0.0
    waited: float = 0.0


TotalKey = tuple[str, str, str]


def key_of(to: Transition) -> TotalKey | None:
    """The total that a settled transition adds to: queue, task and outcome; None if it is not counted."""
    add = to.increment
    if add is None:
        return None
    return add.queue, add.task, add.outcome if to.started_at is not None else NOT_STARTED + add.outcome


def tallies(settled: Iterable[Transition], now: datetime) -> list[Tally]:
    """The totals of transitions that were settled at `now`, in order of their names."""
    sums: dict[TotalKey, _Sum] = {}
    like: Transition | None = None
    count = 0
    for to in settled:
        if like is not None and to.increment is like.increment and to.started_at is like.started_at:
            count += 1  # jobs that were enqueued together and ran together: nearly all of a batch
            continue
        if like is not None:
            _add(sums, like, count, now)
        like, count = to, 1
    if like is not None:
        _add(sums, like, count, now)
    minute = minute_of(now)
    return [
        Tally(minute, *key, total.count, total.ran.total_seconds(), total.waited.total_seconds())
        for key, total in sorted(sums.items(), key=itemgetter(0))
    ]


def _add(sums: dict[TotalKey, _Sum], to: Transition, count: int, now: datetime) -> None:
    """Add a number of transitions with the same increment and start."""
    key, add, started = key_of(to), to.increment, to.started_at
    if key is None or add is None:
        return
    total = sums.setdefault(key, _Sum())
    total.count += count
    if started is not None:
        total.ran += count * (now - started)
        total.waited += count * max(started - add.due_at, NO_TIME)


class _Sum(Struct, gc=False):
    count: int = 0
    ran: timedelta = NO_TIME
    waited: timedelta = NO_TIME


def minute_of(now: datetime) -> datetime:
    """The minute whose totals a settle at `now` adds to."""
    return now.replace(second=0, microsecond=0)


def added(tally: Tally, other: Tally) -> Tally:
    """The sum of two totals of the same minute, task and outcome."""
    return replace(
        tally,
        count=tally.count + other.count,
        seconds=tally.seconds + other.seconds,
        waited=tally.waited + other.waited,
    )
