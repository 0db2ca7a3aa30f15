"""UUIDv7 job ids: ordered by time, made from the time and randomness that the caller passes in (R2)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

_TAIL = 12  # hexadecimal digits after the last dash
_END = 1 << 4 * _TAIL


def milliseconds(time: datetime) -> int:
    """A time as ids begin with it."""
    return int(time.timestamp() * 1000)


def uuid7(milliseconds: int, randomness: int) -> str:
    """The UUIDv7 of a Unix time in milliseconds and 74 random bits."""
    return "%08x-%04x-7%03x-%04x-%012x" % (  # noqa: UP031 (faster, and every enqueue makes one)
        milliseconds >> 16 & 0xFFFF_FFFF,
        milliseconds & 0xFFFF,
        randomness >> 62 & 0xFFF,
        0x8000 | randomness >> 48 & 0x3FFF,
        randomness & 0xFFFF_FFFF_FFFF,
    )


class Ids:
    """Ids of one moment: the first is random, each further one is a random distance higher.

    Thousands of ascending ids are cheaper for an index than thousands of scattered ones.
    """

    def __init__(self, milliseconds: int, bits: Callable[[int], int]) -> None:
        self._milliseconds = milliseconds
        self._bits = bits
        self._drawn = ""
        self._head = ""
        self._tail = 0

    def __call__(self) -> str:
        if self._drawn:
            if not self._head:  # only now: most callers want one id
                self._head, self._tail = self._drawn[:-_TAIL], int(self._drawn[-_TAIL:], 16)
            if (tail := self._tail + 1 + self._bits(32)) < _END:
                self._tail = tail
                return self._head + "%012x" % tail  # noqa: UP031 (faster, and thousands at a time)
        self._drawn, self._head = uuid7(self._milliseconds, self._bits(74)), ""
        return self._drawn
