"""A worker as the block that it works beside sees it."""

from __future__ import annotations

from msgspec import Struct

from taskharbor.worker.worker import Worker


class RunningWorker(Struct, frozen=True, eq=False):
    """What `harbor.worker()` gives: a worker that works until the end of the block. May be asked from any thread."""

    _worker: Worker

    def __repr__(self) -> str:
        return f"<RunningWorker {self.id}>"

    @property
    def id(self) -> str:
        """Its name in the store: host, process and a random part."""
        return self._worker.id

    @property
    def busy(self) -> int:
        """How many handlers are running."""
        return self._worker.busy

    @property
    def finished(self) -> int:
        """How many runs were settled."""
        return self._worker.finished
