"""H1: no job is lost, and no job exists without a request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from taskharbor.testing.check.operations import NEVER
from taskharbor.testing.check.report import Violation
from taskharbor.testing.check.steps import Creation, JobStep, JobStory
from taskharbor.testing.check.stories import Stories
from taskharbor.testing.history import JobEntry

SHOWN = 10


def check_existence(stories: Stories) -> Iterator[Violation]:
    """Acknowledged jobs exist at the end unless they were removed; others only if they were requested."""
    pruned: list[JobStory] = []
    for story in stories.by_id.values():
        yield from _from_nowhere(story)
        if stories.final_now is not None and story.last is None and exists(story):
            if _may_be_pruned(story, stories):
                pruned.append(story)
            elif not story.deletes:
                yield story.violation("H1", "is missing, but was not deleted", *evidence(story))
    total = stories.prunes.total
    if total is not None and len(pruned) > total:
        names = ", ".join(story.id for story in pruned[:SHOWN])
        yield Violation("H1", f"{len(pruned)} jobs are missing, but only {total} were pruned; among them {names}")
    if stories.final_now is not None:
        yield from _half_groups(stories)
        yield from _proven(stories)


def exists(story: JobStory) -> bool:
    """Whether the job is known to have been in the store."""
    return bool(story.claims) or story.last is not None or bool(evidence(story))


def evidence(story: JobStory) -> Sequence[JobStep]:
    """The first step, if any, that could not have happened without the job."""
    sure = [*story.claims[:1], *(step for step in story.creations if step.sure)]
    if sure:
        return [sure[-1]]
    by_hand = (*story.cancels, *story.replays, *story.reschedules)
    return [step for step in by_hand if step.sure][:1]


def may_have_ended(story: JobStory) -> bool:
    """Whether the job may have ended."""
    return may_have_ended_from(story) < NEVER


def may_have_ended_from(story: JobStory) -> int:
    """The earliest moment at which the job may have ended."""
    return -1 if any(step.job.after for step in story.creations) else own_end(story)


def own_end(story: JobStory) -> int:
    """The same, leaving aside that the end of a parent may cancel it."""
    if any(step.job.expires_at is not None for step in story.creations):
        return -1
    settles = (step for step in story.settles if step.settle.to != "put_back")
    return min((step.start for step in (*settles, *story.cancels, *story.deaths)), default=NEVER)


def may_be_gone(story: JobStory, stories: Stories) -> bool:
    """Whether the job may have been removed."""
    return bool(story.deletes) or _may_be_pruned(story, stories)


def _may_be_pruned(story: JobStory, stories: Stories) -> bool:
    if story.deletes or not may_have_ended(story):
        return False
    return any(stories.prunes.latest >= creation.start for creation in story.creations)


def _from_nowhere(story: JobStory) -> Iterator[Violation]:
    if not story.creations:
        if story.claims or story.last is not None:
            yield story.violation("H1", "exists, but was never requested", *story.claims[:1])
        return
    if story.claims:
        claim = min(story.claims, key=lambda step: step.end)
        if claim.end < min(step.start for step in story.creations):
            yield story.violation("H1", "was claimed before it was requested", claim, story.creations[0])
    made = [step for step in story.creations if step.created]
    if len(made) > 1 and not story.reborn:
        name = "H10" if story.creations[0].job.after else "H1"
        yield story.violation(name, "was stored twice", *made)


def _half_groups(stories: Stories) -> Iterator[Violation]:
    """D1: of a group with an unknown outcome, all jobs without keys exist or none."""
    labels = _Labels()
    seen: set[int] = set()
    for story in stories.by_id.values():
        for creation in story.creations:
            label = labels.of(creation.mates) if creation.mates and not creation.sure else None
            if label is not None and label not in seen:
                seen.add(label)
                yield from _half_group(creation, stories, labels, label)


def _half_group(creation: Creation, stories: Stories, labels: _Labels, label: int) -> Iterator[Violation]:
    members = [stories.by_id[job.id] for job in creation.mates if job.key is None and job.id in stories.by_id]
    stored = next((story for story in members if exists(story) and labels.only(story, label)), None)
    missing = next((story for story in members if not exists(story) and not may_be_gone(story, stories)), None)
    if stored is not None and missing is not None:
        yield stored.violation("H1", f"was stored without {missing.id} of its group", creation)


def _proven(stories: Stories) -> Iterator[Violation]:
    """D9: new jobs without keys exist if a settle with an unknown outcome proved to have happened."""
    for lease in (lease for story in stories.by_id.values() for lease in story.leases if lease.repeats):
        tried = lease.settles
        if tried and all(step.settle.jobs == tried[0].settle.jobs for step in tried):
            for job in tried[0].settle.jobs:
                story = stories.by_id[job.id]
                if job.key is None and not exists(story) and not may_be_gone(story, stories):
                    yield story.violation("H1", "is missing, but the settle that stored it happened", *lease.repeats)


class _Labels:
    """Distinguishes groups by their ids, computed once per group."""

    def __init__(self) -> None:
        self._by_place: dict[int, int] = {}
        self._by_ids: dict[tuple[str, ...], int] = {}

    def of(self, mates: tuple[JobEntry, ...]) -> int:
        known = self._by_place.get(id(mates))
        if known is None:
            ids = tuple(job.id for job in mates)
            known = self._by_place[id(mates)] = self._by_ids.setdefault(ids, len(self._by_ids))
        return known

    def only(self, story: JobStory, label: int) -> bool:
        """Whether the job was requested only in groups like this."""
        return all(self.of(creation.mates) == label for creation in story.creations)
