"""Swap a schedule: one compare-and-swap changes it and enqueues its job (N3)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from taskharbor.core.group import Group
from taskharbor.core.schedule import Swap, swap_verdict
from taskharbor.core.steps.draft import Draft
from taskharbor.core.steps.enqueue import enqueue
from taskharbor.core.steps.needs import NamedSchedules, VerbStep
from taskharbor.errors import JobExists


def swap_schedules(draft: Draft, swaps: Sequence[Swap], now: datetime) -> VerbStep[list[bool | JobExists]]:
    """Change each schedule that is exactly as it was seen, and enqueue its job. A refused job changes nothing."""
    yield NamedSchedules(list(dict.fromkeys(swap.name for swap in swaps)))
    answers: list[bool | JobExists] = []
    for swap in swaps:
        answers.append((yield from _swap(draft, swap, now)))
    return answers


def _swap(draft: Draft, swap: Swap, now: datetime) -> VerbStep[bool | JobExists]:
    if draft.schedules.known[swap.name] != swap.seen:
        return False
    if swap.job is not None:
        verdict = swap_verdict((yield from enqueue(draft, Group(jobs=(swap.job,)), now)))
        if verdict is not True:
            return verdict
    draft.schedules.put(swap.name, swap.then)
    return True
