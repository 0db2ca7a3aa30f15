"""H6: attempts and crashes add up from claim to claim, and no run exceeds its limits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from taskharbor.testing.check.operations import NEVER, SeenRun
from taskharbor.testing.check.report import Violation
from taskharbor.testing.check.steps import JobStory, LeaseSpan, Settling
from taskharbor.testing.check.stories import Lost
from taskharbor.testing.history import JobEntry, Last

Count = tuple[int, int]  # attempts and crashes
NEW: Count = (0, 0)


def check_counts(story: JobStory, lost: Lost) -> Iterator[Violation]:
    """All of H6 for one job."""
    yield from _claims(story)
    spec = story.spec
    for lease in story.leases:
        for step in (*lease.settles, *lease.again):
            yield from _outcome(story, lease, step, spec)
    if story.last is not None:
        yield from _last(story, story.last)
    if story.runs:
        yield from _runs(story, spec, lost)


def _claims(story: JobStory) -> Iterator[Violation]:
    """Each claim has the counts of the last outcome, plus a crash if there was no outcome."""
    leases = story.leases
    if leases and not _fits({NEW}, leases[0].version - 1, _count(leases[0]), story):
        yield story.violation("H6", f"was first seen with {_in_words(_count(leases[0]))}", leases[0].claim)
    for before, lease in pairwise(leases):
        missing = lease.version - before.version - 1
        if not _fits(_after(story, before, lease.claim.end), missing, _count(lease), story):
            message = f"went from {_in_words(_count(before))} to {_in_words(_count(lease))}, which no outcome explains"
            yield story.violation("H6", message, before.claim, *before.settles[:1], lease.claim)


def _after(story: JobStory, lease: LeaseSpan, by: int) -> set[Count]:
    """The counts that the next claim may find."""
    counts = {(step.settle.attempts, step.settle.crashes) for step in lease.settles}
    if not lease.surely_settled:
        counts.add((lease.claim.claim.attempts, lease.claim.claim.crashes + 1))
    if story.replayed_between(lease.claim.start, by):
        counts.add(NEW)
    return counts


def _fits(counts: set[Count], missing: int, found: Count, story: JobStory) -> bool:
    """Whether one of the counts leads to the one found; each claim whose reply was lost adds a crash."""
    if missing < 0 or (missing and (story.strays or story.replays)):
        return True
    return (found[0], found[1] - missing) in counts


def _outcome(story: JobStory, lease: LeaseSpan, step: Settling, spec: JobEntry | None) -> Iterator[Violation]:
    """An outcome adds at most one failure, recorded and within the limit, and resets or keeps the crashes.

    The death of a job's own process adds a crash instead of an attempt, and is recorded (F6). Another process may put
    the job back with one crash more: a supervisor, for a worker that died (L9).
    """
    settle, claim = step.settle, lease.claim.claim
    more = settle.attempts - claim.attempts
    crashed = more == 0 and bool(settle.failures) and settle.crashes == claim.crashes + 1
    if _is_put_back_for_the_dead(lease, step):
        return
    if more not in (0, 1) or (settle.crashes not in (0, claim.crashes) and not crashed):
        message = f"was settled from {_in_words(_count(lease))} to {_in_words((settle.attempts, settle.crashes))}"
        yield story.violation("H6", message, lease.claim, step)
    elif more and settle.to in ("put_back", "fail") and not settle.failures:
        yield story.violation("H6", "has failed, but no failure was recorded", step)
    elif more and settle.to == "put_back" and spec is not None and _reached(settle.attempts, spec.max_attempts):
        yield story.violation("H6", f"was put back after {settle.attempts} attempts of {spec.max_attempts}", step)


def _is_put_back_for_the_dead(lease: LeaseSpan, step: Settling) -> bool:
    settle, count = step.settle, _count(lease)
    by_another = settle.to == "put_back" and step.op.call.who != lease.claim.op.call.who
    return by_another and (settle.attempts, settle.crashes) == (count[0], count[1] + 1)


def _last(story: JobStory, last: Last) -> Iterator[Violation]:
    lease = story.leases[-1] if story.leases else None
    if not _fits_last(story, last, lease):
        found = _in_words((last.attempts, last.crashes))
        yield story.violation(
            "H6", f"has {found} in the end, which no outcome explains", *(lease.settles if lease else ())
        )
    settled = lease.settled if lease is not None and lease.version == last.version else None
    if settled is not None and settled.settle.failures != last.failures:
        message = f"was settled with {settled.settle.failures} failures kept, but has {last.failures} in the end"
        yield story.violation("H6", message, settled)


def _fits_last(story: JobStory, last: Last, lease: LeaseSpan | None) -> bool:
    missing = last.version - (lease.version if lease else 0)
    found = (last.attempts, last.crashes)
    if missing > 0 and (story.strays or story.replays):
        return True
    if missing > 0 or lease is None:
        counts = {NEW} if lease is None else _after(story, lease, NEVER)
        return _fits(counts, max(missing - 1, 0), found, story)
    counts = {(step.settle.attempts, step.settle.crashes) for step in lease.settles}
    if not lease.surely_settled:
        counts.add(_count(lease))
    if story.replays:
        counts.add(NEW)
    return missing < 0 or found in counts


def _runs(story: JobStory, spec: JobEntry | None, lost: Lost) -> Iterator[Violation]:
    """Every run has a claim of its own, after neither too many failures nor too many crashes."""
    leases = {lease.version: lease for lease in story.leases}
    seen: dict[int, SeenRun] = {}
    for run in story.runs:
        version = run.event.version
        first = seen.setdefault(version, run)
        lease = leases.get(version)
        if first is not run:
            yield story.violation("H6", f"ran twice as version {version}", first, run)
        elif lease is None and not lost.before(story, run.start):
            yield story.violation("H6", f"ran as version {version}, which was never claimed", run)
        elif lease is not None and lease.claim.start > run.start:
            yield story.violation("H6", f"ran as version {version} before that was claimed", run)
        elif lease is not None and spec is not None and _reached(lease.claim.claim.crashes, spec.max_crashes):
            yield story.violation("H6", f"ran although {lease.claim.claim.crashes} workers had crashed", run)
        elif lease is not None and spec is not None and _reached(lease.claim.claim.attempts, spec.max_attempts):
            yield story.violation("H6", f"ran again after {lease.claim.claim.attempts} attempts", run)


def _reached(count: int, bound: int | None) -> bool:
    return bound is not None and count >= bound


def _count(lease: LeaseSpan) -> Count:
    return lease.claim.claim.attempts, lease.claim.claim.crashes


def _in_words(count: Count) -> str:
    return f"{count[0]} attempts and {count[1]} crashes"
