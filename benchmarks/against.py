"""Comparing this tree with an earlier revision of itself: the same measures, the two taking turns."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.model import Measure

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 7


class UnknownRevision(Exception):
    """Git knows no such revision; the message is Git's."""


@contextmanager
def checked_out(revision: str) -> Generator[Path]:
    """The tree of a revision, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="before-") as folder:
        tree = Path(folder, "tree")
        try:
            _git("worktree", "add", "--detach", str(tree), revision)
            yield tree
        finally:
            _git("worktree", "prune", "--expire", "now")


def _git(*words: str) -> None:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UnknownRevision(done.stderr.strip())


def compared(measures: Iterable[Measure], revision: str, tree: Path) -> Iterator[Measure]:
    """Our side of each measure against that of the earlier tree. What needs a database made before is left out."""
    for measure in measures:
        ours = measure.sides["ours"]
        if measure.setup is None and ours.database is None:
            before = replace(ours, label=revision, root=str(tree), rounds=None)
            yield Measure(
                measure.key,
                measure.title,
                {"ours": replace(ours, rounds=None), "before": before},
                value=measure.value,
                unit=measure.unit,
                rounds=ROUNDS,
                engine=measure.engine,
            )
