"""Randomness for ids, jitter and shuffles."""

from __future__ import annotations

import os
import weakref
from random import Random


def own_chance() -> Random:
    """Randomness of this process: a forked child gets its own, else parent and child would mint the same ids."""
    chance = Random()
    if hasattr(os, "register_at_fork"):
        known = weakref.ref(chance)

        def reseed() -> None:
            if (found := known()) is not None:
                found.seed()

        os.register_at_fork(after_in_child=reseed)
    return chance
