"""Which queues a worker listens to, and with which weights (D11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from taskharbor.core.reserved import check_queue
from taskharbor.errors import ConfigError


class Lines:
    """Queues by shares: a weight of 3 is three shares of every reserve. Shuffled each time, so none starves."""

    def __init__(self, queues: Sequence[str] | Mapping[str, int], chance: Random) -> None:
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
        self._chance = chance

    def shares(self) -> list[str]:
        """The names in a new order, each as often as its weight."""
        if len(self._shares) > 1:
            self._chance.shuffle(self._shares)
        return list(self._shares)
