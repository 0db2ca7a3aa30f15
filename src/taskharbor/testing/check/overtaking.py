"""H11: a bounded number of later jobs of its queue and priority may overtake a due one.

A wait lasts from the moment when a job was certainly in line to the start of the reserve that took it. Claims within
that time of jobs that were due later count; jobs taken over after a crash, or claimed by id, do not. A heap keeps the
latest due times of the claims before the end of a wait; the exact number is computed only if too many of them are later
than the job's own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from heapq import heappush, heappushpop
from itertools import pairwise

from msgspec import Struct

from taskharbor.testing.check.operations import NEVER
from taskharbor.testing.check.report import Violation
from taskharbor.testing.check.steps import Claiming, JobStep, JobStory, reference
from taskharbor.testing.check.stories import Stories
from taskharbor.testing.history import Want


class Wait(Struct, gc=False):
    """A job in line from `start` to `end` of real time, due at a time given to the driver."""

    start: int
    end: int
    due: int
    step: JobStep


class QueueLine(Struct):
    """The waits and the claims of one queue and priority; a claim as its start, its end and its due time."""

    waits: list[Wait] = []
    claims: list[tuple[int, int, int]] = []


def check_overtaking(stories: Stories, bound: int) -> Iterator[Violation]:
    """All of H11."""
    for (queue, priority), line in _lines(stories).items():
        if len(line.claims) > bound:
            suspects = _suspects(line, bound)
            for wait, count in _counted(line, suspects):
                if count > bound:
                    message = f"a job of queue {queue} and priority {priority} was overtaken by {count} later ones"
                    yield Violation("H11", message, (reference(wait.step),))


def _lines(stories: Stories) -> dict[tuple[str, int], QueueLine]:
    lines: dict[tuple[str, int], QueueLine] = {}
    for story in stories.by_id.values():
        for claiming in story.claims:
            claim = claiming.claim
            if claim.crashes == 0 and not _by_name(claiming):
                line = lines.setdefault((claim.queue, claim.priority), QueueLine())
                line.claims.append((claiming.start, claiming.end, claim.due_at))
        by_hand = story.reschedules or story.replays or story.cancels or story.deaths
        if story.creations and not (story.reborn or by_hand):
            job = story.creations[0].job
            lines.setdefault((job.queue, job.priority), QueueLine()).waits += _waits(story)
    return lines


def _by_name(claiming: Claiming) -> bool:
    want = claiming.op.call.items[0]
    return isinstance(want, Want) and want.ids is not None


def _waits(story: JobStory) -> Iterator[Wait]:
    """The first wait, and those after a put-back, if their start and end are certain."""
    creation, leases = story.creations[0], story.leases
    job = creation.job
    if len(story.creations) > 1 or job.after or job.expires_at is not None:
        return
    if creation.sure:
        due = creation.now if job.run_at is None else job.run_at
        if leases and leases[0].version == 1:
            yield Wait(creation.end, leases[0].claim.start, due, creation)
        elif not leases and story.last is not None and story.last.state == "ready" and story.last.version == 0:
            yield Wait(creation.end, NEVER, due, creation)
    for before, lease in pairwise(leases):
        settled = before.settled
        if settled is not None and settled.settle.run_at is not None and lease.version == before.version + 1:
            yield Wait(settled.end, lease.claim.start, settled.settle.run_at, settled)


def _suspects(line: QueueLine, bound: int) -> list[Wait]:
    """Waits with more than `bound` later claims before their end, whenever those began."""
    claims = sorted(line.claims, key=lambda claim: claim[1])
    latest: list[int] = []
    found: list[Wait] = []
    place = 0
    for wait in sorted(line.waits, key=lambda wait: wait.end):
        while place < len(claims) and claims[place][1] < wait.end:
            due = claims[place][2]
            if len(latest) <= bound:
                heappush(latest, due)
            elif due > latest[0]:
                heappushpop(latest, due)
            place += 1
        if len(latest) > bound and latest[0] > wait.due:
            found.append(wait)
    return found


def _counted(line: QueueLine, waits: list[Wait]) -> Iterator[tuple[Wait, int]]:
    """The number of later claims before the end of each wait, minus those that began before its start."""
    if not waits:
        return
    ended = _Later([(claim[1], claim[2]) for claim in line.claims]).before([(wait.end, wait.due) for wait in waits])
    began = _Later([(claim[0], claim[2]) for claim in line.claims]).before(
        [(wait.start + 1, wait.due) for wait in waits]
    )
    for wait, all_of_them, too_early in zip(waits, ended, began, strict=True):
        yield wait, all_of_them - too_early


class _Later:
    """Counts, for many questions at once, the claims before a time that were due after another: a Fenwick tree."""

    def __init__(self, claims: list[tuple[int, int]]) -> None:
        self._claims = sorted(claims)
        self._dues = sorted({due for _, due in claims})
        self._tree = [0] * (len(self._dues) + 1)

    def before(self, questions: list[tuple[int, int]]) -> list[int]:
        """For each (time, due): the number of claims before the time that were due later."""
        answers = [0] * len(questions)
        place = 0
        for number in sorted(range(len(questions)), key=lambda number: questions[number][0]):
            time, due = questions[number]
            while place < len(self._claims) and self._claims[place][0] < time:
                self._add(bisect_right(self._dues, self._claims[place][1]))
                place += 1
            answers[number] = place - self._up_to(bisect_right(self._dues, due))
        return answers

    def _add(self, rank: int) -> None:
        while rank < len(self._tree):
            self._tree[rank] += 1
            rank += rank & -rank

    def _up_to(self, rank: int) -> int:
        total = 0
        while rank > 0:
            total += self._tree[rank]
            rank -= rank & -rank
        return total
