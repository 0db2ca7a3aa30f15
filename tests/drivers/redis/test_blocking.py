"""Connections of threads, interrupted before every single bytecode of a call."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Generator
from contextlib import suppress
from itertools import count
from types import FrameType
from typing import Any

import pytest

from servers.valkey import ValkeyServer
from taskharbor.drivers import parse
from taskharbor.drivers.redis import blocking, wire
from taskharbor.drivers.redis.blocking import BlockingLinks
from taskharbor.drivers.redis.scripts import Script, script
from taskharbor.drivers.redis.url import address
from taskharbor.drivers.shared import idle

FILES = {blocking.__file__, idle.__file__, wire.__file__}
PATIENCE = 30.0
ECHO = script("echo", "return ARGV[1]")
_numbers = count()


@pytest.fixture
def links(valkey: ValkeyServer) -> Generator[BlockingLinks]:
    links = BlockingLinks(address(*parse(valkey.url())))
    yield links
    links.close()


def echoes(links: BlockingLinks, echo: Script = ECHO) -> bool:
    """Whether a call gets its own reply."""
    text = str(next(_numbers))
    return bool(links.run(echo, "", (text,), PATIENCE) == text.encode())


def interrupted(nth: int, call: Callable[[], bool], act: Callable[[], None]) -> bool:
    """Make a call and act before its nth bytecode in these files; return whether it has so many."""
    left = nth

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in FILES:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                act()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert call()
    finally:
        sys.settrace(before)
    return left <= 0


def warm(links: BlockingLinks) -> bool:
    """A call on a connection that is open."""
    return echoes(links)


def cold(links: BlockingLinks) -> bool:
    """A call that connects."""
    assert not links._connections._idle
    return echoes(links)


def unknown(links: BlockingLinks) -> bool:
    """A call of a script that the server does not know."""
    return echoes(links, script("echo", f"return ARGV[1] -- {next(_numbers)}"))


def ctrl_c() -> None:
    raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # a connection that was just taken or made
@pytest.mark.parametrize("call", [warm, cold, unknown])
@pytest.mark.parametrize("handler", ["raises", "calls"])
def test_an_interrupt_at_any_bytecode(
    links: BlockingLinks, call: Callable[[BlockingLinks], bool], handler: str
) -> None:
    """P1, X3: later calls, and one made by the signal handler, get their own replies, and no connection leaks."""

    def calls() -> None:
        assert echoes(links)

    for nth in count(1):
        if call is cold:
            links._connections._drop_idle()
        reached = True
        with suppress(KeyboardInterrupt):
            reached = interrupted(nth, lambda: call(links), ctrl_c if handler == "raises" else calls)
        assert echoes(links)
        assert echoes(links)
        if len(links._connections._open) > len(links._connections._idle):
            gc.collect()  # the traceback of an error that the server answered may keep one
        assert len(links._connections._open) == len(links._connections._idle) <= 2
        if not reached:
            assert nth > 100
            return
