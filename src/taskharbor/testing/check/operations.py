"""From events to operations: each call with its end, placed on one axis of real time.

An operation took effect, if it did, between `start` and `end`. One whose outcome is unknown may take effect at any time
after its start, so it has no end. Refusals of a whole call changed nothing and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct

from taskharbor.testing.check.report import Counts
from taskharbor.testing.history import Answer, Began, Called, Ended, Event, Final, Last, Noted, Raised, Returned

NEVER = 1 << 62


class BrokenHistory(ValueError):
    """The events do not fit together, so they cannot be checked."""


class SeenCall(Struct, gc=False):
    """A call; `answers` is None if its outcome is unknown."""

    call: Called
    start: int
    end: int = NEVER
    answers: tuple[Answer, ...] | None = None


class SeenRun(Struct, gc=False):
    """A run of a handler. Without an end it was killed, at its process's last event or later."""

    event: Began
    start: int
    end: int = NEVER
    ended: bool = False
    killed: bool = False


class Operations(Struct):
    """A whole history with calls and ends paired."""

    done: list[SeenCall]
    runs: list[SeenRun]
    last: dict[str, Last]
    final_now: int | None
    counts: Counts


def pair(events: Iterable[Event]) -> Operations:
    """Pair calls with their ends and handlers with theirs."""
    listed = events if isinstance(events, Sequence) else list(events)
    pairing = _Pairing()
    step: dict[type, Callable[[Any, int], None]] = {
        Called: pairing.called,
        Returned: pairing.returned,
        Raised: pairing.raised,
        Began: pairing.began,
        Ended: pairing.ended,
        Final: pairing.final,
        Noted: lambda event, time: None,
    }
    if is_in_order(listed):
        for place, event in enumerate(listed):
            step[type(event)](event, place)
    else:
        for event in listed:
            step[type(event)](event, event.at)
    return pairing.result()


def is_in_order(events: Sequence[Event]) -> bool:
    """Whether the list is in the order of time, as a single sink writes it: then positions decide between equal times.

    An event is written after what it reports and before what follows, so that order is as good as any clock.
    """
    return all(before.at <= event.at for before, event in pairwise(events))


class _Pairing:
    def __init__(self) -> None:
        self._open: dict[tuple[str, int], SeenCall] = {}
        self._running: dict[tuple[str, str, int], list[SeenRun]] = {}
        self._seen: dict[str, int] = {}
        self._refused: set[int] = set()
        self._done: list[SeenCall] = []
        self._runs: list[SeenRun] = []
        self._last: dict[str, Last] = {}
        self._final_now: int | None = None

    def called(self, event: Called, time: int) -> None:
        if event.number == 1:
            self._restarted(event.who)
        operation = SeenCall(event, time)
        self._open[event.who, event.number] = operation
        self._done.append(operation)
        self._seen[event.who] = time

    def _restarted(self, who: str) -> None:
        """Start a new process under the name of a killed one: the handlers of the old one ended with it."""
        for key in [key for key in self._running if key[0] == who]:
            for run in self._running.pop(key):
                run.end = max(run.start, self._seen[who])
                run.killed = True

    def returned(self, event: Returned, time: int) -> None:
        operation = self._close(event, time)
        operation.end = time
        operation.answers = event.answers

    def raised(self, event: Raised, time: int) -> None:
        operation = self._close(event, time)
        if not event.unknown:
            self._refused.add(id(operation))

    def _close(self, event: Returned | Raised, time: int) -> SeenCall:
        self._seen[event.who] = time
        operation = self._open.pop((event.who, event.number), None)
        if operation is None:
            raise BrokenHistory(f"call #{event.number} by {event.who} has ended, but its start was never recorded")
        return operation

    def began(self, event: Began, time: int) -> None:
        run = SeenRun(event, time)
        self._running.setdefault((event.who, event.id, event.version), []).append(run)
        self._runs.append(run)
        self._seen[event.who] = time

    def ended(self, event: Ended, time: int) -> None:
        self._seen[event.who] = time
        runs = self._running.get((event.who, event.id, event.version))
        if not runs:
            raise BrokenHistory(f"a handler of {event.id} by {event.who} has ended, but its start was never recorded")
        run = runs.pop()
        run.end = time
        run.ended = True

    def final(self, event: Final, time: int) -> None:
        self._final_now = event.now
        for job in event.jobs:
            self._last[job.id] = job

    def result(self) -> Operations:
        for run in self._runs:
            if not run.ended and not run.killed:  # its process recorded nothing more: it was killed then or later
                run.end = max(run.start, self._seen[run.event.who])
        done = self._done
        if self._refused:
            done = [operation for operation in done if id(operation) not in self._refused]
        counts = Counts(
            operations=len(self._done),
            unknown=sum(operation.answers is None for operation in done),
            executions=len(self._runs),
        )
        return Operations(done, self._runs, self._last, self._final_now, counts)
