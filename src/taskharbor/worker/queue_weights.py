"""The queues of a worker, with their weights (D11) and slots.

A queue whose jobs hang does not stop the others: each queue that runs nothing keeps a slot for itself. At most half of
the slots are kept, so that one busy queue among many idle ones is not slowed down much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from taskharbor.core.reserved import check_queue
from taskharbor.errors import ConfigError


class ToReserve(NamedTuple):
    """At most `limit` jobs of `queues`. `only_own`: just the slots kept for these queues are free."""

    queues: list[str]
    limit: int
    only_own: bool = False


class QueueWeights:
    """Queues by shares: a weight of 3 is three shares of every reserve. Shuffled each time, so none starves."""

    def __init__(self, queues: Sequence[str] | Mapping[str, int], slots: int, rng: Random) -> None:
        if isinstance(queues, str):
            raise ConfigError(f"queues must be a list of names or a dict of weights, not the text {queues!r}")
        weights = dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues, 1)
        if not weights:
            raise ConfigError("a worker needs at least one queue")
        for name, weight in weights.items():
            check_queue("a queue's name", name)
            if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= 100:
                raise ConfigError(f"the weight of queue {name!r} must be a whole number from 1 to 100, not {weight!r}")
        self.names = tuple(weights)
        self._shares = [name for name, weight in weights.items() for _ in range(weight)]
        self._rng = rng
        self._slots = slots
        self._most_kept = min(len(self.names) - 1, slots // 2) if len(self.names) <= slots else 0
        self.keep_slots = self._most_kept > 0

    def shares(self) -> list[str]:
        """The names in a random order, each as often as its weight."""
        if len(self._shares) > 1:
            self._rng.shuffle(self._shares)
        return list(self._shares)

    def stuck(self, overruns: Sequence[str]) -> tuple[str, ...]:
        """The queues that can start no job while these runs, given by their queues, hold the slots they may take."""
        if len(overruns) >= self._slots:
            return self.names
        busy = set(overruns)
        kept = min(len(self.names) - len(busy), self._most_kept)
        return tuple(name for name in self.names if name in busy) if len(overruns) + kept >= self._slots else ()

    def claim(self, free: int, running: Iterable[str]) -> ToReserve:
        """The next reserve with so many free slots, without the slots kept for queues that run nothing.

        `running` are the queues of the jobs that run, looked at only if slots are kept.
        """
        if not self.keep_slots:
            return ToReserve(self.shares(), free)
        busy = set(running)
        idle = [name for name in self.names if name not in busy]
        # If no queue runs anything, the first to have a job uses its own slot.
        kept = min(len(idle) - (len(idle) == len(self.names)), self._most_kept)
        spare = free - kept
        if spare > 0:
            return ToReserve(self.shares(), spare)
        self._rng.shuffle(idle)
        return ToReserve(idle, min(free, 1), only_own=True)  # one at a time, or one queue could take the slots of two
