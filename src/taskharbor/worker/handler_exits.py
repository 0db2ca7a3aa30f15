"""Keeps `sys.exit()` in a task that a handler made inside its job (F11).

asyncio lets `SystemExit` and `KeyboardInterrupt` of any task end the loop: in such tasks they become `HandlerExit`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

from taskharbor.worker.context import running


class HandlerExit(Exception):
    """A task of a handler tried to end the process."""


class _Containing:
    """A task factory in front of the loop's own."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Future[Any]:
        if running() is not None:
            coroutine = _contained(coroutine)
        if self._inner is not None:
            return self._inner(loop, coroutine, **options)  # type: ignore[no-any-return]
        return asyncio.Task(coroutine, loop=loop, **options)


def contain_exits(loop: asyncio.AbstractEventLoop) -> None:
    """Install the factory, once; it changes nothing for tasks made outside of a job, so it stays."""
    if not isinstance(loop.get_task_factory(), _Containing):
        loop.set_task_factory(_Containing(loop.get_task_factory()))


async def _contained(coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any]) -> Any:
    try:
        return await coroutine  # type: ignore[misc]
    except (SystemExit, KeyboardInterrupt) as error:
        raise HandlerExit(f"{type(error).__name__}: {error}") from error
