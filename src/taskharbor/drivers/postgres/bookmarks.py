"""Where the last claims stood in their lines, so that the next ones go on from there.

Behind a bookmark lie the index entries of jobs that were claimed. While some old transaction is open, anywhere in the
database, they cannot be removed; claims that walk over all of them get slower with every job. What gets in behind a
bookmark or past it (a late commit, a lapsed lease, a higher priority) is found by a look at everything: within 500 ms
(D11), and at once whenever a claim finds too little.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from taskharbor.drivers.postgres.db import Row

LOOK_EVERY = 0.4
BUSY = 100  # jobs in a row, without finding too few even once: only then is there a line to go on in


class Mark(NamedTuple):
    """A place in the line of one queue and priority."""

    priority: int
    due_at: datetime
    seq: int


class QueueProgress(NamedTuple):
    """What is known about a queue."""

    look_at: float
    in_a_row: int
    mark: Mark | None


UNKNOWN = QueueProgress(0.0, 0, None)


class Bookmarks:
    """Of the queues that one driver claims from."""

    def __init__(self) -> None:
        self._progress: dict[str, QueueProgress] = {}

    def going_on(self, queues: Sequence[str]) -> dict[str, Mark]:
        """The queues in which a claim can go on now, and where; none if it has to look at everything."""
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
        """Remember how far a claim came, and when it looked at everything, if so; `rows` are those of a claim."""
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
