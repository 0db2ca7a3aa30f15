"""H8: one creation per idempotency key and lifetime, and the same id for every caller."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate, pairwise

from taskharbor.testing.check.endings import ends_of
from taskharbor.testing.check.existence import may_have_ended, may_have_ended_from
from taskharbor.testing.check.operations import NEVER
from taskharbor.testing.check.report import Violation
from taskharbor.testing.check.steps import Creation, JobStory, reference
from taskharbor.testing.check.stories import Stories


def check_keys(stories: Stories) -> Iterator[Violation]:
    """All of H8."""
    lifetimes = _Lifetimes(stories)
    for key, asked in stories.by_key.items():
        if len(asked) == 1 and asked[0].created is not False and asked[0].made in (None, asked[0].job.id):
            continue
        yield from _Key(key, asked, stories, lifetimes).check()


def check_flow_keys(stories: Stories) -> Iterator[Violation]:
    """H8 for the keys of whole groups: a key in force makes no second workflow."""
    lifetimes = _Lifetimes(stories)
    over = lifetimes.flow_may_be_over
    for key, made in stories.by_flow_key.items():
        for one, other in pairwise(sorted(made, key=lambda step: step.start)):
            if not over(one, other) and (one.end < other.start or not over(other, one)):
                yield Violation("H8", f"the key {key} made two workflows", (reference(one), reference(other)))


class _Lifetimes:
    """Whether keys may have expired or been freed."""

    def __init__(self, stories: Stories) -> None:
        self._stories = stories

    def may_be_over(self, maker: Creation, by: Creation) -> bool:
        """Whether the key of one job may have been free again when the other was requested.

        Expiry alone does not free it while its job has not ended (I2).
        """
        story = self._stories.by_id[maker.job.id]
        over = may_have_ended_from(story) <= by.end and self._has_run_out(maker, by)
        return over or min([*_freeing(story), self._pruned(story)]) <= by.end

    def flow_may_be_over(self, maker: Creation, by: Creation) -> bool:
        """The same for the key of a group, which is removed with the last of its jobs, or freed."""
        stories = [self._stories.by_id[job.id] for job in maker.mates]
        freed = self._stories.freed_flows.get(maker.job.flow or "", NEVER)
        ended = all(may_have_ended_from(story) <= by.end for story in stories)
        return (
            (ended and self._has_run_out(maker, by))
            or freed <= by.end
            or all(self._gone_from(story) <= by.end for story in stories)
        )

    def _has_run_out(self, maker: Creation, by: Creation) -> bool:
        """Whether some clock had passed its expiry, so that the store may have dropped it."""
        return maker.job.key_until is not None and self._latest_clock(by.end) >= maker.job.key_until

    def _gone_from(self, story: JobStory) -> int:
        return min([*(step.start for step in story.deletes), self._pruned(story)])

    def _latest_clock(self, time: int) -> int:
        """The latest time that any driver was given by calls that began before that moment."""
        starts, latest = self._clocks
        return latest[bisect_right(starts, time) - 1]

    @cached_property
    def _clocks(self) -> tuple[list[int], list[int]]:
        clocks = sorted((op.start, op.call.now or 0) for op in self._stories.operations)
        return [start for start, _ in clocks], list(accumulate((now for _, now in clocks), max))

    def _pruned(self, story: JobStory) -> int:
        prunes = self._stories.prunes
        stored = min((step.start for step in story.creations), default=NEVER)
        return prunes.first if prunes.latest >= stored and may_have_ended(story) else NEVER


def _freeing(story: JobStory) -> list[int]:
    """When a job may have lost its key by a cancel, a delete, or a replay."""
    if any(step.job.expires_at is not None or step.job.after for step in story.creations):
        return [-1]
    steps = (*story.cancels, *story.deletes, *story.replays)
    return [step.start for step in (*steps, *(each for each in story.settles if each.settle.to == "cancel"))]


def _expired(request: Creation, now: int) -> bool:
    return request.job.key_until is not None and request.job.key_until <= now


def _has_ended(story: JobStory, by: int) -> bool:
    return any(end.end <= by for end in ends_of(story))


class _Key:
    def __init__(self, key: str, asked: list[Creation], stories: Stories, lifetimes: _Lifetimes) -> None:
        self._key = key
        self._answers = [step for step in asked if step.created is False and step.job.flow_key is None]
        self._makers = sorted((step for step in asked if step.created), key=lambda step: step.start)
        self._by_end = sorted(self._makers, key=lambda step: step.end)
        self._ends = [step.end for step in self._by_end]
        self._requests: dict[str, list[Creation]] = {}  # of the jobs that may hold the key
        for step in asked:
            if step.created is not False:
                self._requests.setdefault(step.job.id, []).append(step)
        self._stories = stories
        self._lifetimes = lifetimes

    def check(self) -> Iterator[Violation]:
        for step in self._makers:
            if step.made != step.job.id:
                yield self._violation(f"made {step.made}, which was never requested", step)
        over = self._lifetimes.may_be_over
        for one, other in pairwise(self._makers):
            if not over(one, other) and (one.end < other.start or not over(other, one)):
                yield self._violation("made two jobs", one, other)
        for step in self._answers:
            yield from self._answer(step)

    def _answer(self, step: Creation) -> Iterator[Violation]:
        """A key in force names its owner."""
        id = step.made or ""
        requests = self._requests.get(id, [])
        story = self._stories.by_id.get(id)
        if story is not None and story.replayed_between(-1, step.end):
            return  # possibly with this as its new key
        if all(request.start > step.end for request in requests):
            yield self._violation(f"returned {id}, which was never requested with it", step)
        elif all(_expired(request, step.now) for request in requests) and story and _has_ended(story, step.start):
            yield self._violation(f"returned {id}, but it had expired", step)
        place = bisect_left(self._ends, step.start)
        maker = self._by_end[place - 1] if place else None
        if maker is not None and maker.job.id != id and not self._lifetimes.may_be_over(maker, step):
            yield self._violation(f"returned {id} instead of {maker.job.id}", maker, step)

    def _violation(self, message: str, *steps: Creation) -> Violation:
        return Violation("H8", f"the key {self._key} {message}", tuple(map(reference, steps)))
