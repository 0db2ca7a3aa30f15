"""Totals of runs: kept in the page by the swap that writes the outcome, and added to their minute when it is tidied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from taskharbor.core.tally import Tally
from taskharbor.drivers.nats.pages import RunSum, micros, moment

SumKey = tuple[int, str, str, str]
read_sums = msgspec.msgpack.Decoder(tuple[RunSum, ...]).decode


def sums_of(known: Sequence[RunSum], tallies: Iterable[Tally]) -> tuple[RunSum, ...]:
    """The totals with these added."""
    return merged(known, (_stored(tally) for tally in tallies))


def merged(known: Iterable[RunSum], more: Iterable[RunSum]) -> tuple[RunSum, ...]:
    """The totals of both."""
    found: dict[SumKey, RunSum] = {}
    for each in (*known, *more):
        key = (each.minute, each.queue, each.task, each.outcome)
        before = found.get(key)
        found[key] = (
            each
            if before is None
            else RunSum(*key, before.count + each.count, before.ran + each.ran, before.waited + each.waited)
        )
    return tuple(found.values())


def _stored(tally: Tally) -> RunSum:
    return RunSum(
        micros(tally.minute),
        tally.queue,
        tally.task,
        tally.outcome,
        tally.count,
        round(tally.seconds * 1e6),
        round(tally.waited * 1e6),
    )


def tally_of(total: RunSum) -> Tally:
    """A total as it is asked for."""
    return Tally(
        moment(total.minute),
        total.queue,
        total.task,
        total.outcome,
        total.count,
        total.ran / 1e6,
        total.waited / 1e6,
    )
