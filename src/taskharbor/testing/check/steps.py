"""Steps: the effect, or possible effect, of one operation on one job."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

import msgspec
from msgspec import Struct

from taskharbor.testing.check.operations import SeenCall, SeenRun
from taskharbor.testing.check.report import Reference, Violation
from taskharbor.testing.history import ClaimEntry, JobEntry, Last, Named, Renew, SettleEntry, SwapEntry


class JobStep(Struct, gc=False):
    """`sure` steps took effect between `start` and `end`; others may have, at any time after their start."""

    op: SeenCall
    start: int
    end: int
    sure: bool

    @property
    def now(self) -> int:
        """The time given to the driver."""
        return self.op.call.now or 0


class Creation(JobStep, gc=False):
    """A request to store a job. `made` is the id in the answer; `created` is None if the answer does not say.

    `mates` are the jobs of its group, itself included, if there are several: one tuple for all of them.
    """

    job: JobEntry
    made: str | None = None
    created: bool | None = None
    mates: tuple[JobEntry, ...] = ()


class Claiming(JobStep, gc=False):
    """A job claimed."""

    claim: ClaimEntry


class Extending(JobStep, gc=False):
    """A lease renewed until `expires_at`."""

    renew: Renew
    expires_at: int | None = None


class Settling(JobStep, gc=False):
    """A settle that was accepted; `repeat` if the answer was that it had happened before."""

    settle: SettleEntry
    repeat: bool = False


class ByHand(JobStep, gc=False):
    """A cancel, dead letter, delete, replay or reschedule; `word` is the answer."""

    named: Named
    word: str | None = None


class Ticking(JobStep, gc=False):
    """A swap of a schedule that makes the job of a slot."""

    swap: SwapEntry


class LeaseSpan(Struct, gc=False):
    """One claim with everything done under its token. `expires_at` is the last expiry known to be granted."""

    claim: Claiming
    version: int
    expires_at: int
    settled: Settling | None = None
    again: list[Settling] = []
    attempted: list[Settling] = []
    repeats: list[Settling] = []
    extended: list[Extending] = []
    may_be_extended: list[Extending] = []

    @property
    def surely_settled(self) -> bool:
        """Whether a settle of this lease is known to have happened."""
        return self.settled is not None or bool(self.repeats)

    @property
    def settles(self) -> list[Settling]:
        """The settle that happened, or those that may have."""
        return self.attempted if self.settled is None else [self.settled]


class JobStory(Struct, gc=False):
    """All that happened to one job."""

    id: str
    creations: list[Creation] = []
    claims: list[Claiming] = []
    extends: list[Extending] = []
    settles: list[Settling] = []
    cancels: list[ByHand] = []
    deaths: list[ByHand] = []
    deletes: list[ByHand] = []
    replays: list[ByHand] = []
    reschedules: list[ByHand] = []
    runs: list[SeenRun] = []
    last: Last | None = None
    leases: list[LeaseSpan] = []
    strays: list[Settling] = []
    reborn: bool = False
    replay_spans: Spans | None = None

    def violation(self, name: str, message: str, *steps: JobStep | SeenRun) -> Violation:
        """An invariant that is broken for this job, with the steps that show it."""
        return Violation(name, f"job {self.id} {message}", tuple(map(reference, steps)))

    def replayed_between(self, after: int, before: int) -> bool:
        """Whether a replay may have taken effect between two moments."""
        if not self.replays:
            return False
        if self.replay_spans is None:
            self.replay_spans = Spans(self.replays)
        return self.replay_spans.any_between(after, before)

    @property
    def edges(self) -> set[tuple[str, str]]:
        """The jobs it waits for, each with its policy; the default is `hold`."""
        return {edge for creation in self.creations for edge in edges_of(creation.job)}

    @property
    def spec(self) -> JobEntry | None:
        """The job as requested, if all requests were the same."""
        creations = self.creations
        if len(creations) == 1:
            return creations[0].job
        asked = {msgspec.structs.replace(each.job, group=0, flow_key=None) for each in creations}
        return asked.pop() if len(asked) == 1 else None


def edges_of(job: JobEntry) -> list[tuple[str, str]]:
    """The parents in a request, with policies."""
    return list(zip(job.after, job.policies or ("hold",) * len(job.after), strict=True))


def is_met(policy: str, state: str) -> bool:
    """Whether an edge of this policy is satisfied by a parent in this state."""
    return state == "done" or (policy == "collect" and state in ("dlq", "cancelled"))


class Spans:
    """Steps by time: finds those that may have taken effect within a window, without a scan."""

    def __init__(self, steps: list[ByHand]) -> None:
        self.steps = sorted(steps, key=lambda step: step.start)
        self._starts = [step.start for step in self.steps]
        self._latest = list(accumulate((step.end for step in self.steps), max))

    def between(self, after: int, before: int) -> list[ByHand]:
        """The steps for which the condition holds."""
        found: list[ByHand] = []
        place = bisect_right(self._starts, before)
        while place > 0 and self._latest[place - 1] >= after:
            place -= 1
            if self.steps[place].end >= after:
                found.append(self.steps[place])
        return found

    def any_between(self, after: int, before: int) -> bool:
        """Whether any started before `before` and had not ended by `after`."""
        place = bisect_right(self._starts, before)
        return place > 0 and self._latest[place - 1] >= after


def reference(what: JobStep | SeenRun, item: str = "") -> Reference:
    """A step or run as shown in findings."""
    if isinstance(what, SeenRun):
        event = what.event
        return Reference(event.who, event.version, "run", event.at, event.id)
    call = what.op.call
    return Reference(call.who, call.number, call.verb, call.at, item or _subject(what))


def _subject(step: JobStep) -> str:
    if isinstance(step, Creation):
        return step.job.id
    if isinstance(step, Claiming):
        return step.claim.id
    if isinstance(step, Extending):
        return step.renew.id
    if isinstance(step, Settling):
        return step.settle.id
    if isinstance(step, Ticking) and step.swap.job is not None:
        return step.swap.job.id
    return step.named.id if isinstance(step, ByHand) else ""
