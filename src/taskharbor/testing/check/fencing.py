"""H3 and H4: one valid lease at a time, and nothing is written under a lease that has ended."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from taskharbor.testing.check.operations import NEVER
from taskharbor.testing.check.report import Violation
from taskharbor.testing.check.steps import Claiming, Extending, JobStep, JobStory, LeaseSpan, reference
from taskharbor.testing.check.stories import Lost


def check_fencing(story: JobStory, lost: Lost) -> Iterator[Violation]:
    """Check the leases from the latest back, knowing when a later one existed."""
    later: Claiming | None = None
    following: LeaseSpan | None = None
    for lease in reversed(story.leases):
        yield from _late(lease, later)
        yield from _lapsed(lease)
        if following is not None and following.version == lease.version + 1:
            yield from _overlap(story, lease, following)
        if later is None or lease.claim.end < later.end:
            later = lease.claim
        following = lease
    if story.strays:
        yield from _strays(story, lost)


def granted(lease: LeaseSpan, before: int = NEVER) -> int:
    """The last expiry known to be granted, by steps that began before that time."""
    times = [step.expires_at for step in lease.extended if step.expires_at is not None and step.start <= before]
    return max(lease.expires_at, *times) if times else lease.expires_at


def _overlap(story: JobStory, lease: LeaseSpan, following: LeaseSpan) -> Iterator[Violation]:
    """H3: the next claim comes after the last expiry granted, by the times given to the driver."""
    claim = following.claim
    if lease.settled is not None or lease.attempted or lease.repeats:
        return
    until = granted(lease, claim.end)
    if claim.now < until and not story.replayed_between(lease.claim.start, claim.end):
        claimed = f"was claimed as version {following.version} at {claim.now}"
        message = f"{claimed}, but version {lease.version} was valid until {until}"
        yield story.violation("H3", message, lease.claim, claim)


def _late(lease: LeaseSpan, later: Claiming | None) -> Iterator[Violation]:
    """H4: nothing is accepted that began after a later claim had returned, or after the lease had been settled."""
    for step in (*lease.extended, *([lease.settled] if lease.settled else []), *lease.again):
        if later is not None and later.end < step.start and later.claim.version > lease.version:
            message = f"version {lease.version} after version {later.claim.version} had been claimed"
            yield _stale(lease, message, step, later)
    if lease.settled is None:
        return
    for again in lease.again:
        yield _stale(lease, f"version {lease.version} twice", lease.settled, again)
    for step in lease.extended:
        if step.start > lease.settled.end:
            yield _stale(lease, f"version {lease.version} after it had been settled", step, lease.settled)


def _lapsed(lease: LeaseSpan) -> Iterator[Violation]:
    """H4: nothing is accepted after every expiry granted so far."""
    doubt = min((step.start for step in lease.may_be_extended), default=NEVER)
    renewals = sorted(lease.extended, key=lambda step: step.start)
    until = lease.expires_at
    for place, step in enumerate(renewals):
        if step.end < doubt and step.now >= max(until, _beside(step, renewals, place)):
            yield _stale(lease, f"version {lease.version} at {step.now}, after its lease had ended", step)
        until = max(until, step.expires_at or 0)
    settled = lease.settled
    if settled is not None and settled.end < doubt and settled.now >= granted(lease, settled.end):
        yield _stale(lease, f"version {lease.version} at {settled.now}, after its lease had ended", settled)


def _beside(step: Extending, renewals: list[Extending], place: int) -> int:
    """The last expiry granted by later renewals that overlap this one and may have come first."""
    until = 0
    for other in islice(renewals, place + 1, None):
        if other.start > step.end:
            break
        until = max(until, other.expires_at or 0)
    return until


def _strays(story: JobStory, lost: Lost) -> Iterator[Violation]:
    """H4: a token that no claim returned is not accepted, unless it comes from a reserve whose reply was lost."""
    for step in story.strays:
        if step.sure and not step.repeat and not lost.before(story, step.end):
            yield story.violation("H4", "was settled under a token that no claim returned", step)


def _stale(lease: LeaseSpan, message: str, *steps: JobStep) -> Violation:
    what = f"the store accepted {steps[0].op.call.verb} of {lease.claim.claim.id}, {message}"
    return Violation("H4", what, tuple(map(reference, steps)))
