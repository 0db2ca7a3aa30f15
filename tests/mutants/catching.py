"""Letting catchers try mutants: cases of the kit on the memory driver, a SQLite file or a key-value
store, and scenes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from taskharbor.errors import HarborError
from taskharbor.testing import Deadlock

from . import (
    commits,
    cores,
    crews,
    enqueues,
    flows,
    leases,
    lines,
    management,
    processes,
    schedulers,
    settles,
    sqlite,
    steps,
    supervisors,
    tasks,
    turns,
    weaving,
    workers,
)
from .kit import CASES, in_file, in_key_value, in_memory
from .mutant import Mutant
from .scenes import SCENES

REGISTRIES = (
    leases.LEASES,
    settles.SETTLES,
    enqueues.ENQUEUES,
    lines.LINES,
    flows.FLOWS,
    management.MANAGEMENT,
    sqlite.SQLITE,
    cores.CORES,
    workers.WORKERS,
    crews.CREWS,
    processes.PROCESSES,
    weaving.WEAVING,
    schedulers.SCHEDULERS,
    schedulers.TICKING,
    tasks.DRIVERS,
    tasks.SQLITE,
    tasks.MANAGERS,
    steps.STEPS,
    commits.COMMITS,
    supervisors.SUPERVISORS,
    turns.TURNS,
    turns.SQLITE,
)
MUTANTS = [mutant for registry in REGISTRIES for mutant in registry.mutants]

# How a case or a scene fails. Anything else is a mistake of the mutant's.
COMPLAINTS = (AssertionError, ValueError, TimeoutError, HarborError, Deadlock, pytest.fail.Exception)


def ask(catcher: str, kind: str) -> None:
    """Let a case or a scene say what it has to complain about the product as it is now."""
    if catcher in SCENES:
        SCENES[catcher]()
    elif kind == "sqlite":
        with TemporaryDirectory() as folder:
            in_file(CASES[catcher], f"sqlite:///{Path(folder)}/jobs.db?synchronous=normal")
    elif kind == "step":
        in_key_value(CASES[catcher])
    else:
        in_memory(CASES[catcher])


@cache
def check_healthy(catcher: str, kind: str) -> None:
    """Without a mutant, no test complains."""
    ask(catcher, kind)


def complaint_about(mutant: Mutant, catcher: str) -> str | None:
    """The catcher's complaint about the mutant; None if it has not noticed."""
    try:
        with mutant.applied():
            ask(catcher, mutant.kind)
    except COMPLAINTS as complaint:
        said = str(complaint).strip()
        return f"{type(complaint).__name__}: {said}" if said else type(complaint).__name__
    return None
