"""`worker --reload`, for development: a parent polls file times and restarts its worker when a source file changes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from taskharbor.cli import logs

logger = logging.getLogger("taskharbor.reload")
PERIOD = 0.3
SKIPPED = {"__pycache__", "node_modules", "site-packages"}


def supervise(arguments: list[str], log_level: str) -> int:
    """Run `taskharbor` with these arguments and restart it after every change; return the last exit code."""
    logs.configure(log_level)
    watcher = Reloader([sys.executable, "-m", "taskharbor", *arguments], Path.cwd())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, watcher.pass_on)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # not under nohup
        signal.signal(signal.SIGHUP, watcher.hang_up)
    return watcher.run()


class Reloader:
    """Keeps one child process running the newest code."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._command = command
        self._folder = folder
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        """Forward a signal to the child, which has its own process group, so that it gets a Ctrl-C only once."""
        self._stopping = True
        if self._child is not None:
            self._child.send_signal(number)

    def hang_up(self, number: int, frame: FrameType | None) -> None:
        """The terminal was closed: stop the child, which is not in its group, instead of leaving it behind."""
        self.pass_on(signal.SIGTERM, frame)

    def run(self) -> int:
        """Run until a signal arrives."""
        code = 0
        while not self._stopping:
            before = times(self._folder)
            child = self._start()
            changed = self._changed_file(before, child)
            if changed is not None:
                logger.info("reload: %s changed", changed.relative_to(self._folder))
            if child.poll() is None and not self._stopping:
                child.terminate()
            code = child.wait()
        return code

    def _start(self) -> subprocess.Popen[bytes]:
        self._child = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, process_group=0)
        if self._stopping:  # a signal arrived while it was starting
            self._child.terminate()
        return self._child

    def _changed_file(self, before: dict[Path, int], child: subprocess.Popen[bytes]) -> Path | None:
        """Wait for a change, even if the child has ended by itself."""
        reported = False
        while not self._stopping:
            if child.poll() is not None and not reported:
                logger.warning("reload: the worker ended with exit code %d; waiting for a change", child.returncode)
                reported = True
            time.sleep(PERIOD)
            now = times(self._folder)
            if now != before:
                return next(path for path in {**now, **before} if now.get(path) != before.get(path))
        return None


def times(folder: Path) -> dict[Path, int]:
    """The modification time of each source file."""
    return {path: changed for path in sources(folder) if (changed := _time_of(path)) is not None}


def sources(folder: Path) -> Iterator[Path]:
    """The .py files below a folder, except hidden ones and virtual environments."""
    for here, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in SKIPPED and not Path(here, name, "pyvenv.cfg").exists()
        ]
        yield from (Path(here, name) for name in files if name.endswith(".py"))


def _time_of(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
