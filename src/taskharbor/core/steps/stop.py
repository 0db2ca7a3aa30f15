"""Jobs that end without running to their end: cancel (T3), dead-letter by hand (Q4), and the sweep (T1, N1)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from taskharbor.core import evolve
from taskharbor.core.evolve import Cancellation, DeadLetter, DeadLettering
from taskharbor.core.states import INFLIGHT, TERMINAL
from taskharbor.core.steps.dependants import apply_ends, look_below, look_up_keys, put_end
from taskharbor.core.steps.draft import Draft
from taskharbor.core.steps.lease import held_until, is_unwanted
from taskharbor.core.steps.needs import VerbStep


def cancel(draft: Draft, ids: Sequence[str], now: datetime, keep_until: datetime) -> VerbStep[list[Cancellation]]:
    """Cancel ready and waiting jobs at once, and ask the holders of inflight ones to stop.

    Dependants are affected once all of these are cancelled, so that none is released on the way.
    """
    yield from look_below(draft, ids)
    yield from look_up_keys(draft, ids)
    answers: list[Cancellation] = [_cancel(draft, id, now, keep_until) for id in ids]
    ended = [id for id, answer in zip(ids, answers, strict=True) if answer == "cancelled"]
    yield from apply_ends(draft, [draft.existing(id) for id in ended], now)
    return answers


def _cancel(draft: Draft, id: str, now: datetime, keep_until: datetime) -> Cancellation:
    job = draft.job(id)
    if job is None:
        return "missing"
    if job.state in TERMINAL:
        return "finished"
    if job.state is INFLIGHT:
        draft.put(evolve.asked_to_cancel(job, now))
        return "requested"
    put_end(draft, job, evolve.withdrawn(job, now, keep_until))
    return "cancelled"


def dead_letter(draft: Draft, deaths: Sequence[DeadLetter], now: datetime) -> VerbStep[list[DeadLettering]]:
    """Dead-letter ready and waiting jobs, ask the holders of inflight ones to stop; then apply that to dependants."""
    yield from look_below(draft, [death.id for death in deaths])
    answers: list[DeadLettering] = [_dead_letter(draft, death, now) for death in deaths]
    ended = [death.id for death, answer in zip(deaths, answers, strict=True) if answer == "dead"]
    yield from apply_ends(draft, [draft.existing(id) for id in ended], now)
    return answers


def _dead_letter(draft: Draft, death: DeadLetter, now: datetime) -> DeadLettering:
    job = draft.job(death.id)
    if job is None:
        return "missing"
    if job.state in TERMINAL:
        return "finished"
    if job.state is INFLIGHT:
        draft.put(evolve.asked_to_die(job, death, now))
        return "requested"
    draft.put(evolve.dead_lettered(job, death, now))
    return "dead"


def sweep(draft: Draft, ids: Sequence[str], now: datetime, keep_until: datetime, limit: int) -> VerbStep[int]:
    """End up to `limit` of these that expired or were asked to stop and that no worker holds; return how many.

    The candidates may be stale: each is judged when its turn comes, after the cascades of those before it.
    """
    yield from look_below(draft, ids)
    yield from look_up_keys(draft, ids)
    swept = 0
    for id in dict.fromkeys(ids):
        job = draft.job(id)
        if swept == limit or job is None or job.state in TERMINAL:
            continue
        if is_unwanted(job, now) and held_until(job, now) <= now:
            end = evolve.lapsed if job.state is INFLIGHT else evolve.withdrawn
            ended = end(job, now, keep_until)
            put_end(draft, job, ended)
            yield from apply_ends(draft, [ended], now)
            swept += 1
    return swept
