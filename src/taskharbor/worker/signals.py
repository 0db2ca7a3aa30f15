"""Signals that stop a worker or a command in the foreground (X6); on Windows, event loops handle none.

A process that a handler forks, such as one of `multiprocessing`, must not inherit the worker's signal handlers: it
could not be terminated, and a signal to it would reach the worker's event loop, whose wake-up descriptor it shares.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

from taskharbor.core.durations import length

_handled: dict[signal.Signals, Any] = {}  # handlers that a forked process must not have
_fork = threading.local()


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
                default_in_forks(number)
    try:
        yield
    finally:
        for number, handler in before.items():
            _handled.pop(number, None)
            loop.remove_signal_handler(number)
            signal.signal(number, handler or signal.SIG_DFL)


def on_end_signals(stop: Callable[[], object]) -> None:
    """Ctrl-C, a kill or a closed terminal call `stop` from now on, where the system has such signals."""
    loop = asyncio.get_running_loop()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if (number := getattr(signal, name, None)) is not None:
            with suppress(NotImplementedError):
                loop.add_signal_handler(number, stop)


def default_in_forks(number: signal.Signals) -> None:
    """Let processes that are forked from this one not have its handler for a signal."""
    _handled[number] = signal.getsignal(number)


def _before_fork() -> None:
    """Hold signals back: one that arrives before the new process has its own handlers would be the worker's."""
    _fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _handled) if _handled else None


def _after_fork() -> None:
    if (mask := getattr(_fork, "mask", None)) is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    if _handled:
        signal.set_wakeup_fd(-1)
    for number, handler in _handled.items():
        if signal.getsignal(number) == handler:
            signal.signal(number, signal.SIG_DFL)
    _handled.clear()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
