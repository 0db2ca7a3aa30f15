"""The positions of the last claims in their lines, so that the next claims continue there.

Before a bookmark lie the index entries of jobs that were claimed. While an old transaction is open, anywhere in the
database, they cannot be removed, and claims that walk over all of them get slower with every job. A job that appears
before a bookmark (a late commit, a lapsed lease, a higher priority) is found by a full search: within 500 ms (D11), and
at once whenever a claim finds too few jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from taskharbor.drivers.postgres.db import Row

LOOK_EVERY = 0.4
BUSY = 100  # jobs claimed in a row by full claims, before a queue gets a bookmark


class Mark(NamedTuple):
    """A position in the line of one queue and priority."""

    priority: int
    due_at: datetime
    seq: int


class QueueProgress(NamedTuple):
    """The next full search of a queue, the jobs claimed in a row, and the bookmark."""

    look_at: float
    in_a_row: int
    mark: Mark | None


UNKNOWN = QueueProgress(0.0, 0, None)


class Bookmarks:
    """The bookmarks of the queues that one driver claims from."""

    def __init__(self) -> None:
        self._progress: dict[str, QueueProgress] = {}

    def going_on(self, queues: Sequence[str]) -> dict[str, Mark]:
        """The bookmarks at which a claim can continue; empty if it needs a full search."""
        time = asyncio.get_running_loop().time()
        marks: dict[str, Mark] = {}
        for queue in queues:
            known = self._progress.get(queue)
            if known is None or time >= known.look_at:
                return {}
            if known.mark is not None:
                marks[queue] = known.mark
        return marks

    def note(self, queues: Sequence[str], rows: Sequence[Row], limit: int, looked_at: float | None = None) -> None:
        """Remember how far a claim came, and when it was a full search (`looked_at`)."""
        fresh = {row[4]: Mark(row[6], row[10], row[1]) for row in rows if row[-1] is None}  # no lapsed ones among them
        for queue in set(queues):
            look_at, in_a_row, mark = self._progress.pop(queue, UNKNOWN)
            if len(rows) < limit:
                continue
            if looked_at is not None:
                look_at, mark = looked_at + LOOK_EVERY, None
            if in_a_row + len(rows) >= BUSY:
                mark = fresh.get(queue, mark)
            self._progress[queue] = QueueProgress(look_at, in_a_row + len(rows), mark)
