"""Requests as bytes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from limits import LIMIT
from taskharbor.drivers.redis.wire import packed

# `filter` marks SIGINT as received and `map` calls hiredis, with no bytecode in between at which Python could run the
# handler: what happens if a signal comes after hiredis was called.
STRUCK = """
from _thread import interrupt_main
from itertools import chain
from signal import SIGINT
from taskharbor.drivers.redis import wire

pack = wire._pack
wire._pack = lambda words: next(map(pack, chain(filter(interrupt_main, [SIGINT]), [words])))
try:
    wire.packed(("EVALSHA", b"sha", 1, 0.5))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_numbers_are_text() -> None:
    assert packed(("é", b"\xff", -12, 0.5)) == b"*4\r\n$2\r\n\xc3\xa9\r\n$1\r\n\xff\r\n$3\r\n-12\r\n$3\r\n0.5\r\n"


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError):
        packed((True,))


def test_an_interrupt_inside_of_hiredis_is_an_exception() -> None:
    """P1: not a crash."""
    done = subprocess.run([sys.executable, "-c", STRUCK], capture_output=True, text=True, check=False, timeout=LIMIT)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
