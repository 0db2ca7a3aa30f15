"""H5: a job ends once, is not claimed after its end, and every final state has an operation that explains it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, pairwise

from msgspec import Struct

from taskharbor.testing.check.operations import NEVER
from taskharbor.testing.check.report import Violation
from taskharbor.testing.check.steps import Claiming, JobStep, JobStory, LeaseSpan
from taskharbor.testing.history import JobEntry, Last

STATES = {"ack": "done", "fail": "dlq", "cancel": "cancelled"}
TERMINAL = frozenset(STATES.values())


class End(Struct, gc=False):
    """A terminal move that is known to have happened between `start` and `end`."""

    step: JobStep
    start: int
    end: int
    state: str
    following: LeaseSpan | None = None


def check_endings(story: JobStory) -> Iterator[Violation]:
    """All of H5 for one job."""
    ends = ends_of(story)
    if len(ends) > 1:
        yield from _once(story, ends)
    yield from _nothing_after(story, ends)
    yield from _done_stays_done(story, ends)
    yield from _repeats(story)
    if story.last is not None:
        yield from _last(story, story.last, ends)


def ends_of(story: JobStory) -> list[End]:
    """The terminal moves that are known to have happened, in order."""
    ends: list[End] = []
    for place, lease in enumerate(story.leases):
        end = _end_of(lease)
        if end is not None:
            end.following = story.leases[place + 1] if place + 1 < len(story.leases) else None
            ends.append(end)
    if story.cancels:
        ends += [End(step, step.start, step.end, "cancelled") for step in story.cancels if step.word == "cancelled"]
    if story.deaths:
        ends += [End(step, step.start, step.end, "dlq") for step in story.deaths if step.word == "dead"]
    if len(ends) > 1:
        ends.sort(key=lambda end: end.start)
    return ends


def _end_of(lease: LeaseSpan) -> End | None:
    """The known end of a job under a lease: by a settle that was accepted, or that later proved to have been."""
    if lease.settled is not None:
        state = STATES.get(lease.settled.settle.to)
        return End(lease.settled, lease.settled.start, lease.settled.end, state) if state else None
    kind = lease.repeats[0].settle.to if lease.repeats else ""
    settles = [step for step in lease.attempted if step.settle.to == kind]
    if kind not in STATES or not settles:
        return None
    first = min(settles, key=lambda step: step.start)
    return End(first, first.start, min(step.end for step in lease.repeats), STATES[kind])


def _once(story: JobStory, ends: list[End]) -> Iterator[Violation]:
    for before, end in pairwise(ends):
        if not story.replayed_between(before.start, max(before.end, end.end)):
            yield story.violation("H5", f"ended twice, as {before.state} and as {end.state}", before.step, end.step)


def _nothing_after(story: JobStory, ends: list[End]) -> Iterator[Violation]:
    for end in ends:
        claim = end.following.claim if end.following is not None else None
        if claim is not None and not story.replayed_between(end.start, claim.end):
            yield story.violation("H5", f"was claimed after it had ended as {end.state}", end.step, claim)
    marks = [step for step in (*story.cancels, *story.deaths, *story.deletes) if step.sure]
    if marks and story.claims:
        claims = _ClaimsByTime(story.claims)
        for mark in marks:
            claim = claims.after(mark.end)
            if claim is not None and not story.replayed_between(mark.start, claim.end):
                yield story.violation("H5", f"was claimed after a call had returned: {mark.word}", mark, claim)


class _ClaimsByTime:
    """Claims, to be found by time."""

    def __init__(self, claims: list[Claiming]) -> None:
        self._claims = sorted(claims, key=lambda step: step.start)
        self._starts = [step.start for step in self._claims]
        self._earliest = list(accumulate(reversed(self._claims), _first_to_end))[::-1]

    def after(self, time: int) -> Claiming | None:
        """The first to return of those that began after a time."""
        place = bisect_right(self._starts, time)
        return self._earliest[place] if place < len(self._claims) else None


def _first_to_end(one: Claiming, other: Claiming) -> Claiming:
    return other if other.end < one.end else one


def _done_stays_done(story: JobStory, ends: list[End]) -> Iterator[Violation]:
    done = min((end for end in ends if end.state == "done"), key=lambda end: end.end, default=None)
    for replay in story.replays:
        if done is not None and replay.sure and replay.start > done.end:
            yield story.violation("H5", "was replayed although it was done", done.step, replay)


def _repeats(story: JobStory) -> Iterator[Violation]:
    """A settle is only `replayed` if one of its kind under the same token came before (D8)."""
    repeats = [step for step in story.settles if step.repeat]
    if not repeats:
        return
    first: dict[tuple[str, str], int] = {}
    for step in story.settles:
        if not step.repeat:
            which = step.settle.token, step.settle.to
            first[which] = min(first.get(which, NEVER), step.start)
    for step in repeats:
        if first.get((step.settle.token, step.settle.to), NEVER) > step.end:
            yield story.violation("H5", "was answered as a repeat, but no settle had happened before", step)


def _last(story: JobStory, last: Last, ends: list[End]) -> Iterator[Violation]:
    unexplained = _unexplained(story, last)
    if unexplained is not None:
        yield story.violation("H5", unexplained, *story.settles[-1:])
    elif ends and last.state != ends[-1].state and not story.replayed_between(ends[-1].start, NEVER):
        yield story.violation("H5", f"ended as {ends[-1].state}, but the store holds it as {last.state}", ends[-1].step)
    sure = sum(step.sure for step in story.replays)
    if not sure <= last.replays <= len(story.replays):
        yield story.violation(
            "H5", f"was replayed {sure} times, but the store counts {last.replays}", *story.replays[:3]
        )
    yield from _last_token(story, last)


def _unexplained(story: JobStory, last: Last) -> str | None:
    asked = {step.settle.to for step in story.settles}
    if last.state == "done":
        return None if "ack" in asked else "is done, but no operation finished it"
    if last.state == "dlq":
        return None if "fail" in asked or story.deaths else "is dead, but no operation dead-lettered it"
    if last.state == "cancelled":
        explained = "cancel" in asked or story.cancels or any(_may_fade(step.job) for step in story.creations)
        return None if explained else "is cancelled, but no operation cancelled it"
    return _unexplained_life(story, last)


def _may_fade(job: JobEntry) -> bool:
    """Whether a job may be cancelled without a cancel of its own: it expired, or a parent failed."""
    return job.expires_at is not None or bool(job.after)


def _unexplained_life(story: JobStory, last: Last) -> str | None:
    lease = story.leases[-1] if story.leases and story.leases[-1].version == last.version else None
    if last.state == "inflight":
        over = last.version == 0 or (lease is not None and lease.surely_settled)
        return "is inflight, but no worker holds it" if over else None
    held = lease is not None and not story.replays and all(step.settle.to != "put_back" for step in lease.settles)
    return f"is {last.state}, but its last claim was not put back" if held else None


def _last_token(story: JobStory, last: Last) -> Iterator[Violation]:
    token = last.settled_token
    lease = story.leases[-1] if story.leases and story.leases[-1].version == last.version else None
    if lease is not None and lease.settled is not None and token != lease.claim.claim.token:
        yield story.violation("H5", "was settled, but the store has no token of it", lease.settled)
    elif token is not None and all(token != step.settle.token or step.repeat for step in story.settles):
        yield story.violation("H5", f"was settled under the token {token}, which was never used")
