"""H12: once the faults are over, every job ends."""

from __future__ import annotations

from collections.abc import Iterator

from taskharbor.testing.check.endings import TERMINAL
from taskharbor.testing.check.report import Violation
from taskharbor.testing.check.steps import JobStory, is_met
from taskharbor.testing.check.stories import Stories


def check_liveness(stories: Stories) -> Iterator[Violation]:
    """At the end, every job is terminal, or waits for a parent that is not done."""
    for story in stories.by_id.values():
        last = story.last
        if last is not None and last.state not in TERMINAL and not _is_held(story, stories):
            steps = [*story.creations[:1], *story.claims[-1:]]
            yield story.violation("H12", f"is still {last.state} in the end (version {last.version})", *steps)


def _is_held(story: JobStory, stories: Stories) -> bool:
    """Whether the job waits for a parent that failed (unless it collects failures) or is held itself."""
    if story.last is None or story.last.state != "waiting":
        return False
    parents = [(stories.by_id.get(id), policy) for id, policy in story.edges]
    return any(
        parent.reborn or not is_met(policy, parent.last.state)
        for parent, policy in parents
        if parent is not None and parent.last is not None
    )
