"""Forks: a child inherits SQLite's memory of locks that it does not hold, so it must leave the parent's file alone.

No thread is inside SQLite while the process forks. In the child every open connection is leaked on purpose: closing it,
or opening the same file again, would mix up the locks of the two processes.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Protocol

import apsw

from taskharbor.drivers.sqlite.files import Identity, identity
from taskharbor.errors import DriverForked

FIX = "use the harbor only after the fork, call harbor.close() before it, or start processes with the spawn method"
LONGEST_WAIT = 5.0


class Holder(Protocol):
    """The owner of a connection."""

    db: apsw.Connection | None
    file: Identity | None
    forked: bool

    def hold_still(self, timeout: float) -> bool:
        """Keep out of SQLite until `go_on`; False if that took too long."""
        ...

    def go_on(self) -> None:
        """Continue after the fork."""
        ...


holders: set[Holder] = set()
_still: list[Holder] = []
_inherited: set[Identity] = set()


def refuse_inherited(path: Path) -> None:
    """Refuse to open a file that was open when this process was forked."""
    if _inherited and path.exists() and identity(path) in _inherited:
        raise DriverForked(f"{path} was open when this process was forked: {FIX}")


def _before() -> None:
    _still.extend(holder for holder in list(holders) if holder.hold_still(LONGEST_WAIT))


def _in_parent() -> None:
    while _still:
        _still.pop().go_on()


def _in_child() -> None:
    _still.clear()
    for holder in holders:
        holder.forked = True
        if holder.db is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder.db))
        if holder.file is not None:
            _inherited.add(holder.file)
    holders.clear()


if hasattr(os, "register_at_fork"):  # where processes do not fork, nothing is inherited
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
