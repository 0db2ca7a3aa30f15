"""Wake-up hints of a driver: never needed, so their failures are ignored."""

from __future__ import annotations

import asyncio
from typing import Any


def discard(hint: asyncio.Future[Any]) -> None:
    """Cancel a hint, however it ended: the next real operation meets the same trouble and reports it."""
    if not hint.cancel() and not hint.cancelled():
        hint.exception()
