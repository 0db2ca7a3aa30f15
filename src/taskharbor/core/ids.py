"""UUIDv7 job ids: ordered by time, made from the time and randomness that the caller hands in (R2)."""

from __future__ import annotations


def uuid7(milliseconds: int, randomness: int) -> str:
    """The UUIDv7 of a Unix time in milliseconds and 74 random bits."""
    high = (milliseconds & 0xFFFF_FFFF_FFFF) << 16 | 0x7000 | (randomness >> 62) & 0xFFF
    low = 0x8000_0000_0000_0000 | randomness & 0x3FFF_FFFF_FFFF_FFFF
    text = f"{high:016x}{low:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
