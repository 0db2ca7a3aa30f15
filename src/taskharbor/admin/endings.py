"""Short ids: finds the whole id for an ending, among the newest records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from taskharbor.core.short_ids import ending, matching
from taskharbor.errors import ConfigError

SEARCHED = 50_000
NAMED = 5


async def resolve(texts: Sequence[str], pages: AsyncIterator[Sequence[str]], what: str) -> dict[str, str]:
    """The one UUID that each text is the ending of; texts without one are left out. `ConfigError` if several match."""
    wanted = {text: found for text in texts if (found := ending(text)) is not None}
    hits: dict[str, dict[str, None]] = {text: {} for text in wanted}
    searched = 0
    if wanted:
        async for ids in pages:
            searched += len(ids)
            for text, end in wanted.items():
                hits[text] |= dict.fromkeys(matching(end, ids))
            if searched >= SEARCHED:
                break
    for text, uuids in hits.items():
        if len(uuids) > 1:
            named = ", ".join([*uuids][:NAMED]) + (" …" if len(uuids) > NAMED else "")
            raise ConfigError(f"{text!r} is the ending of {len(uuids):,} {what} ids: {named}: write more of it")
    return {text: next(iter(uuids)) for text, uuids in hits.items() if uuids}
