"""H7: no job is claimed before its time or after it expired, by the times given to the driver."""

from __future__ import annotations

from collections.abc import Iterator

from taskharbor.testing.check.operations import NEVER
from taskharbor.testing.check.report import Violation
from taskharbor.testing.check.steps import Claiming, JobStep, JobStory, LeaseSpan, Spans

PATIENCE = 64  # a job with more changes by hand than this is not checked
SINCE_EVER = -NEVER
NOTHING = Spans([])


def check_times(story: JobStory) -> Iterator[Violation]:
    """All of H7 for one job."""
    latest = _latest(story)
    changes = _changes(story)
    may_expire = bool(story.creations) and all(step.job.expires_at is not None for step in story.creations)
    before: LeaseSpan | None = None
    for lease in story.leases:
        claiming, claim = lease.claim, lease.claim.claim
        now = claiming.now
        stored = claim.due_at if claim.run_at is None else max(claim.due_at, claim.run_at)
        if now < stored:
            yield _early(story, stored, claiming)
        elif now < latest and changes is not None and lease.version == (before.version if before else 0) + 1:
            due, step = _due(story, before, claiming, changes)
            if now < due:
                yield _early(story, due, *([step] if step else []), claiming)
        if may_expire:
            yield from _expired(story, claiming)
        before = lease


def _latest(story: JobStory) -> int:
    """The latest of all due times that the job ever had: from then on, no claim is too early."""
    times = [step.job.run_at for step in story.creations]
    times += [step.settle.run_at for step in story.settles]
    times += [step.named.run_at for step in (*story.replays, *story.reschedules)]
    return max((time for time in times if time is not None), default=SINCE_EVER)


def _changes(story: JobStory) -> Spans | None:
    if not story.replays and not story.reschedules:
        return NOTHING
    steps = [*story.replays, *(step for step in story.reschedules if step.named.run_at is not None)]
    return Spans(steps) if len(steps) <= PATIENCE else None


def _due(story: JobStory, before: LeaseSpan | None, claiming: Claiming, changes: Spans) -> tuple[int, JobStep | None]:
    """The earliest due time that the job may have had, and the step that set it: the last one, if that is certain."""
    if before is None:
        given: list[tuple[JobStep, int | None]] = [
            (step, step.job.run_at) for step in story.creations if step.start <= claiming.end
        ]
    elif before.surely_settled:
        given = [(step, step.settle.run_at) for step in before.settles if step.settle.to == "put_back"]
    else:
        return SINCE_EVER, None  # its lease may have run out: then it is due at once
    start = -1 if before is None else before.claim.start
    given += [(step, step.named.run_at) for step in changes.between(start, claiming.end)]
    cut = max((step.start for step, _ in given if step.sure and step.end < claiming.start), default=-1)
    times = [(SINCE_EVER if time is None else time, step) for step, time in given if step.end >= cut]
    return min(times, key=lambda each: each[0], default=(SINCE_EVER, None))


def _expired(story: JobStory, claiming: Claiming) -> Iterator[Violation]:
    ends = [step.job.expires_at for step in story.creations]
    until = max((end for end in ends if end is not None), default=0)
    if claiming.now >= until and not story.replayed_between(-1, claiming.end):
        message = f"was claimed at {claiming.now}, but had expired at {until}"
        yield story.violation("H7", message, story.creations[0], claiming)


def _early(story: JobStory, due: int, *steps: JobStep) -> Violation:
    return story.violation("H7", f"was claimed at {steps[-1].now}, but was not due before {due}", *steps)
