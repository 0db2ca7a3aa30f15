"""A key-value store with revisions, as etcd, NATS or Redis offer it: single reads, and commits that compare first."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any, NamedTuple


class Conflict(Exception):
    """A name is not at the revision that was expected: nothing was written."""


class Entry(NamedTuple):
    """A value, the revision that wrote it, and the one that created it. A removed value keeps its revision."""

    revision: int = 0
    created: int = 0
    value: Any = None


MISSING = Entry()


class Bucket:
    """Immutable values by name. Each call is atomic on its own, as one request to a server is."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._lock = Lock()
        self.revision = 0

    def get(self, name: str) -> Entry:
        """The value of a name, with its revision."""
        return self._entries.get(name, MISSING)

    def scan(self, prefix: str) -> list[Entry]:
        """All entries that have a value and whose names begin with the prefix."""
        with self._lock:
            entries = list(self._entries.items())
        return [entry for name, entry in entries if name.startswith(prefix) and entry.value is not None]

    def commit(self, expected: Mapping[str, int], values: Mapping[str, Any]) -> None:
        """Write all values if every expected revision is still there; None removes one."""
        with self._lock:
            if any(self.get(name).revision != revision for name, revision in expected.items()):
                raise Conflict
            self.revision += bool(values)
            for name, value in values.items():
                before = self.get(name)
                created = self.revision if before.value is None else before.created
                self._entries[name] = Entry(self.revision, created, value)
