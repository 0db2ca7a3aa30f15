"""Opening a file safely, waiting for locks of other processes, and translating errors of apsw."""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import apsw

from taskharbor.drivers.sqlite.files import Identity, identity_or_none
from taskharbor.drivers.sqlite.paths import unusable
from taskharbor.drivers.sqlite.schema import check_identity, migrate
from taskharbor.errors import ConfigError, DriverError, DriverUnavailable, StoreCorrupt, StoreGone

PATIENCE = 20.0
SHORTEST_PAUSE, LONGEST_PAUSE = 0.0005, 0.01
# A commit writes whole pages to the log, so a job that is stored by itself costs less with small ones; with 1 KiB a
# drain is slower. A file keeps the size it was made with.
PAGE_BYTES = 2048
# The log before it is copied into the file: a drain rewrites the same pages, so rare checkpoints copy less.
CHECKPOINT_BYTES = 16 * 1024 * 1024
CACHE_KIB = 16384
WAL_KEPT_BYTES = 64 * 1024 * 1024

O_CLOEXEC: int = getattr(os, "O_CLOEXEC", 0)  # POSIX only

# Closing any descriptor of a file drops all locks that this process holds on it, so a file is never created (and that
# descriptor closed) while another thread opens it.
_opening = threading.Lock()


def open_store(path: Path, synchronous: str, busy: BusyHandler | None = None) -> tuple[apsw.Connection, Identity]:
    """Open a store with the newest schema, and return its file too. A file that is not ours is not written to."""
    try:
        db, file = _open(path)
    except apsw.Error as error:
        raise failure(error, path) from error
    try:
        db.set_busy_handler(busy or BusyHandler())
        if db.readonly("main"):
            raise ConfigError(f"{path} is read-only for this user: make the file and its folder writable")
        check_identity(db, path)
        _use_wal(db, path)
        _set_up(db, synchronous)
        migrate(db, path)
    except apsw.Error as error:
        db.close()
        raise failure(error, path) from error
    except BaseException:
        db.close()
        raise
    return db, file


def _open(path: Path) -> tuple[apsw.Connection, Identity]:
    with _opening:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | O_CLOEXEC, 0o600))
        except FileExistsError as error:
            if not path.is_file():
                raise unusable(path, error) from None
        except OSError as error:
            raise unusable(path, error) from None
        file = identity_or_none(path)
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=256)
        if file is None or identity_or_none(path) != file:
            db.close()
            raise StoreGone(f"{path} was replaced while it was being opened: open it again")
        return db, file


def _use_wal(db: apsw.Connection, path: Path) -> None:
    """Let readers and the writer work side by side. SQLite does not wait by itself to switch the mode of a file."""
    db.pragma("page_size", PAGE_BYTES)  # no effect on a file that has pages already
    mode = patiently(lambda: db.pragma("journal_mode", "wal"))
    if mode != "wal":
        raise ConfigError(f"the file system of {path} cannot share memory between processes: use a local disk")


def _set_up(db: apsw.Connection, synchronous: str) -> None:
    # Without this, SQLite prepares a statement again whenever a parameter near a partial index changes.
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    db.pragma("synchronous", synchronous)
    db.pragma("cache_size", -CACHE_KIB)
    db.pragma("temp_store", "memory")
    db.pragma("wal_autocheckpoint", CHECKPOINT_BYTES // int(str(db.pragma("page_size"))))
    db.pragma("journal_size_limit", WAL_KEPT_BYTES)


def patiently(act: Callable[[], object]) -> object:
    """Retry an act that SQLite refuses at once while another process holds a lock, until PATIENCE runs out."""
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            return act()
        except apsw.BusyError:
            if time.monotonic() > give_up:
                raise
            _pause(0)


class BusyHandler:
    """Short jittered pauses while another process writes: no process starves, and the wait is bounded (X2).

    It ends at `deadline` (monotonic) at the latest, which a caller sets before its statements.
    """

    def __init__(self) -> None:
        self.deadline = math.inf
        self._give_up = 0.0

    def __call__(self, pauses_before: int) -> bool:
        if pauses_before == 0:
            self._give_up = min(time.monotonic() + PATIENCE, self.deadline)
        elif time.monotonic() > self._give_up:
            return False
        _pause(pauses_before)
        return True


def _pause(pauses_before: int) -> None:
    longest = min(LONGEST_PAUSE, SHORTEST_PAUSE * 2 ** min(pauses_before // 4 + 2, 5))
    time.sleep(random.uniform(SHORTEST_PAUSE, longest))


def concerns_all(error: BaseException) -> bool:
    """Whether an error concerns the store, not one request: trying each request alone would only wait again."""
    return isinstance(
        error,
        apsw.BusyError | apsw.IOError | apsw.CantOpenError | apsw.CorruptError | apsw.NotADBError | apsw.ReadOnlyError,
    )


def failure(error: BaseException, path: Path) -> BaseException:
    """Translate an error of apsw into one that names the fix; return others as they are."""
    match error:
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreCorrupt(
                f"{path} is damaged or not a SQLite file ({error}): restore a backup or use another file"
            )
        case apsw.BusyError() | apsw.LockedError() | apsw.ProtocolError():
            return DriverUnavailable(
                f"{path} was locked for {PATIENCE:g} s: another process holds a long transaction on it; end that one"
            )
        case apsw.FullError():
            return DriverUnavailable(f"the disk of {path} is full: make room ({error})")
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError():
            return DriverUnavailable(f"cannot open or write {path}: check that file and folder are writable ({error})")
        case apsw.IOError():
            return DriverUnavailable(f"reading or writing {path} failed: check the disk ({error})")
        case apsw.Error():
            return DriverError(f"{path}: {error}")
        case _:
            return error
