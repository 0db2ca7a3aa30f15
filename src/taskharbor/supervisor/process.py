"""A worker process as its supervisor sees it: started, signalled, reaped, and its messages read."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Collection, Sequence
from contextlib import suppress

from taskharbor.supervisor.link import VARIABLE
from taskharbor.supervisor.messages import URGENT, Inbox, WorkerMessage, WorkerReady

CHUNK = 65536


class WorkerProcess:
    """One child. It has a process group of its own, so that a Ctrl-C reaches it only through its supervisor."""

    def __init__(self, command: Sequence[str]) -> None:
        self.ready: WorkerReady | None = None
        self._inbox = Inbox()
        self.socket, theirs = socket.socketpair()
        self.socket.setblocking(False)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, VARIABLE: str(theirs.fileno())},
                    pass_fds=[theirs.fileno()],
                    process_group=0,
                )
            except BaseException:
                self.socket.close()
                raise
        self.pid = self._process.pid
        self.silent = False  # it has closed its end; the process may live for a moment longer

    def received(self) -> list[WorkerMessage]:
        """All messages that have arrived by now."""
        messages: list[WorkerMessage] = []
        try:
            while data := self.socket.recv(CHUNK):
                messages += self._inbox.feed(data)
            self.silent = True
        except BlockingIOError:
            pass
        except OSError:  # reset, by a process that died with data unread
            self.silent = True
        return messages

    def stop(self, *, urgent: bool) -> None:
        """Ask it to stop: gracefully, or without waiting for its handlers."""
        if urgent:
            with suppress(OSError):  # it has ended, or does not read
                self.socket.send(URGENT)
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it by force."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has not been reaped, so its number is still its own
            self._process.send_signal(number)

    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs. The first answer reaps it."""
        return self._process.poll()

    def end_group(self) -> None:
        """Kill what the handlers of a dead worker have started: their jobs will run elsewhere."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the socket of a process that has ended."""
        self.socket.close()


def reap_orphans(own: Collection[int]) -> None:
    """Reap processes that PID 1 inherits when their parents die, but none of its `own` children."""
    if os.getpid() != 1 or not hasattr(os, "waitid"):
        return
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid not in own:
            os.waitpid(ended.si_pid, 0)
