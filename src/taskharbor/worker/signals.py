"""Signals that stop a worker or a command in the foreground (X6); on Windows, event loops handle none."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

from taskharbor.core.durations import length


def draining(busy: int, grace: float) -> str:
    """Describe what a stopping worker waits for."""
    if not busy:
        return "no job is running"
    jobs, them = ("1 job is", "it") if busy == 1 else (f"{busy} jobs are", "them")
    return f"{jobs} running; waiting up to {length(grace)} for {them}; a second signal stops at once"


@contextmanager
def stop_signals(stop: Callable[[], None]) -> Generator[None]:
    """SIGTERM and SIGINT call `stop` inside the block, if this is the main thread of a POSIX process."""
    loop = asyncio.get_running_loop()
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError):
                handler = signal.getsignal(number)
                loop.add_signal_handler(number, stop)
                before[number] = handler
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler or signal.SIG_DFL)


def on_end_signals(stop: Callable[[], object]) -> None:
    """Ctrl-C, a kill or a closed terminal call `stop` from now on, where the system has such signals."""
    loop = asyncio.get_running_loop()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if (number := getattr(signal, name, None)) is not None:
            with suppress(NotImplementedError):
                loop.add_signal_handler(number, stop)
