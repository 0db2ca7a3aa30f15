"""Names of new pages: when they were made, and what nobody else draws."""

from __future__ import annotations

from itertools import count
from secrets import token_hex

BUCKET = 600_000_000  # ten minutes


class PageNames:
    """Names that no other process gives, at any time."""

    def __init__(self) -> None:
        self._own, self._numbers = token_hex(8), count()

    def new(self, now: int) -> str:
        """The name of a page that is made now."""
        return f"{max(now, 0) // BUCKET:x}_{self._own}{next(self._numbers):x}"
