"""What a forked child has to renew: a lock that another thread of the parent held stays locked in it for ever."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def after_fork(thing: T, renew: Callable[[T], object]) -> None:
    """Call `renew(thing)` in every forked child in which the thing still lives."""
    if hasattr(os, "register_at_fork"):
        known = weakref.ref(thing)

        def in_child() -> None:
            if (found := known()) is not None:
                renew(found)

        os.register_at_fork(after_in_child=in_child)
