"""Whole ids for the endings that lists show: found among the newest records, page by page, up to a bound."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from taskharbor.core.short_ids import ending, matching
from taskharbor.errors import ConfigError

SEARCHED = 50_000
NAMED = 5


async def resolve(texts: Sequence[str], pages: AsyncIterator[Sequence[str]], what: str) -> dict[str, str]:
    """The one UUID that each text is the ending of, among the newest; a text without one is left out.

    `ConfigError` if there are several.
    """
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
    return {text: _only(text, [*ids], what) for text, ids in hits.items() if ids}


def _only(text: str, ids: Sequence[str], what: str) -> str:
    if len(ids) > 1:
        named = ", ".join(ids[:NAMED]) + (" …" if len(ids) > NAMED else "")
        raise ConfigError(f"{text!r} is the ending of {len(ids):,} {what} ids: {named}: write more of it")
    return ids[0]
