"""H2: each claim adds one to the version and has its own token, in the order of real time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from taskharbor.testing.check.report import Violation
from taskharbor.testing.check.steps import Claiming, JobStory, LeaseSpan, reference
from taskharbor.testing.check.stories import Lost, Stories


def check_tokens(stories: Stories) -> Iterator[Violation]:
    """No token is given twice, to any job."""
    given: dict[str, Claiming] = {}
    for story in stories.by_id.values():
        for claiming in story.claims:
            first = given.setdefault(claiming.claim.token, claiming)
            if first is not claiming:
                message = f"token {claiming.claim.token} was given twice"
                yield Violation("H2", message, (reference(first), reference(claiming)))


def check_versions(story: JobStory, lost: Lost) -> Iterator[Violation]:
    """Versions are unique, in the order of real time, and without gaps that no lost reserve explains."""
    yield from _same_version(story)
    yield from _order(story)
    yield from _gaps(story, lost)


def check_lost_claims(stories: Stories) -> Iterator[Violation]:
    """Claims without a reply were made by reserves with unknown outcomes, each up to its limit."""
    missing = sum(_missing(story) for story in stories.by_id.values() if not story.reborn)
    if missing > stories.lost.limits:
        yield Violation(
            "H2", f"{missing} claims have no reply, but reserves with unknown outcomes asked for {stories.lost.limits}"
        )


def _missing(story: JobStory) -> int:
    top = story.leases[-1].version if story.leases else 0
    version = max(top, 0 if story.last is None else story.last.version)
    return version - len({lease.version for lease in story.leases})


def _same_version(story: JobStory) -> Iterator[Violation]:
    for before, lease in pairwise(story.leases):
        if before.version == lease.version:
            yield story.violation("H2", f"was claimed twice as version {lease.version}", before.claim, lease.claim)


def _order(story: JobStory) -> Iterator[Violation]:
    earliest: LeaseSpan | None = None
    for lease in reversed(story.leases):
        if earliest is not None and earliest.claim.end < lease.claim.start and earliest.version > lease.version:
            message = f"had version {earliest.version} before version {lease.version}"
            yield story.violation("H2", message, earliest.claim, lease.claim)
        if earliest is None or lease.claim.end < earliest.claim.end:
            earliest = lease


def _gaps(story: JobStory, lost: Lost) -> Iterator[Violation]:
    known = 0
    before = 0
    for lease in story.leases:
        known += lease.version != before
        before = lease.version
        missing = lease.version - known
        if missing and missing > lost.before(story, lease.claim.end):
            before_it = f"only {known - 1} claims and too few reserves with unknown outcomes came before"
            yield story.violation("H2", f"was claimed as version {lease.version}, but {before_it}", lease.claim)
            return
    if story.last is not None:
        yield from _at_last(story, story.last.version, known, lost)


def _at_last(story: JobStory, version: int, known: int, lost: Lost) -> Iterator[Violation]:
    top = story.leases[-1].version if story.leases else 0
    if version < top:
        yield story.violation("H2", f"is stored with version {version}, but {top} was claimed", story.leases[-1].claim)
    if version > known and version - known > lost.before(story):
        yield story.violation("H2", f"is stored with version {version}, but only {known} claims were made")
