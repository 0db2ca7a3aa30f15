"""A history job by job, and the operations that concern no single job."""

from __future__ import annotations

from bisect import bisect_right

from msgspec import Struct, field

from taskharbor.testing.check.operations import NEVER, SeenCall
from taskharbor.testing.check.report import Counts
from taskharbor.testing.check.steps import Creation, JobStory, Ticking
from taskharbor.testing.history import Want, Word


class Lost(Struct):
    """Reserves with unknown outcomes: when each began, by queue or by the ids it named; and their limits in all."""

    by_queue: dict[str, list[int]] = {}
    by_id: dict[str, list[int]] = {}
    limits: int = 0

    def before(self, story: JobStory, time: int = NEVER) -> int:
        """The number that began before that time and may have claimed the job; each claims a job at most once."""
        starts = [self.by_queue.get(queue, []) for queue in {step.job.queue for step in story.creations}]
        return sum(bisect_right(each, time) for each in (*starts, self.by_id.get(story.id, [])))

    def add(self, want: Want, start: int) -> None:
        """Add one."""
        self.limits += want.limit
        for queue in set(want.queues) if want.ids is None else ():
            self.by_queue.setdefault(queue, []).append(start)
        for id in set(want.ids or ()):
            self.by_id.setdefault(id, []).append(start)

    def sort(self) -> None:
        """Sort them, after the last was added."""
        for starts in (*self.by_queue.values(), *self.by_id.values()):
            starts.sort()


class Prunes(Struct):
    """Prunes that had, or may have had, an effect: the number of jobs removed, or None if unknown."""

    first: int = NEVER
    latest: int = 0
    total: int | None = 0

    def add(self, op: SeenCall) -> None:
        """Add one."""
        word = op.answers[0].word if op.answers and isinstance(op.answers[0], Word) else None
        if word != "0":
            self.first = min(self.first, op.start)
            self.latest = max(self.latest, op.end)
            self.total = None if word is None or self.total is None else self.total + int(word)


class Stories(Struct):
    """A whole history, job by job."""

    operations: list[SeenCall]
    final_now: int | None
    counts: Counts
    by_id: dict[str, JobStory] = {}
    by_key: dict[str, list[Creation]] = {}
    by_flow_key: dict[str, list[Creation]] = {}
    freed_flows: dict[str, int] = {}
    ticks: list[Ticking] = []
    lost: Lost = field(default_factory=Lost)
    prunes: Prunes = field(default_factory=Prunes)
