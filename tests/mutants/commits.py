"""Broken commits: a key-value store that compares too little of what a step has read."""

from __future__ import annotations

from collections.abc import Callable

from drivers.kv.reader import Reader

from .mutant import MutantRegistry
from .steps import INTERLEAVINGS

COMMITS = MutantRegistry("step")
mutant = COMMITS.mutant

Right = Callable[[Reader], dict[str, int]]


@mutant((Reader, "revisions"), by=INTERLEAVINGS)
def keys_not_compared(revisions: Right, reader: Reader) -> dict[str, int]:
    """Two clients take the same key."""
    return {name: revision for name, revision in revisions(reader).items() if not name.startswith("key/")}


@mutant((Reader, "revisions"), by=INTERLEAVINGS)
def missing_values_not_compared(revisions: Right, reader: Reader) -> dict[str, int]:
    """A value that was missing when it was read may be there at the commit."""
    return {name: revision for name, revision in revisions(reader).items() if revision}


@mutant((Reader, "revisions"), by=INTERLEAVINGS)
def workflows_not_compared(revisions: Right, reader: Reader) -> dict[str, int]:
    """A workflow grows between the look at its members and the commit."""
    return {name: revision for name, revision in revisions(reader).items() if not name.startswith("workflow/")}


@mutant((Reader, "revisions"), by=INTERLEAVINGS)
def records_not_compared(revisions: Right, reader: Reader) -> dict[str, int]:
    """A step overwrites what another client has done to a job."""
    return {name: revision for name, revision in revisions(reader).items() if not name.startswith("job/")}
