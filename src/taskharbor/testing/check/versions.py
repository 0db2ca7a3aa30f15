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
                yield _violation(f"token {claiming.claim.token} was given twice", first, claiming)


def check_versions(story: JobStory, lost: Lost) -> Iterator[Violation]:
    """Versions are unique, in the order of real time, and without gaps that no lost reserve explains."""
    if len(story.leases) > 1:
        yield from _same_version(story.leases)
        yield from _order(story.leases)
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


def _same_version(leases: list[LeaseSpan]) -> Iterator[Violation]:
    for before, lease in pairwise(leases):
        if before.version == lease.version:
            message = f"version {lease.version} of job {lease.claim.claim.id} was claimed twice"
            yield _violation(message, before.claim, lease.claim)


def _order(leases: list[LeaseSpan]) -> Iterator[Violation]:
    earliest = None
    for lease in reversed(leases):
        if earliest is not None and earliest.claim.end < lease.claim.start and earliest.version > lease.version:
            message = f"job {lease.claim.claim.id} had version {earliest.version} before version {lease.version}"
            yield _violation(message, earliest.claim, lease.claim)
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
            yield _violation(
                f"job {story.id} was claimed as version {lease.version}, but only {known - 1} claims and too few "
                "reserves with unknown outcomes came before",
                lease.claim,
            )
            return
    if story.last is not None:
        yield from _at_last(story, story.last.version, known, lost)


def _at_last(story: JobStory, version: int, known: int, lost: Lost) -> Iterator[Violation]:
    top = story.leases[-1].version if story.leases else 0
    if version < top:
        message = f"the store holds version {version} of job {story.id}, but {top} was claimed"
        yield _violation(message, story.leases[-1].claim)
    if version > known and version - known > lost.before(story):
        yield Violation("H2", f"the store holds version {version} of job {story.id}, but only {known} claims were made")


def _violation(message: str, *claims: Claiming) -> Violation:
    return Violation("H2", message, tuple(map(reference, claims)))
