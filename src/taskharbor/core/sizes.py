"""Sizes of memory, such as `512 MiB`."""

from __future__ import annotations

import re

from taskharbor.errors import ConfigError

UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def size(text: str) -> int:
    """Parse a size such as `512 MiB`, `512M` or `1.5GiB` to bytes; a bare number means bytes."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*(?:([kmgt])(?:i?b)?|b?)", text.strip(), re.IGNORECASE)
    if found is None:
        raise ConfigError(f"{text!r} is not a size: write a number and KiB, MiB or GiB, such as 512MiB")
    return int(float(found[1]) * UNITS[(found[2] or "").lower()])


def shown_size(number: int) -> str:
    """A size for people: `48 MiB`."""
    for unit in ("GiB", "MiB", "KiB"):
        if number >= UNITS[unit[0].lower()]:
            return f"{number / UNITS[unit[0].lower()]:.3g} {unit}"
    return f"{number} bytes"
