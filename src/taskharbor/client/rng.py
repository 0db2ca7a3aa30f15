"""Randomness for ids, jitter and shuffles."""

from __future__ import annotations

from random import Random

from taskharbor.client.forking import after_fork


def own_rng() -> Random:
    """Randomness of this process: a forked child gets its own, else parent and child would mint the same ids."""
    chance = Random()
    after_fork(chance, Random.seed)
    return chance
