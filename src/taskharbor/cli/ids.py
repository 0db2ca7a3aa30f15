"""Ids as people write them: the endings that lists show stand for whole ids."""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.harbor import Harbor

WORKFLOW = "workflow:"


async def whole_id(harbor: Harbor, id: str) -> str:
    """The id of the job that this is the ending of; else what was given."""
    return (await harbor.admin.jobs.aresolve(id))[0]


async def whole_ids(harbor: Harbor, ids: Sequence[str]) -> list[str]:
    """The same for several, each once."""
    return list(dict.fromkeys(await harbor.admin.jobs.aresolve(list(dict.fromkeys(ids)))))


async def place_after(harbor: Harbor, id: str | None) -> str | None:
    """The id of an existing job to go on after."""
    return None if id is None else (await harbor.admin.jobs.aget(await whole_id(harbor, id))).id


async def whole_words(harbor: Harbor, words: Sequence[str]) -> list[str]:
    """Filter words in which `workflow:` names a whole id."""
    return [await _whole_word(harbor, word) for word in words]


async def _whole_word(harbor: Harbor, word: str) -> str:
    if not word.startswith(WORKFLOW):
        return word
    return WORKFLOW + await harbor.admin.workflows.aresolve(word.removeprefix(WORKFLOW))
