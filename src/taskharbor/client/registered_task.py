"""A registered task: its name, its handler, and the default options of its jobs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any

from taskharbor.client.options import JobOptions
from taskharbor.client.settings import Settings
from taskharbor.core.codec import Signature
from taskharbor.core.job import NewJob
from taskharbor.core.retry import Retry


class Registered:
    """The handler behind a name. Its signature is read when first needed, so that it may refer to later types.

    `process`: each run has a process of its own, which may use so many bytes of `memory`. `usual` is what its jobs have
    in common under the settings beside it, once one was built; replaced as a whole, as threads share it.
    """

    def __init__(
        self,
        name: str,
        handler: Callable[..., Any],
        retry: Retry,
        options: JobOptions,
        *,
        process: bool = False,
        memory: int | None = None,
    ) -> None:
        self.name = name
        self.handler = handler
        self.retry = retry
        self.options = options
        self.process = process
        self.memory = memory
        self.usual: tuple[Settings, NewJob] | None = None
        self.is_async = inspect.iscoroutinefunction(handler)

    @cached_property
    def signature(self) -> Signature:
        """The codec of the handler's parameters and result."""
        return Signature(self.name, self.handler)

    def named(self, payload: bytes) -> dict[str, Any]:
        return self.signature.named(payload)


async def _join() -> None:
    """No-op: exists only to be waited on."""


# Known to every worker. If many steps of a workflow wait for many others, all of them wait for one of these.
JOIN = Registered("taskharbor.join", _join, Retry(), {})
BUILT_IN = {JOIN.name: JOIN}
