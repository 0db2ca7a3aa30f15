"""Begins the tasks of a batch by one callback of the event loop.

A new task asks its loop to be called soon. A handle and a turn in the loop's queue for each are a tenth of the CPU time
of a short job. While the tasks of a batch are made, their requests are collected; one callback then begins them all, in
order. From Python 3.12 on tasks begin eagerly, and there is nothing to collect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any

Begin = tuple[Callable[[], object], Context]


class TaskStarts:
    """A context in which tasks are made, and nothing else is done.

    It leaves a loop alone that is debugged, patched by other code or not written in Python.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._collected: list[Begin] = []
        attributes: dict[str, Any] = getattr(loop, "__dict__", {})
        is_plain = isinstance(loop, asyncio.BaseEventLoop) and "call_soon" not in attributes and not loop.get_debug()
        self._attributes = attributes if is_plain else {}

    def __enter__(self) -> None:
        self._attributes["call_soon"] = self._collect

    def __exit__(self, *_: object) -> None:
        del self._attributes["call_soon"]
        if self._collected:
            collected, self._collected = self._collected, []
            self._loop.call_soon(self._begin, collected)

    def _collect(self, callback: Callable[[], object], *, context: Context) -> None:
        self._collected.append((callback, context))

    def _begin(self, collected: list[Begin]) -> None:
        left = iter(collected)
        try:
            for callback, context in left:
                context.run(callback)
        finally:  # Ctrl-C passes through the loop; the other tasks begin anyway
            for callback, context in left:
                self._loop.call_soon(callback, context=context)
