"""How many jobs are among the ended, by the ten minutes in which their pages were made.

Pages enter and leave LINE in batches that change these numbers too, so that they are exact: every job is counted here
or in its page.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec
from msgspec import Struct

from taskharbor.drivers.nats.pages import IS_DONE, JobPage, pack
from taskharbor.drivers.nats.store import Streams, StreamWrite, removal


class EndedBucket(Struct, array_like=True, frozen=True, gc=False):
    """Ended jobs by queue: how many are done, dead and cancelled. `newest` is the last birth of a page."""

    queues: dict[str, tuple[int, int, int]]
    pages: int = 0
    newest: int = 0


NO_BUCKET = EndedBucket({})
read_bucket = msgspec.msgpack.Decoder(EndedBucket).decode


def numbers(page: JobPage) -> tuple[int, int, int]:
    """How many jobs of a page are done, dead and cancelled."""
    found = [0, 0, 0]
    for entry in page.entries:
        if entry is not None and entry.state >= IS_DONE:
            found[entry.state - IS_DONE] += 1
    return found[0], found[1], found[2]


class EndedCounts:
    """Changes of the numbers, for one batch."""

    def __init__(self, store: Streams) -> None:
        self._store = store
        self._changes: defaultdict[str, list[tuple[JobPage, int]]] = defaultdict(list)

    def arrive(self, bucket: str, page: JobPage) -> None:
        """A page goes from LINE among the ended."""
        self._changes[bucket].append((page, 1))

    def leave(self, bucket: str, page: JobPage) -> None:
        """A page comes back into LINE."""
        self._changes[bucket].append((page, -1))

    async def writes(self) -> list[StreamWrite]:
        """The writes of the batch that moves the pages."""
        if not self._changes:
            return []
        subjects = {self._store.subjects.bucket(bucket): bucket for bucket in self._changes}
        found = await self._store.read(subjects)
        writes: list[StreamWrite] = []
        for subject, bucket in subjects.items():
            stored = found[subject]
            after = _changed(read_bucket(stored.body) if stored.body else NO_BUCKET, self._changes[bucket])
            writes.append(
                StreamWrite(subject, pack(after), stored.revision) if after.pages else removal(subject, stored.revision)
            )
        return writes


def _changed(before: EndedBucket, changes: list[tuple[JobPage, int]]) -> EndedBucket:
    queues: dict[str, Counter[int]] = {queue: Counter(dict(enumerate(known))) for queue, known in before.queues.items()}
    pages, newest = before.pages, before.newest
    for page, sign in changes:
        counted = queues.setdefault(page.queue, Counter())
        for index, number in enumerate(numbers(page)):
            counted[index] += sign * number
        pages += sign
        newest = max(newest, page.born)
    left = {queue: (known[0], known[1], known[2]) for queue, known in queues.items() if any(known.values())}
    return EndedBucket(left, max(pages, 0), newest)
