"""Durations, ages and counts for people: `2 h 5 min`, `3 d ago`, `2 jobs`. JSON and logs have exact times."""

from __future__ import annotations

from datetime import datetime

MINUTE, HOUR, DAY = 60, 3600, 86400
_MANY_DAYS = 10
_UNITS = ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1, "s"))


def length(seconds: float) -> str:
    """A duration in its two largest units: `40 ms`, `2.5 s`, `1 min 30 s`, `2 h 5 min`, `3 d 4 h`."""
    if 0 < seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.0005 else "under 1 ms"
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    index = next(index for index, (size, _) in enumerate(_UNITS) if whole >= size)
    parts = _UNITS[index : index + (1 if whole >= _MANY_DAYS * DAY else 2)]
    found: list[str] = []
    for size, unit in parts:
        number, whole = divmod(whole, size)
        if number:
            found.append(f"{number} {unit}")
    return " ".join(found)


def ago(moment: datetime, now: datetime) -> str:
    """How long ago, or in how long, in one unit: `3 d ago`, `119 min ago`, `in 40 s`, `just now`."""
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 1:
        return "just now" if seconds >= 0 else "now"
    size, unit = next((size, unit) for size, unit in _UNITS if abs(seconds) >= 2 * size or size == 1)
    return f"{int(seconds // size):,} {unit} ago" if seconds > 0 else f"in {round(-seconds / size):,} {unit}"


def count(number: int, what: str) -> str:
    """`1 job`, `2,000 jobs`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
