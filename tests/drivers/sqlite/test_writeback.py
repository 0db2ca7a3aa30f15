"""The log of a file with `synchronous = NORMAL` is written back before a checkpoint waits for it."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import SimpleQueue

import pytest

from taskharbor.drivers.sqlite import writeback
from taskharbor.drivers.sqlite.writeback import WriteBack, fdatasync

from .turning import LONG, Noop

pytestmark = pytest.mark.skipif(fdatasync is None, reason="this system has no fdatasync")


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> SimpleQueue[str]:
    """The logs that are written back, after every third write."""
    paths = SimpleQueue[str]()
    flush = writeback._flush

    def noted(path: str) -> None:
        try:
            flush(path)
        finally:
            paths.put(path)

    monkeypatch.setattr(writeback, "WRITES", 3)
    monkeypatch.setattr(writeback, "_flush", noted)
    return paths


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "taskharbor log"]


def test_the_log_is_written_back_after_some_writes(flushed: SimpleQueue[str], tmp_path: Path) -> None:
    """G2: by a thread of its own, which ends with the store."""
    noop = Noop(f"{tmp_path / 'jobs.db'}?synchronous=normal")
    noop.task.enqueue(1)
    assert flushed.empty()
    noop.task.enqueue(2)
    assert flushed.get(timeout=LONG) == f"{tmp_path / 'jobs.db'}-wal"
    assert threads()
    noop.harbor.close()
    assert not threads()


def test_a_file_that_syncs_every_commit_needs_none(tmp_path: Path) -> None:
    """G2: FULL is the default."""
    noop = Noop(tmp_path / "jobs.db")
    assert not threads()
    noop.harbor.close()


def test_a_log_that_cannot_be_written_back_is_left_to_sqlite(flushed: SimpleQueue[str], tmp_path: Path) -> None:
    """G2, X9: nothing relies on it; the next write reports what is wrong."""
    log = WriteBack(str(tmp_path / "jobs.db-wal"))
    for _ in range(2):
        for _ in range(3):
            log.wrote()
        flushed.get(timeout=LONG)
    log.close()
    assert not threads()
