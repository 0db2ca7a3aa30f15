"""The worker as `harbor.worker()` shows it to the code beside it."""

from __future__ import annotations

from msgspec import Struct

from taskharbor.worker.worker import Worker


class RunningWorker(Struct, frozen=True, eq=False):
    """A worker that works until the end of its `harbor.worker()` block. Its properties may be read from any thread."""

    _worker: Worker

    def __repr__(self) -> str:
        return f"<RunningWorker {self.id}>"

    @property
    def id(self) -> str:
        """Its name in the store: host, process and a random part."""
        return self._worker.id

    @property
    def busy(self) -> int:
        """The number of running handlers."""
        return self._worker.busy

    @property
    def finished(self) -> int:
        """The number of settled runs."""
        return self._worker.finished
