"""Enqueue: plain groups by one script for all of them, others by the step of the core (D1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

from taskharbor.core.group import Group, GroupResult, exists
from taskharbor.core.steps import enqueue as steps
from taskharbor.drivers.redis.calls import RedisCalls
from taskharbor.drivers.redis.connection import Arg
from taskharbor.drivers.redis.drafts import run
from taskharbor.drivers.redis.parts import NONE, micros, new_card
from taskharbor.drivers.redis.scripts import load
from taskharbor.drivers.shared.groups import all_created
from taskharbor.errors import DriverUnavailable, HarborError

ENQUEUE = load("enqueue")


async def enqueue(calls: RedisCalls, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
    """Store groups, in their order, which is that of the line.

    They are several calls to the server: an error of a later one is that of its groups, as a value, because an
    exception would say that nothing was stored.
    """
    answers: list[GroupResult] = []
    for together in _calls(groups):
        try:
            answers += await _store(calls, together, now)
        except HarborError as error:
            if not answers:
                raise
            if isinstance(error, DriverUnavailable):  # without a try, and a wait, for each of the others
                return answers + [DriverUnavailable(*error.args) for _ in groups[len(answers) :]]
            answers += [error] * len(together)
    return answers


def _calls(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """The groups of each call: plain ones share it."""
    for plain, some in groupby(groups, is_plain):
        together = list(some)
        yield from [together] if plain else ([group] for group in together)


async def _store(calls: RedisCalls, together: Sequence[Group], now: datetime) -> list[GroupResult]:
    if is_plain(together[0]):
        return results(together, await calls.run(ENQUEUE, *arguments(together, now)))
    return [await run(calls, steps.enqueue, group, now) for group in together]


def is_plain(group: Group) -> bool:
    """Whether the script stores this group: it concerns no key and no other job."""
    jobs = group.jobs
    return (
        group.key is None
        and not any(job.idempotency_key is not None or job.depends_on or job.workflow_id is not None for job in jobs)
        and (len(jobs) == 1 or len({job.id for job in jobs}) == len(jobs))
    )


def arguments(groups: Sequence[Group], now: datetime) -> list[Arg]:
    """The arguments of the script."""
    at = str(micros(now))
    words: list[Arg] = [len(groups)]
    for group in groups:
        runs = [(alike, list(jobs)) for alike, jobs in groupby(group.jobs, _in_line)]
        words.append(len(runs))
        for (queue, priority, run_at, expires_at), jobs in runs:
            run = NONE if run_at is None else str(micros(run_at))
            expires = NONE if expires_at is None else str(micros(expires_at))
            words += (len(jobs), queue, priority, at if run_at is None else run, run, expires)
            for job in jobs:
                words += (job.id, new_card(job, now))
    return words


# What jobs that follow each other in line have in common.
_in_line = attrgetter("queue", "priority", "run_at", "expires_at")


def results(groups: Sequence[Group], reply: Sequence[Any]) -> list[GroupResult]:
    """The result for each group, from the reply of the script."""
    return [
        all_created(group.jobs) if taken is None else exists(taken.decode())
        for group, taken in zip(groups, reply, strict=True)
    ]
