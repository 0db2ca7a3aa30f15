"""The history checker: checks what every process saw of a store against the invariants H1 to H12.

`check(events)` checks a history in memory; `python -m taskharbor.testing.check FILE…` recorded ones. Calls with
unknown outcomes may or may not have happened, and calls that overlap in time may have happened in either order: only
what no order and no outcome can explain is a violation. Times given to the driver and real time are never compared.

It imports `testing.history`, the format, and nothing of the library that it checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from taskharbor.testing.check.counting import check_counts
from taskharbor.testing.check.dependants import check_dependants, check_slots
from taskharbor.testing.check.endings import check_endings
from taskharbor.testing.check.existence import check_existence
from taskharbor.testing.check.fencing import check_fencing
from taskharbor.testing.check.filing import stories_of
from taskharbor.testing.check.keys import check_flow_keys, check_keys
from taskharbor.testing.check.liveness import check_liveness
from taskharbor.testing.check.operations import BrokenHistory, pair
from taskharbor.testing.check.overtaking import check_overtaking
from taskharbor.testing.check.report import INVARIANTS, CheckReport, Counts, Duplicate, Reference, Violation
from taskharbor.testing.check.runs import check_runs
from taskharbor.testing.check.steps import JobStory
from taskharbor.testing.check.stories import Stories
from taskharbor.testing.check.times import check_times
from taskharbor.testing.check.versions import check_lost_claims, check_tokens, check_versions
from taskharbor.testing.history import Event

__all__ = [
    "INVARIANTS",
    "OVERTAKING",
    "BrokenHistory",
    "CheckReport",
    "Counts",
    "Duplicate",
    "Reference",
    "Violation",
    "check",
]

OVERTAKING = 1000


def check(events: Iterable[Event], *, overtaking: int | None = OVERTAKING, drained: bool = True) -> CheckReport:
    """Check a history.

    `overtaking` is how many later jobs may pass a due one (H11; None: any number); `drained` says that the run
    continued without faults until everything had ended, so that H12 holds at a `Final`. Raises `BrokenHistory` if
    events do not fit together.
    """
    stories = stories_of(pair(events))
    violations: list[Violation] = []
    duplicates: list[Duplicate] = []
    for found in _findings(stories, overtaking, drained):
        if isinstance(found, Violation):
            violations.append(found)
        else:
            duplicates.append(found)
    return CheckReport(violations, duplicates, stories.counts)


def _findings(stories: Stories, overtaking: int | None, drained: bool) -> Iterator[Violation | Duplicate]:
    yield from check_existence(stories)
    yield from check_tokens(stories)
    yield from check_lost_claims(stories)
    for story in stories.by_id.values():
        if not story.reborn:
            yield from _about(story, stories)
    yield from check_keys(stories)
    yield from check_flow_keys(stories)
    yield from check_slots(stories)
    yield from check_dependants(stories)
    if overtaking is not None:
        yield from check_overtaking(stories, overtaking)
    if drained:
        yield from check_liveness(stories)


def _about(story: JobStory, stories: Stories) -> Iterator[Violation | Duplicate]:
    yield from check_versions(story, stories.lost)
    yield from check_fencing(story, stories.lost)
    yield from check_endings(story)
    yield from check_counts(story, stories.lost)
    yield from check_times(story)
    yield from check_runs(story)
