"""UUIDv7 job ids: ordered by time, made from the time and randomness that the caller passes in (R2)."""

from __future__ import annotations

from collections.abc import Callable

_TAIL = 12  # hexadecimal digits after the last dash
_END = 1 << 4 * _TAIL


def uuid7(milliseconds: int, randomness: int) -> str:
    """The UUIDv7 of a Unix time in milliseconds and 74 random bits."""
    high = (milliseconds & 0xFFFF_FFFF_FFFF) << 16 | 0x7000 | (randomness >> 62) & 0xFFF
    low = 0x8000_0000_0000_0000 | randomness & 0x3FFF_FFFF_FFFF_FFFF
    text = f"{high:016x}{low:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class Ids:
    """Ids of one moment: the first is random, each further one is a random distance higher.

    Thousands of ascending ids are cheaper for an index than thousands of scattered ones.
    """

    def __init__(self, milliseconds: int, bits: Callable[[int], int]) -> None:
        self._milliseconds = milliseconds
        self._bits = bits
        self._head = ""
        self._tail = 0

    def __call__(self) -> str:
        if self._head and (tail := self._tail + 1 + self._bits(32)) < _END:
            self._tail = tail
            return self._head + "%012x" % tail  # noqa: UP031 (faster, and thousands at a time)
        drawn = uuid7(self._milliseconds, self._bits(74))
        self._head, self._tail = drawn[:-_TAIL], int(drawn[-_TAIL:], 16)
        return drawn
