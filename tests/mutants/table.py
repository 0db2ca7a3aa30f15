"""Prints which test caught which mutant at the end of a run, from the records of all processes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

Row = tuple[str, str, tuple[str, ...]]
PRINTED = pytest.StashKey[bool]()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The table, once, if any mutants were tried."""
    found: dict[tuple[str, str], list[str]] = {}
    for report in terminalreporter.stats.get("passed", ()):
        for name, value in getattr(report, "user_properties", ()):
            if name == "mutant":
                found.setdefault((value[0], value[1]), []).extend(value[2])
    if found and not config.stash.get(PRINTED, False):
        config.stash[PRINTED] = True
        terminalreporter.section(f"{len(found)} mutants, all of these caught")
        for line in lines([(*mutant, tuple(by)) for mutant, by in found.items()]):
            terminalreporter.write_line(line)


def lines(rows: list[Row]) -> list[str]:
    """A line for each mutant, then how many there are of each kind."""
    width = max(len(name) for _, name, _ in rows)
    told = [f"{kind:7}  {name:{width}}  {', '.join(by)}" for kind, name, by in sorted(rows)]
    kinds = Counter(kind for kind, _, _ in rows)
    return [*told, ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))]
