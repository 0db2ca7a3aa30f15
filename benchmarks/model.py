"""A measure: sides that take turns, and the floors that ours must reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# What has a section of its own in the results; memory goes with SQLite.
SQLITE, POSTGRES, REDIS, NATS = "sqlite", "postgres", "redis", "nats"
# Other servers of the engine NATS: one that syncs before each answer, and a cluster of three.
NATS_ALWAYS, NATS_THREE = "nats-always", "nats-three"
COUNT = "connections"  # a unit of whole numbers
GAINS = ("rate", "kept")  # values of which more is better


@dataclass(frozen=True)
class Side:
    """One contestant: a function of this package, called in a process of its own.

    `weight` is about how many seconds it takes, for the progress bar. `package` must be there. `known` is what others
    measured, to compare with where the package cannot be had. An argument that names a server becomes the URL of a
    database of its own there: a new one, or a copy of the one that a setup has made under the name `database`.
    `older` says that it needs the older packages of the environment, see rivals.py. `root` is another tree of this
    project, whose code is measured.
    """

    label: str
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    weight: float = 2.0
    package: str | None = None
    rounds: int | None = None
    known: float | None = None
    database: str | None = None
    root: str | None = None
    older: bool = False


@dataclass(frozen=True)
class Measure:
    """A comparison. The first side is ours; `floors` says how many times another side's speed it must reach at least.

    Of a cost, `floors` says how many times another side's it may be at most. What has a bound of its own has `limits`
    and `least`: of each value of a sample, the most and the least. `setup` is done once before.
    """

    key: str
    title: str
    sides: Mapping[str, Side]
    floors: Mapping[str, float] = field(default_factory=dict[str, float])
    value: str = "rate"
    unit: str = "jobs/s"
    limits: Mapping[str, float] = field(default_factory=dict[str, float])
    least: Mapping[str, float] = field(default_factory=dict[str, float])
    rounds: int = 3
    setup: Side | None = None
    engine: str = SQLITE

    @property
    def smaller_is_better(self) -> bool:
        """Whether the value is a cost."""
        return self.value not in GAINS
