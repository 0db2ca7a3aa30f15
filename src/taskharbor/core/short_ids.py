"""Short ids: the ending of an id stands for it, because UUIDv7 ids of one day all begin alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

SHORT = 8
SHORTEST = 4
ELLIPSIS = "…"


def endings(ids: Sequence[str]) -> list[str]:
    """The ending to show for each id: all of one length, at least 8, and no two alike."""
    known = set(ids)
    size = SHORT
    while len({id[-size:] for id in known}) < len(known):
        size += 1
    return [id[-size:] for id in ids]


def ending(text: str) -> str | None:
    """The ending that a person wrote, None if it is too short to search for."""
    found = text.removeprefix(ELLIPSIS)
    return found if len(found) >= SHORTEST else None


def matching(ending: str, ids: Iterable[str]) -> list[str]:
    """The ids with this ending."""
    return [id for id in ids if id.endswith(ending)]
