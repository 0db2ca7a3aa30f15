"""Ids as users type them: whole, or the endings that lists show."""

from __future__ import annotations

from collections.abc import Sequence

import click

from taskharbor.admin.admin import Admin
from taskharbor.core.filter import Filter, parse

WORKFLOW = "workflow:"


async def whole_id(admin: Admin, id: str) -> str:
    """The id of the job with this ending; else the text as given."""
    if not id:
        raise click.UsageError("the id is empty: `taskharbor jobs ls` lists the ids of jobs")
    return (await admin.jobs.aresolve(id))[0]


async def whole_ids(admin: Admin, ids: Sequence[str]) -> list[str]:
    """Whole ids for several endings, without duplicates."""
    return list(dict.fromkeys(await admin.jobs.aresolve(list(dict.fromkeys(ids)))))


async def whole_words(admin: Admin, words: Sequence[str]) -> list[str]:
    """Filter words with the id after `workflow:` completed."""
    found: list[str] = []
    for word in words:
        id = word.removeprefix(WORKFLOW)
        found.append(word if id == word else WORKFLOW + await admin.workflows.aresolve(id))
    return found


async def meant(admin: Admin, words: Sequence[str]) -> Filter:
    """The filter of an act, the same before and after the question; prints the workflow that an ending matched."""
    whole = await whole_words(admin, words)
    for word, found in zip(words, whole, strict=True):
        if word != found:
            click.echo(f"{word} is {found}.", err=True)
    return parse(tuple(whole), admin.now())
