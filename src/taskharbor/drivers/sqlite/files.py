"""Whether the files of an open store are still where they were (X9).

SQLite goes on in a file that was deleted, renamed or replaced, without an error: no other process would see the writes.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import apsw

# Seconds between looks at all three files, so that not every request pays for one. (A look at the log also makes the
# next commit slower: file systems then keep its times more exactly.)
LOOK_EVERY = 0.5
# Seconds after a look in which a blocking write does without one: of a burst, not every write pays for it.
A_MOMENT = 0.001
# A folder that changed this many nanoseconds before a look may change again without another time: some kernel ticks.
SETTLED = 50_000_000

Identity = tuple[int, int]
Stamp = tuple[int, int, int]


def identity(path: Path | str) -> Identity:
    """The identity of a file, independent of its name."""
    found = os.stat(path)  # noqa: PTH116  a Path would be turned into text each time, after every write
    return found.st_dev, found.st_ino


def identity_or_none(path: Path | str) -> Identity | None:
    """The identity of a file, or None if it does not exist; other failures raise OSError."""
    try:
        return identity(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


class Files:
    """The file of the jobs, and the two that SQLite keeps beside it while any process has it open."""

    def __init__(self, path: Path, opened: Identity, db: apsw.Connection) -> None:
        # The name of an open descriptor is not a place to which a file could be moved back.
        name = db.filename if path.is_relative_to("/dev") or path.is_relative_to("/proc") else str(path)
        beside = [(each, identity_or_none(each)) for each in (db.filename_wal, f"{db.filename}-shm")]
        self._jobs = (name, opened)
        self._known = [self._jobs, *((each, found) for each, found in beside if found is not None)]
        self._folder = _common_folder(name, db.filename_wal)
        self._still: Stamp | None = None
        self._looked = time.monotonic()
        self._stamped = 0.0

    def wrong_now_and_then(self) -> str | None:
        """A message if a file was deleted, moved or replaced; checked at most every LOOK_EVERY seconds."""
        return None if time.monotonic() - self._looked < LOOK_EVERY else self._look(self._stamp())

    def wrong_a_moment_ago(self) -> str | None:
        """`wrong` for one of many writes: not checked again within A_MOMENT."""
        return None if time.monotonic() - self._stamped < A_MOMENT else self.wrong()

    def wrong(self) -> str | None:
        """A message if a file was deleted, moved or replaced; checked now, because a commit to a deleted log is lost.

        A file that is deleted, renamed or replaced changes its folder. If that has not changed, neither have they.
        """
        stamp = self._stamp()
        self._stamped = time.monotonic()
        if stamp is not None and stamp == self._still and time.monotonic() - self._looked < LOOK_EVERY:
            return None
        return self._look(stamp)

    def _look(self, stamp: Stamp | None) -> str | None:
        self._still = stamp if stamp is not None and stamp[2] < time.time_ns() - SETTLED else None
        self._looked = time.monotonic()
        return next((wrong for path, opened in self._known if (wrong := _wrong(path, opened)) is not None), None)

    def _stamp(self) -> Stamp | None:
        """The folder and when it changed last; None if that says nothing about the files."""
        if self._folder is None:
            return None
        try:
            found = os.stat(self._folder)  # noqa: PTH116  as above
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns

    def is_away(self) -> bool:
        """Whether no file has that name now, so that the open one may have been moved."""
        with suppress(OSError):
            return identity_or_none(self._jobs[0]) is None
        return False


def _common_folder(jobs: str, log: str) -> str | None:
    """The folder of all files; None if they have none in common, as with a symbolic link to the file."""
    folder, beside = Path(jobs).parent, Path(log).parent
    is_common = not Path(jobs).is_symlink() and identity_or_none(folder) == identity_or_none(beside)
    return str(folder) if is_common else None


def _wrong(path: str, opened: Identity) -> str | None:
    try:
        found = identity_or_none(path)
    except OSError:  # such as a folder without permission to search: nothing is known about the file
        return None
    if found == opened:
        return None
    became = "deleted or moved" if found is None else "replaced by another file"
    return (
        f"{path} was {became} while it was open: no other process would see what is written now. Stop every process "
        "that uses it, put the right file in its place (not beside the -wal and -shm files of another), and start again"
    )
