"""Whole ids for the endings that lists show: found among the newest records, page by page, up to a bound."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from taskharbor.core.short_ids import SHORT, ending, matching
from taskharbor.errors import ConfigError, JobNotFound

SEARCHED = 50_000
NAMED = 5


async def resolve(texts: Sequence[str], pages: AsyncIterator[Sequence[str]], what: str) -> dict[str, str]:
    """The one id that each text is the ending of; a text that no id ends with is left out.

    `ConfigError` if there are several. When the bound is reached, `JobNotFound` for what was not found, and
    `ConfigError` for an ending too short to be taken for the only one.
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
    return {
        text: id for text, ids in hits.items() if (id := _only(text, [*ids], what, searched >= SEARCHED)) is not None
    }


def _only(text: str, ids: Sequence[str], what: str, bounded: bool) -> str | None:
    if len(ids) > 1:
        named = ", ".join(ids[:NAMED]) + (" …" if len(ids) > NAMED else "")
        raise ConfigError(f"{text!r} is the ending of {len(ids):,} {what} ids: {named}: write more of it")
    if not bounded:
        return ids[0] if ids else None
    if not ids:
        raise JobNotFound(
            f"no {what} id ends with {text!r} among the newest {SEARCHED:,}: write the whole id to look further back"
        )
    if len(text) < SHORT:
        raise ConfigError(
            f"{text!r} is too short an ending for more than {SEARCHED:,} {what}s: write {SHORT} characters or more"
        )
    return ids[0]
