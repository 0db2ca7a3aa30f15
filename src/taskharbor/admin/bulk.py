"""Acts on many jobs: which jobs an act applies to, and how many go to the store at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.client.client import Client
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.reserved import TASKS
from taskharbor.core.shown import shown
from taskharbor.core.states import Shown
from taskharbor.errors import ConfigError, InvalidJob

A = TypeVar("A")
Act = Literal["cancel", "delete", "replay", "dead_letter"]
OnProgress = Callable[[int], object]
Judge = Callable[[JobRecord | None, datetime], str]
BITE = 500
MOST = 1_000_000
WOULD = "would"

_ENDED = (Shown.DONE, Shown.DLQ, Shown.CANCELLED)
_UNFINISHED = tuple(state for state in Shown if state not in _ENDED)
APPLIES: dict[Act, tuple[Shown, ...]] = {
    "cancel": _UNFINISHED,
    "delete": _ENDED,
    "replay": (Shown.DLQ, Shown.CANCELLED),
    "dead_letter": _UNFINISHED,
}
REFUSALS: dict[Act, str] = {"cancel": "finished", "delete": "live", "replay": "not_dead", "dead_letter": "finished"}
_DONE: dict[Act, str] = {
    "cancel": "cancelled",
    "delete": "deleted",
    "replay": "replayed",
    "dead_letter": "dead-lettered",
}


class Bulk(Struct, frozen=True):
    """The jobs that an act was for: their ids, the newest first, and the ids by the answer they got.

    `changed` is the answer for a job that did not match any more right before the act.
    """

    matched: list[str]
    answers: dict[str, list[str]]


def applicable(act: Act, where: Filter) -> Filter:
    """The filter, narrowed to the states that the act applies to; `ConfigError` if it names others, or nothing."""
    if where == Filter():
        verb = act.replace("_", "-")
        raise ConfigError(f"say which jobs to {verb}: filter words such as queue:mail, or * for all")
    if others := [state for state in where.states if state not in APPLIES[act]]:
        allowed = ", ".join(APPLIES[act])
        raise ConfigError(f"jobs that are {others[0]} cannot be {_DONE[act]}: leave state: out, or use {allowed}")
    return where if where.states else replace(where, states=APPLIES[act])


def includes(act: Act, where: Filter, job: JobRecord) -> bool:
    """Whether an act on matching jobs takes this one: a TaskManager's task only where the filter names their queue."""
    return job.queue != TASKS or (where.queue == TASKS and act != "replay")


def still(act: Act, where: Filter, job: JobRecord | None, now: datetime) -> str:
    """Look at a job that matched before: the act `would` still take it, or it is `missing` or `changed`."""
    if job is None:
        return "missing"
    return WOULD if where.matches(job, now) and includes(act, where, job) else "changed"


def preview(act: Act, job: JobRecord | None, now: datetime) -> str:
    """The answer that the act would get for one job: `would`, or the refusal."""
    if job is None:
        return "missing"
    if act == "replay" and job.queue == TASKS:
        return "task"
    return WOULD if shown(job, now) in APPLIES[act] else REFUSALS[act]


def check_limit(limit: int, most: int) -> None:
    if not 1 <= limit <= most:
        raise InvalidJob(f"limit must be from 1 to {most:,}, not {limit!r}")


async def matching(
    takes: Callable[[JobRecord], bool], pages: AsyncIterator[list[JobRecord]], limit: int, most: int
) -> list[str]:
    """The ids of the jobs on these pages that an act takes, at most `limit`."""
    check_limit(limit, most)
    ids: dict[str, None] = {}
    async for page in pages:
        ids |= dict.fromkeys(job.id for job in page if takes(job))
        if len(ids) >= limit:
            break
    return [*ids][:limit]


async def in_bites(
    ids: Sequence[str], act: Callable[[Sequence[str]], Awaitable[Sequence[A]]], progress: OnProgress | None
) -> list[A]:
    """The answers of an act on these ids, a few hundred at a time, so that other clients are not held up."""
    answers: list[A] = []
    for start in range(0, len(ids), BITE):
        answers += await act(ids[start : start + BITE])
        if progress is not None:
            progress(len(answers))
    return answers


async def only_look(ids: Sequence[str]) -> Sequence[str]:
    return [WOULD] * len(ids)


async def look_and_act(
    client: Client,
    ids: Sequence[str],
    look: Judge,
    act: Callable[[Sequence[str]], Awaitable[Sequence[str]]] = only_look,
    progress: OnProgress | None = None,
) -> list[str]:
    """Look at each job again and act on those that it `would` take; the others are answered by the look."""

    async def look_first(bite: Sequence[str]) -> list[str]:
        seen = [look(job, client.session.now()) for job in await client.records(bite)]
        answers = iter(await act([id for id, answer in zip(bite, seen, strict=True) if answer == WOULD]))
        return [next(answers) if answer == WOULD else answer for answer in seen]

    return await in_bites(ids, look_first, progress)


async def would(client: Client, ids: Sequence[str], look: Judge) -> list[str]:
    """The ids of the jobs that an act would take now."""
    return by_answer(ids, await look_and_act(client, ids, look)).get(WOULD, [])


def by_answer(ids: Sequence[str], answers: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for id, answer in zip(ids, answers, strict=True):
        found.setdefault(answer, []).append(id)
    return found
