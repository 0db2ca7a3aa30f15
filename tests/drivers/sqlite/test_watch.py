"""How the SQLite driver notices commits: from the kernel where possible, by polling elsewhere."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from taskharbor.drivers.sqlite import watch
from taskharbor.drivers.sqlite.watch import CommitWatcher, KernelWatch

LONG = 30


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")
def test_the_kernel_reports_one_write_per_request(tmp_path: Path) -> None:
    """D13 (WaitForWork): armed once, reported once; a write without a request is not reported."""
    log = tmp_path / "log"
    log.write_bytes(b"")
    notified = threading.Semaphore(0)
    kernel = KernelWatch.on(log, notified.release)
    assert kernel is not None
    with log.open("ab", buffering=0) as file:
        file.write(b"unasked")
        for _ in range(3):
            assert kernel.arm()
            file.write(b"a")
            assert notified.acquire(timeout=LONG)
            file.write(b"unasked")
    kernel.close()
    assert not notified.acquire(blocking=False)


def test_without_a_watch_the_thread_looks_every_few_milliseconds(tmp_path: Path) -> None:
    """D13 (WaitForWork): a file that cannot be watched falls back to looking, and never to spinning."""
    watcher = CommitWatcher(tmp_path / "there is no such file", lambda: None)
    assert watcher.should_look()
    assert watcher.poll_interval() == watch.POLL_EVERY
    watcher.close()


def test_news_make_it_look_often_for_a_moment(tmp_path: Path) -> None:
    """D13 (WaitForWork): the commit is seen a little after the writing, so it looks again and again until found."""
    log = tmp_path / "log"
    log.write_bytes(b"")
    watcher = CommitWatcher(log, lambda: None)
    watcher.should_look()
    quiet = watcher.poll_interval()
    watcher.notified()
    assert watcher.should_look()
    assert watcher.poll_interval() <= min(quiet, watch.POLL_EVERY)
    watcher.found()
    assert watcher.should_look()
    assert watcher.poll_interval() == quiet
    watcher.close()
