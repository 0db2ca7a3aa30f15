"""After a fork: reset locks that a parent thread may have held, and randomness that parent and child would share."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")
Renewal = tuple[weakref.ref[Any], Callable[[Any], object]]

_renewals: dict[int, Renewal] = {}  # by the id of the reference, in the order of creation


def after_fork(thing: T, renew: Callable[[T], object]) -> None:
    """Call `renew(thing)` in every forked child, as long as the thing lives; this does not keep it alive."""
    known = weakref.ref(thing, _forget)
    _renewals[id(known)] = (known, renew)


def own_rng() -> Random:
    """A random generator; a forked child seeds its own, or parent and child would mint the same ids."""
    rng = Random()
    after_fork(rng, Random.seed)
    return rng


def _forget(known: weakref.ref[Any]) -> None:
    _renewals.pop(id(known), None)


def _in_child() -> None:
    for known, renew in list(_renewals.values()):
        if (found := known()) is not None:
            renew(found)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)  # once: nothing is ever removed from that list
