"""Shared by the runs: progress, reports of what is missing, and a folder that is kept if something was found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

STARTED = time.monotonic()


class Skipped(Exception):
    """This run is impossible here; the message says why."""


def tell(line: str = "") -> None:
    """A line of progress."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def say(line: str) -> None:
    """A line of progress."""
    tell(f"[{time.monotonic() - STARTED:6.1f} s] {line}")


def need_root(what: str) -> None:
    """Skip unless this is root."""
    if os.geteuid() != 0:
        raise Skipped(f"{what} needs root")


def need(tool: str, package: str) -> str:
    """Where a tool is, or skip."""
    found = shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if found is None:
        raise Skipped(f"there is no {tool} here (Debian: apt-get install {package})")
    return found


def run(*command: str | Path) -> str:
    """Run a command that must go well."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stderr or done.stdout}"
    return done.stdout


@contextmanager
def folder() -> Generator[Path]:
    """A folder of its own, removed at the end unless something went wrong."""
    path = Path(tempfile.mkdtemp(prefix="torture-"))
    try:
        yield path
    except Skipped:
        shutil.rmtree(path)
        raise
    except BaseException:
        say(f"what was found is kept in {path}")
        raise
    else:
        shutil.rmtree(path)
