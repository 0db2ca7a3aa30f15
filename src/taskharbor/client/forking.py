"""What a forked child has to renew: a lock that another thread of the parent held stays locked in it for ever."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Renewal = tuple[weakref.ref[Any], Callable[[Any], object]]

_renewals: dict[int, Renewal] = {}  # by the reference's id, in the order in which the things were made


def after_fork(thing: T, renew: Callable[[T], object]) -> None:
    """Call `renew(thing)` in every forked child in which the thing still lives; until then nothing is kept alive."""
    known = weakref.ref(thing, _forget)
    _renewals[id(known)] = (known, renew)


def _forget(known: weakref.ref[Any]) -> None:
    _renewals.pop(id(known), None)


def _in_child() -> None:
    for known, renew in list(_renewals.values()):
        if (found := known()) is not None:
            renew(found)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)  # once, for what is registered there stays for ever
