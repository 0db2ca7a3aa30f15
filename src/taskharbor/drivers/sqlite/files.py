"""Whether the files of an open store are still where they were (X9).

SQLite goes on in a file that was deleted, renamed or replaced, and says nothing: nobody else would see what is written.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import apsw

# A look at all three files, so that requests one after the other do not pay for it each time.
LOOK_EVERY = 0.5

Identity = tuple[int, int]


def identity(path: Path | str) -> Identity:
    """The file itself, whatever it is called."""
    found = os.stat(path)  # noqa: PTH116  a Path would be turned into text each time, after every write
    return found.st_dev, found.st_ino


def identity_or_none(path: Path | str) -> Identity | None:
    """The file itself, if there is one. What cannot be looked at for other reasons is an OSError."""
    try:
        return identity(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


class Files:
    """The file of the jobs, and the two that SQLite keeps beside it while any process has it open."""

    def __init__(self, path: Path, opened: Identity, db: apsw.Connection) -> None:
        # A name of an open descriptor is no place where a file could be put back.
        name = db.filename if path.is_relative_to("/dev") or path.is_relative_to("/proc") else str(path)
        beside = [(each, identity_or_none(each)) for each in (db.filename_wal, f"{db.filename}-shm")]
        self._jobs = (name, opened)
        self._known = [self._jobs, *((each, found) for each, found in beside if found is not None)]
        self._looked = time.monotonic()

    def wrong_now_and_then(self) -> str | None:
        """What became of the files, looked at from time to time."""
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY:
            return None
        self._looked = now
        return self.wrong()

    def wrong(self) -> str | None:
        """What became of the files, at this moment: a commit that is in a deleted log only is one that is lost."""
        return next((wrong for path, opened in self._known if (wrong := _wrong(path, opened)) is not None), None)

    def is_away(self) -> bool:
        """Whether there is no file of that name any more, so that the one that is open may have been moved."""
        with suppress(OSError):
            return identity_or_none(self._jobs[0]) is None
        return False


def _wrong(path: str, opened: Identity) -> str | None:
    try:
        found = identity_or_none(path)
    except OSError:  # such as a folder that may no longer be searched: that says nothing about the file
        return None
    if found == opened:
        return None
    became = "deleted or moved" if found is None else "replaced by another file"
    return (
        f"{path} was {became} while it was open: nobody else would see what is written now. Stop every process that "
        "uses it, put the right file in its place (not beside the -wal and -shm files of another), and start them again"
    )
