"""Short ids: the ending of a UUID identifies it, because UUIDv7 ids of one day share their beginning.

An id chosen by a caller is only accepted whole: its ending may be the name of something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

SHORT = 8
ELLIPSIS = "…"
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_NIL = "00000000-0000-0000-0000-000000000000"


def endings(ids: Sequence[str]) -> list[str]:
    """The text to show for each id: an ending of 8 characters or more for a UUID, else the whole id; all distinct."""
    uuids = {id for id in ids if UUID.fullmatch(id)}
    others = {id for id in ids if id not in uuids}
    size = SHORT
    # No ending starts with a hyphen: a command would take it for an option.
    while _NIL[-size] == "-" or len({id[-size:] for id in uuids} | others) < len(uuids) + len(others):
        size += 1
    return [id[-size:] if id in uuids else id for id in ids]


def ending(text: str) -> str | None:
    """The ending of a UUID that a user typed; None if it is not one, is too short, or is a whole UUID."""
    found = text.removeprefix(ELLIPSIS)
    if not SHORT <= len(found) < len(_NIL):
        return None
    return found if UUID.fullmatch(_NIL[: -len(found)] + found) else None


def matching(ending: str, ids: Iterable[str]) -> list[str]:
    """The UUIDs among these ids that have this ending."""
    return [id for id in ids if id.endswith(ending) and UUID.fullmatch(id)]
