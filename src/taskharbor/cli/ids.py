"""Ids as users type them: whole, or the endings that lists show."""

from __future__ import annotations

from collections.abc import Sequence

import click

from taskharbor.admin.endings import SEARCHED
from taskharbor.core.filter import Filter, parse
from taskharbor.core.short_ids import ending
from taskharbor.harbor import Harbor

WORKFLOW = "workflow:"
NAMED = 5


async def whole_id(harbor: Harbor, id: str) -> str:
    """The id of the job with this ending; else the text as given."""
    if not id:
        raise click.UsageError("the id is empty: `taskharbor jobs ls` lists the ids of jobs")
    return (await harbor.admin.jobs.aresolve(id))[0]


async def whole_ids(harbor: Harbor, ids: Sequence[str]) -> list[str]:
    """Whole ids for several endings, without duplicates."""
    return list(dict.fromkeys(await harbor.admin.jobs.aresolve(list(dict.fromkeys(ids)))))


async def place_after(harbor: Harbor, id: str | None) -> str | None:
    """The id of an existing job to continue after."""
    return None if id is None else (await harbor.admin.jobs.aget(await whole_id(harbor, id))).id


async def whole_words(harbor: Harbor, words: Sequence[str]) -> list[str]:
    """Filter words with the id after `workflow:` completed."""
    return [await _whole_word(harbor, word) for word in words]


async def meant(harbor: Harbor, words: Sequence[str]) -> Filter:
    """The filter of an act, the same before and after the question; prints the workflow that an ending matched."""
    whole = await whole_words(harbor, words)
    for word, found in zip(words, whole, strict=True):
        if word != found:
            click.echo(f"{word} is {found}.", err=True)
    return parse(tuple(whole), harbor.admin.now())


def search_hint(text: str) -> str:
    """A hint on how far an unknown ending was searched for."""
    if ending(text) is None:
        return ""
    return f"; endings are searched among the newest {SEARCHED:,}: write the whole id to look further back"


def some(ids: Sequence[str]) -> str:
    """The first few of these ids."""
    return ", ".join(ids[:NAMED]) + (" …" if len(ids) > NAMED else "")


async def _whole_word(harbor: Harbor, word: str) -> str:
    if not word.startswith(WORKFLOW):
        return word
    return WORKFLOW + await harbor.admin.workflows.aresolve(word.removeprefix(WORKFLOW))
