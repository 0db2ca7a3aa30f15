"""The users' side of a guardian: start one or join one, tell it what to do, leave it.

Leaving returns when the guardian has taken note; for the last user, when the server and its folder are gone.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from . import guardian

PATIENCE = 120.0
NOBODY = "nobody"


def unprivileged() -> str | None:
    """The user that servers run as: `nobody` if this is root, because some of them refuse to run as root."""
    return NOBODY if os.geteuid() == 0 else None


class Guarded:
    """A connection to a guardian; while it is open, the server stays."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE)
        self._connection = connection
        self._replies = connection.makefile("rb")
        try:
            found = self.ask("hello")
        except BaseException:
            self._close()
            raise
        self.folder = Path(found["folder"])
        self.pid = int(found["pid"])

    @classmethod
    def start(cls, prefix: str) -> Guarded:
        """A new guardian, with an empty folder below /tmp."""
        ours, theirs = socket.socketpair()
        with theirs:
            program = [sys.executable, "-I", guardian.__file__, prefix, *filter(None, [unprivileged()])]
            quiet = subprocess.DEVNULL
            subprocess.run(program, stdin=theirs.fileno(), stdout=quiet, stderr=quiet, check=True, timeout=PATIENCE)
        return cls(ours)

    @classmethod
    def join(cls, folder: Path) -> Guarded | None:
        """A connection more to the guardian of this folder; None if it has gone, or is about to."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(folder / guardian.MEETING_POINT))
            return cls(connection)
        except OSError:
            connection.close()
            return None

    @property
    def log(self) -> Path:
        """The output of the server."""
        return self.folder / guardian.LOG

    def ask(self, do: str, **arguments: Any) -> Any:
        """Have something done: see the verbs of `Guardian`."""
        self._connection.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
        if not (line := self._replies.readline()):
            raise ConnectionError("the guardian of the test server is gone")
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(f"the guardian of the test server could not {do}: {reply['error']}")
        return reply["answer"]

    def leave(self) -> None:
        """Give the server up."""
        with suppress(OSError):  # a guardian that was killed has left first
            self._connection.shutdown(socket.SHUT_WR)
            self._replies.read()
        self._close()

    def _close(self) -> None:
        self._replies.close()
        self._connection.close()


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Alone among all processes that name this file."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check_reachable(program: Path) -> None:
    """Whether the user that servers run as can reach it."""
    if not program.exists():
        raise RuntimeError(f"{program} is missing: run `make test`, or pip install -r requirements/dev.txt")
    if unprivileged() is None:
        return
    for place in reversed((program, *program.resolve().parents)):
        if not place.stat().st_mode & stat.S_IXOTH:
            raise RuntimeError(
                f"test servers do not run as root, and the user {NOBODY} cannot get past {place}: chmod o+rx it, move "
                "the project to a folder that everyone may enter, or run the tests as another user"
            )
