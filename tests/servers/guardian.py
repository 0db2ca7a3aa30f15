"""A process that keeps one test server: starts it on request, and ends it when no process uses it any more.

Every user holds a connection. The kernel closes those of a process that died, however it died, so that no crash of
pytest leaves a server behind. When the last one is gone, the server is ended and its folder removed.
A program of its own, on the standard library alone: `python guardian.py PREFIX [USER]`, the first user's connection as
stdin. The others find it at `guardian.sock` in its folder. Requests and answers are lines of JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

MEETING_POINT = "guardian.sock"
LOG = "server.log"
GRACE = 10.0
RUN_WITHIN = 100.0  # less than users wait for the answer
POLL = 0.01
SET_DEATH_SIGNAL, SET_ADOPTS_ORPHANS = 1, 36  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER


def prctl(option: int, value: int) -> None:
    """Ask Linux for it; other systems do without."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class Guardian:
    """One folder, at most one server in it."""

    def __init__(self, prefix: str, user: str | None) -> None:
        # Directly below /tmp, because the path of a Unix socket has room for some hundred characters only.
        self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
        self._identity: dict[str, Any] = {}
        if user is not None:
            who = pwd.getpwnam(user)
            os.chown(self.folder, who.pw_uid, who.pw_gid)
            self._identity = {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}
        self._server: subprocess.Popen[bytes] | None = None
        self._end_by = signal.SIGTERM
        self._users = selectors.DefaultSelector()
        self._door = socket.socket(socket.AF_UNIX)
        self._door.setblocking(False)
        self._door.bind(str(self.folder / MEETING_POINT))
        self._door.listen()

    def serve(self, first: socket.socket) -> None:
        """Until the last user has left; that one's connection is closed when everything is cleared away."""
        self._users.register(self._door, selectors.EVENT_READ)
        self._welcome(first)
        last = first
        try:
            while self._used():
                for key, _ in self._users.select():
                    if isinstance(key.fileobj, socket.socket) and key.data is not None and not self._hear(key.data):
                        self._users.unregister(key.fileobj)
                        last = key.fileobj
                        if self._used():
                            last.close()
        finally:
            self._door.close()
            self.end()
            last.close()

    def _used(self) -> bool:
        """Whether a client is connected or connecting."""
        with suppress(BlockingIOError):
            while True:
                self._welcome(self._door.accept()[0])
        return len(self._users.get_map()) > 1

    def _welcome(self, user: socket.socket) -> None:
        user.setblocking(True)
        self._users.register(user, selectors.EVENT_READ, user.makefile("rwb"))

    def _hear(self, line: Any) -> bool:
        """Answer one request; False if the user has left."""
        with suppress(OSError):
            if (request := line.readline()).endswith(b"\n"):
                line.write(json.dumps(self._answer(**json.loads(request))).encode() + b"\n")
                line.flush()
                return True
        with suppress(OSError):  # closing tries to write what could not be written
            line.close()
        return False

    def _answer(self, do: str, **arguments: Any) -> dict[str, Any]:
        verbs: list[Callable[..., Any]] = [self.hello, self.run, self.start, self.signal, self.wait]
        try:
            return {"answer": {verb.__name__: verb for verb in verbs}[do](**arguments)}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def hello(self) -> dict[str, Any]:
        """Where this is, and who."""
        return {"folder": str(self.folder), "pid": os.getpid()}

    def run(self, argv: list[str]) -> int:
        """Run a command to its end; its exit code."""
        process = self._spawn(argv)
        try:
            return process.wait(RUN_WITHIN)
        finally:
            process.kill()
            process.wait(GRACE)

    def start(self, argv: list[str], end_by: int) -> int:
        """Start the server, which `end_by` ends when there is no more use for it; its process id."""
        self._end_by = signal.Signals(end_by)
        # Should the guardian itself be killed, the kernel ends the server.
        self._server = self._spawn(argv, partial(prctl, SET_DEATH_SIGNAL, end_by))
        return self._server.pid

    def _spawn(self, argv: list[str], before: Callable[[], None] | None = None) -> subprocess.Popen[bytes]:
        with (self.folder / LOG).open("ab") as log:
            return subprocess.Popen(
                argv,
                cwd=self.folder,
                env={"LC_ALL": "C", "PATH": os.defpath},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=before,
                **self._identity,
            )

    def signal(self, number: int) -> None:
        """Send the server a signal, if it runs."""
        if self._server is not None:
            self._server.send_signal(number)

    def wait(self, seconds: float) -> int | None:
        """Wait for the end of the server and of all its processes; its exit code, or None if something still runs."""
        if self._server is None:
            return 0
        give_up = time.monotonic() + seconds
        with suppress(subprocess.TimeoutExpired):
            self._server.wait(seconds)
            while self._orphans():
                if time.monotonic() >= give_up:
                    return None
                time.sleep(POLL)
        return self._server.returncode

    def _orphans(self) -> bool:
        """Whether processes of a server that ended are still there; those that ended too are reaped."""
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            return True
        return False

    def end(self) -> None:
        """End the server, gently or not, and remove the folder."""
        self.signal(self._end_by)
        if self.wait(GRACE) is None:
            for child in self._children():
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            self.wait(GRACE)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _children(self) -> list[int]:
        known = [self._server.pid] if self._server is not None and self._server.poll() is None else []
        with suppress(OSError):
            known += map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split())
        return known


def main(prefix: str, user: str | None = None) -> None:
    """Step aside, so that the process that starts a guardian has no child to wait for, and no Ctrl-C reaches it."""
    if os.fork():
        os._exit(0)
    os.setsid()
    prctl(SET_ADOPTS_ORPHANS, 1)
    first = socket.socket(fileno=0)
    try:
        guardian = Guardian(prefix, user)
    except OSError as error:
        first.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
    else:
        guardian.serve(first)


if __name__ == "__main__":
    main(*sys.argv[1:])
