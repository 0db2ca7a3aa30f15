"""Why a store cannot be made at a path, and what to do about it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from taskharbor.errors import ConfigError, DriverUnavailable

SHOWN_LIMIT = 200
_NOT_ALLOWED = "this user may not write there; change the permissions of {folder}, or choose another folder"
_WRONG = {
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOENT: "no files can be made in {folder}; choose another folder",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
    errno.ELOOP: "its links lead in a circle; name the file itself",
}
# What may pass without a change of the URL.
_FOR_NOW = {
    errno.ENOSPC: "the disk is full; make room",
    errno.EDQUOT: "the disk quota of this user is used up; make room",
    errno.EMFILE: "this process has too many open files; close some, or raise the limit (ulimit -n)",
    errno.ENFILE: "this machine has too many open files; close some, or raise the limit",
}


def unusable(path: Path, error: OSError) -> ConfigError | DriverUnavailable:
    """The error for a path at which no store can be made or opened, with the cause and the fix."""
    name = os.fspath(path)
    shown = name if len(name) <= SHOWN_LIMIT else f"{name[:SHOWN_LIMIT]}…"
    kind = DriverUnavailable if error.errno in _FOR_NOW else ConfigError
    return kind(f"cannot use {shown} as a store: {_why(path, error)}")


def _why(path: Path, error: OSError) -> str:
    mode = _mode(path)
    if S_ISDIR(mode):
        return f"it is a folder; name a file in it, such as {path / 'taskharbor.db'}"
    if mode:
        return "it is not an ordinary file; choose another name"
    if _mode(path, follow_symlinks=False):
        return "it is a link to something that is not there; name the file itself"
    if file := next((folder for folder in path.parents if S_ISREG(_mode(folder))), None):
        return f"{file} is a file, not a folder; choose another folder"
    if error.errno == errno.ENOENT and not S_ISDIR(_mode(path.parent)):
        return f"there is no folder {path.parent}; make it first{_four_slashes(path)}"
    why = (_WRONG | _FOR_NOW).get(error.errno or 0, f"{error.strerror}; choose another folder")
    return why.format(folder=path.parent)


def _four_slashes(path: Path) -> str:
    """A hint if an absolute path was probably meant: sqlite:///var/x.db is relative to the working folder."""
    here = Path.cwd()
    if not path.is_relative_to(here):
        return ""
    meant = Path("/") / path.relative_to(here)
    is_there = S_ISDIR(_mode(meant.parent))
    return f", or write sqlite:///{meant} with four slashes if you mean {meant}" if is_there else ""


def _mode(path: Path, *, follow_symlinks: bool = True) -> int:
    """The mode of a file; zero if there is none, or if it cannot be read."""
    try:
        return path.stat(follow_symlinks=follow_symlinks).st_mode
    except OSError:
        return 0
