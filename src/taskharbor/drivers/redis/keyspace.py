"""The keys of a namespace."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

PAGE = 1000
SPECIAL = re.compile(r"[*?\[\]\\^]")


def pattern(prefix: str) -> str:
    """The glob that matches all names with this prefix."""
    return SPECIAL.sub(r"\\\g<0>", prefix) + "*"


async def keys(command: Callable[..., Awaitable[Any]], prefix: str) -> AsyncIterator[str]:
    """All keys with this prefix, without it; some may come twice. Each call to the server scans some of the keys."""
    cursor = b"0"
    while True:
        cursor, found = await command("SCAN", cursor, "MATCH", pattern(prefix), "COUNT", PAGE)
        for key in found:
            yield key.decode().removeprefix(prefix)
        if cursor == b"0":
            return
