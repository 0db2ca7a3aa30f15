"""H10: dependants run once, after all their parents; a recurring slot makes one job."""

from __future__ import annotations

from collections.abc import Iterator

from taskharbor.testing.check.existence import own_end
from taskharbor.testing.check.operations import NEVER
from taskharbor.testing.check.report import Violation
from taskharbor.testing.check.steps import JobStory, Ticking, edges_of, is_met, reference
from taskharbor.testing.check.stories import Stories
from taskharbor.testing.history import JobEntry, Last


def check_slots(stories: Stories) -> Iterator[Violation]:
    """N3: exactly one swap of a schedule makes the job of a slot. Runs started by an operator have no slot."""
    taken: dict[tuple[str, int], Ticking] = {}
    for step in stories.ticks:
        if step.sure and step.swap.slot is not None:
            first = taken.setdefault((step.swap.id, step.swap.slot), step)
            if first is not step:
                message = f"slot {step.swap.slot} of schedule {step.swap.id} was taken twice"
                yield Violation("H10", message, (reference(first), reference(step)))


def check_dependants(stories: Stories) -> Iterator[Violation]:
    """K2: no dependant is released twice, or claimed before its parents can have ended as its edges require.

    It may have been stored by an enqueue or by a settle.
    """
    ends = _Ends(stories)
    for story in stories.by_id.values():
        spec = story.spec
        if spec is None or not spec.after or story.reborn:
            continue
        if story.claims:
            yield from _released(story, spec, ends)
        if story.last is not None and spec.policies:
            yield from _counted(story, story.last, stories, ends)


def _released(story: JobStory, spec: JobEntry, ends: _Ends) -> Iterator[Violation]:
    if len(story.leases) > 1 and story.leases[1].version == 1:
        yield story.violation("H10", "was released twice", story.leases[0].claim, story.leases[1].claim)
    claim = min(story.claims, key=lambda step: step.end)
    policies = spec.policies or ("collect",) * len(spec.after)
    for parent, policy in zip(spec.after, policies, strict=True):
        if ends.earliest(parent, policy) > claim.end:
            yield story.violation("H10", f"was claimed before {parent} had ended", claim)


def _counted(story: JobStory, last: Last, stories: Stories, ends: _Ends) -> Iterator[Violation]:
    """At the end, the number of unmet parents fits the parents' ends."""
    edges = [(stories.by_id.get(id), policy) for id, policy in edges_of(story.creations[0].job)]
    least = most = 0
    for parent, policy in edges:
        if parent is None or parent.last is None or parent.reborn:
            return
        least += ends.earliest(parent.id, policy) == NEVER
        most += not is_met(policy, parent.last.state)
    if not least <= last.unmet <= most:
        yield story.violation("H10", f"has {last.unmet} unmet parents at the end, but {least} to {most} are possible")


class _Ends:
    """The earliest possible ends of jobs."""

    def __init__(self, stories: Stories) -> None:
        self._stories = stories
        self._any: dict[str, int] = {}
        self._opened: set[str] = set()

    def earliest(self, id: str, policy: str) -> int:
        """The earliest end for an edge of this policy: only `collect` accepts a failed parent."""
        story = self._stories.by_id.get(id)
        if story is None:
            return NEVER
        if story.reborn:
            return -1
        if policy == "collect":
            return self._anyhow(id)
        return min((step.start for step in story.settles if step.settle.to == "ack"), default=NEVER)

    def _anyhow(self, id: str) -> int:
        """The earliest end of a job or of a parent whose failure would cancel it, each computed once."""
        left = [id]
        while left:
            story = self._stories.by_id.get(left[-1])
            above = [] if story is None else _parents(story)
            unknown = [each for each in above if each not in self._any]
            if story is not None and unknown and story.id not in self._opened:
                self._opened.add(story.id)
                left += unknown
                continue
            ends = [self._any.get(each, NEVER) for each in above]
            self._any[left.pop()] = min([NEVER if story is None else own_end(story), *ends])
        return self._any[id]


def _parents(story: JobStory) -> list[str]:
    return [id for step in story.creations for id in step.job.after]
