"""Sizes of memory: `"512 MiB"` or a number of bytes, read and shown."""

from __future__ import annotations

import re

from taskharbor.errors import ConfigError

Size = int | str
_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}  # as powers of two
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT])(?:i?B)?\s*|\s*(\d+)\s*(?:B|bytes)?\s*", re.IGNORECASE)
_MOST = 1 << 62


def size(name: str, value: object) -> int:
    """The bytes of a size, or `ConfigError` with the ways to write one. MB and MiB both mean 1024 × 1024 bytes."""
    number: float | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and (found := _SIZE.fullmatch(value)) is not None:
        number = int(found[3]) if found[1] is None else float(found[1]) * 2 ** _UNITS[found[2].upper()]
    if number is None or not 1 <= number <= _MOST:
        raise ConfigError(f'{name} must be text such as "512 MiB" or a number of bytes from 1 up, not {value!r}')
    return int(number)


def shown_size(number: int) -> str:
    """A size for people: `512 MiB`, `1.5 GiB`, `300 bytes`."""
    for unit in ("T", "G", "M", "K"):
        if number >= 2 ** _UNITS[unit]:
            return f"{number / 2 ** _UNITS[unit]:.1f}".removesuffix(".0") + f" {unit}iB"
    return f"{number} {'byte' if number == 1 else 'bytes'}"
