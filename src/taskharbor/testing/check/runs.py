"""H9: handlers of one job overlap only after a lease has run out, and each overlap is explained."""

from __future__ import annotations

from collections.abc import Iterator

from taskharbor.testing.check.fencing import granted
from taskharbor.testing.check.operations import SeenRun
from taskharbor.testing.check.report import Duplicate, Violation
from taskharbor.testing.check.steps import JobStep, JobStory, LeaseSpan, reference

COMPARED = 16  # the number of unfinished runs that a new one is compared with


def check_runs(story: JobStory) -> Iterator[Violation | Duplicate]:
    """Every overlap is a violation or an explained duplicate."""
    if len(story.runs) < 2:
        return
    leases = {lease.version: lease for lease in story.leases}
    active: list[tuple[int, SeenRun]] = []
    for run in sorted(story.runs, key=lambda run: run.start):
        until = _end(run, leases.get(run.event.version))
        active = [(end, other) for end, other in active if end > run.start][-COMPARED:]
        for _, other in active:
            if other.event.version != run.event.version and other.start < until:
                early, late = sorted((other, run), key=lambda each: each.event.version)
                yield _judge(story, early, late, leases)
        active.append((until, run))


def _end(run: SeenRun, lease: LeaseSpan | None) -> int:
    """The end of a run. A killed one ended at its process's last event, or when that began to put the job back."""
    if run.ended or lease is None:
        return run.end
    return min([run.end, *(step.start for step in lease.settles if step.op.call.who == run.event.who)])


def _judge(story: JobStory, early: SeenRun, late: SeenRun, leases: dict[int, LeaseSpan]) -> Violation | Duplicate:
    versions = f"versions {early.event.version} and {late.event.version}"
    lease = leases.get(early.event.version)
    following = leases.get(early.event.version + 1)
    runs = (reference(early), reference(late))
    if lease is None or following is None:
        why = f"{versions} overlap: a reserve whose outcome is unknown took the job over in between"
        return Duplicate(story.id, why, runs)
    until, claim = granted(lease, following.claim.end), following.claim
    if claim.now >= until:
        why = f"{versions} overlap: the lease of the first ran out at {until}, the next was claimed at {claim.now}"
        return Duplicate(story.id, why, (*runs, reference(claim)))
    if not lease.surely_settled and story.replayed_between(lease.claim.start, claim.end):
        why = f"{versions} overlap: the lease of the first ran out, the job was cancelled for that and then replayed"
        return Duplicate(story.id, why, (*runs, reference(claim)))
    steps: list[JobStep] = [*lease.settles[:1], claim]
    message = f"{versions} of job {story.id} ran at the same time, and no lease had run out"
    return Violation("H9", message, (*runs, *map(reference, steps)))
