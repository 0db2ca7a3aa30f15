"""A worker process as its supervisor sees it."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from select import select

import pytest

from taskharbor.supervisor.messages import Beat, WorkerMessage
from taskharbor.supervisor.process import WorkerProcess, reap_orphans

PRELUDE = """
import os, time
fd = int(os.environ["TASKHARBOR_SUPERVISOR"])

def tell(number):
    os.write(fd, b'{"type":"beat","finished":%d,"memory":0}\\n' % number)

"""


@contextmanager
def process(code: str) -> Generator[WorkerProcess]:
    """A child that runs this code, with its end of the socket as `fd`."""
    child = WorkerProcess([sys.executable, "-c", PRELUDE + code])
    try:
        yield child
    finally:
        child.kill()
        while child.exit_code() is None:
            time.sleep(0.01)
        child.close()


def received(child: WorkerProcess, number: int) -> list[WorkerMessage]:
    """Wait for so many messages."""
    found: list[WorkerMessage] = []
    give_up = time.monotonic() + 30
    while len(found) < number:
        assert time.monotonic() < give_up
        found += child.received()
        time.sleep(0.01)
    return found


def test_half_a_message_is_not_the_end() -> None:
    """L9: a message may arrive in pieces; the end has come when the child has closed its socket."""
    halves = """os.write(fd, b'{"type":"beat",'); os.read(fd, 1); os.write(fd, b'"finished":1,"memory":2}\\n')"""
    with process(halves) as child:
        assert select([child.socket], [], [], 30)[0]
        assert child.received() == []
        assert not child.silent
        child.socket.send(b"x")
        assert received(child, 1) == [Beat(finished=1, memory=2)]
        assert select([child.socket], [], [], 30)[0]
        assert child.received() == []
        assert child.silent


def test_a_child_has_a_group_of_its_own() -> None:
    """X6: a Ctrl-C reaches it through its supervisor only, once."""
    with process("tell(os.getpgid(0))") as child:
        assert received(child, 1) == [Beat(finished=child.pid, memory=0)]


def test_the_sockets_of_the_supervisor_are_not_inherited() -> None:
    """X6: or a child would not notice that the supervisor has died."""
    with process("time.sleep(600)") as first, process("tell(len(os.listdir('/proc/self/fd')))") as second:
        [beat] = received(second, 1)
        assert isinstance(beat, Beat)
        assert beat.finished == 5, "stdin, stdout, stderr, its socket, and the listing itself"
        assert first.exit_code() is None


def test_a_command_that_cannot_be_started_leaves_nothing_open() -> None:
    """X5: the error is the caller's."""
    with pytest.raises(OSError, match="nowhere"):
        WorkerProcess(["/nowhere"])


def test_only_pid_1_reaps_orphans() -> None:
    """X6: elsewhere the children of others are none of its business."""
    with process("pass") as child:
        reap_orphans([])
        while child.exit_code() is None:
            time.sleep(0.01)
        assert child.exit_code() == 0
