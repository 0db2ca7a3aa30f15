"""The faults of one run, given explicitly or drawn from its seed."""

from __future__ import annotations

from random import Random
from typing import Literal

from msgspec import Struct

Clocks = Literal["one", "jumping", "engine", "skewed"]
CLOCKS: tuple[Clocks, ...] = ("one", "jumping", "engine", "skewed")


class Faults(Struct, frozen=True, kw_only=True):
    """Rates are shares of calls, times are seconds. `kills`, `pauses` and `deploys` are mean times between two for each
    worker; zero means never. All faults end when the scenario returns.

    `clocks` chooses the clock: `one` correct clock for all, one that jumps by up to an hour (`jumping`), the
    `engine`'s own behind a slow network, or hosts that are off by up to an hour each (`skewed`). With `supervised`,
    leases of a worker that died are given up at once, and one that is stopped for longer than a lease is killed (L9).
    """

    delay: float = 0.01
    stalls: float = 0.0
    stall: float = 20.0
    lost_requests: float = 0.0
    lost_replies: float = 0.0
    silence: float = 0.0
    lost_hints: float = 0.0
    outages: float = 0.0
    outage: float = 20.0
    kills: float = 0.0
    pauses: float = 0.0
    pause: float = 30.0
    deploys: float = 0.0
    downtime: float = 5.0
    clocks: Clocks = "one"
    supervised: bool = False


def drawn(rng: Random) -> Faults:
    """Random faults for a seed: each kind is present or not, at a random rate."""

    def some(most: float, share: float = 0.5) -> float:
        return round(rng.uniform(0, most), 4) if rng.random() < share else 0.0

    def every(least: float, most: float, share: float = 0.5) -> float:
        return round(rng.uniform(least, most), 2) if rng.random() < share else 0.0

    return Faults(
        delay=round(rng.choice([0.0005, 0.005, 0.05, 0.3]), 4),
        stalls=some(0.03),
        stall=rng.choice([5.0, 15.0, 60.0]),
        lost_requests=some(0.08),
        lost_replies=some(0.08),
        silence=some(0.5),
        lost_hints=some(0.5),
        outages=every(20, 90, 0.4),
        outage=rng.choice([2.0, 15.0, 45.0]),
        kills=every(10, 90),
        pauses=every(15, 120, 0.4),
        pause=rng.choice([4.0, 12.0, 40.0]),
        deploys=every(15, 90, 0.4),
        downtime=rng.choice([0.1, 3.0, 20.0]),
        clocks=rng.choices(CLOCKS, [4, 2, 3, 1])[0],
        supervised=rng.random() < 0.3,
    )
