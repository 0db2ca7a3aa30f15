"""Settle: outcomes fenced by their tokens, with new jobs, totals and effects on dependants (D7, D8, D9, K2)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from taskharbor.core import evolve
from taskharbor.core.lease import Verdict, settle_verdict
from taskharbor.core.states import TERMINAL
from taskharbor.core.steps.dependants import apply_ends, look_below, look_up_keys, put_end
from taskharbor.core.steps.draft import Draft
from taskharbor.core.steps.enqueue import look_for, store_new
from taskharbor.core.steps.needs import VerbStep
from taskharbor.core.tally import tallies
from taskharbor.core.transition import Transition


def settle(draft: Draft, transitions: Sequence[Transition], now: datetime) -> VerbStep[list[Verdict]]:
    """Write outcomes in order, each only if its token still holds the job; return the verdicts."""
    ids = [to.id for to in transitions]
    yield from look_below(draft, ids)
    yield from look_up_keys(draft, ids)
    yield from look_for(draft, [job for to in transitions for job in to.new_jobs])
    verdicts: list[Verdict] = []
    written: list[Transition] = []
    for to in transitions:
        job = draft.job(to.id)
        verdicts.append(settle_verdict(job, to, now))
        if job is None or verdicts[-1] != "ok":
            continue
        written.append(to)
        after = evolve.settled(job, to, now)
        put_end(draft, job, after)
        store_new(draft, to.new_jobs, now)
        if after.state in TERMINAL:
            yield from apply_ends(draft, [after], now)
    draft.tallies += tallies(written, now)
    return verdicts
