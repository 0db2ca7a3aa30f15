"""From operations to stories: every step is filed under the job that it was about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TypeVar, cast

from taskharbor.testing import history
from taskharbor.testing.check.operations import NEVER, BrokenHistory, Operations, SeenCall
from taskharbor.testing.check.steps import ByHand, Claiming, Creation, Extending, JobStory, LeaseSpan, Settling, Ticking
from taskharbor.testing.check.stories import Prunes, Stories

Item = TypeVar("Item")
# Errors of a group that may be stored all the same.
UNKNOWN = {"DriverUnavailable", "DriverClosed"}


def stories_of(operations: Operations) -> Stories:
    """File every step, every run and every last state under its job."""
    return _Filing(operations).stories()


class _Filing:
    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._stories = Stories(operations.done, operations.final_now, operations.counts)
        self._verbs: dict[str, Callable[[SeenCall], None]] = {
            "enqueue": self._enqueue,
            "reserve": self._reserve,
            "extend_lease": self._extend,
            "settle": self._settle,
            "cancel": self._by_hand(lambda story: story.cancels, {"cancelled", "requested", "finished"}),
            "dead_letter": self._by_hand(lambda story: story.deaths, {"dead", "requested", "finished"}),
            "delete": self._by_hand(lambda story: story.deletes, {"deleted"}),
            "free_workflow_key": self._free,
            "replay": self._by_hand(lambda story: story.replays, {"replayed", "replayed_without_key"}),
            "reschedule": self._by_hand(lambda story: story.reschedules, {"True"}),
            "sweep": lambda op: None,  # it may have ended expired jobs and those with a stop request
            "prune": self._stories.prunes.add,
            "swap_schedules": self._swap,
        }

    def _story(self, id: str) -> JobStory:
        story = self._stories.by_id.get(id)
        if story is None:
            story = self._stories.by_id[id] = JobStory(id)
        return story

    def _create(self, creation: Creation) -> None:
        if creation.created is not False:
            self._story(creation.job.id).creations.append(creation)
        if creation.job.key is not None:
            self._stories.by_key.setdefault(creation.job.key, []).append(creation)

    def _enqueue(self, op: SeenCall) -> None:
        answers = None if op.answers is None else iter(op.answers)
        for group in _groups(op):
            mates = tuple(group) if len(group) > 1 else ()
            made = None if answers is None else _made(op, answers, len(group))
            for place, job in enumerate(group):
                if made is None:
                    self._create(Creation(op, op.start, NEVER, False, job, mates=mates))
                elif made:
                    each = made[place]
                    self._create(Creation(op, op.start, op.end, each.created, job, each.id, each.created, mates))
            if made and made[0].created and (key := group[0].flow_key) is not None:
                stored = Creation(op, op.start, op.end, True, group[0], made[0].id, True, tuple(group))
                self._stories.by_flow_key.setdefault(key, []).append(stored)

    def _free(self, op: SeenCall) -> None:
        for named in op.call.items:
            assert isinstance(named, history.Named)
            freed = self._stories.freed_flows
            freed[named.id] = min(op.start, freed.get(named.id, op.start))

    def _reserve(self, op: SeenCall) -> None:
        if op.answers is None:
            for want in op.call.items:
                assert isinstance(want, history.Want)
                self._stories.lost.add(want, op.start)
            return
        for claim in op.answers:
            assert isinstance(claim, history.ClaimEntry)
            self._story(claim.id).claims.append(Claiming(op, op.start, op.end, True, claim))

    def _extend(self, op: SeenCall) -> None:
        for renew, answer in _answered(op, history.Renew):
            if answer is None or isinstance(answer, history.KeptEntry):
                until = None if answer is None else answer.expires_at
                step = Extending(op, op.start, op.end, answer is not None, renew, until)
                self._story(renew.id).extends.append(step)

    def _settle(self, op: SeenCall) -> None:
        for settle, word in _words(op, history.SettleEntry):
            if word not in (None, "ok", "replayed"):
                continue
            step = Settling(op, op.start, op.end, word is not None, settle, word == "replayed")
            self._story(settle.id).settles.append(step)
            if word != "replayed":
                for job in settle.jobs:
                    sure = word == "ok" and job.key is None
                    self._create(Creation(op, op.start, op.end, sure, job, mates=settle.jobs))

    def _by_hand(self, pick: Callable[[JobStory], list[ByHand]], words: set[str]) -> Callable[[SeenCall], None]:
        def file(op: SeenCall) -> None:
            for named, word in _words(op, history.Named):
                if word is None or word in words:
                    step = ByHand(op, op.start, op.end, word is not None, named, word)
                    pick(self._story(named.id)).append(step)

        return file

    def _swap(self, op: SeenCall) -> None:
        for swap, word in _words(op, history.SwapEntry):
            if word not in (None, "True"):
                continue
            if swap.slot is not None:
                self._stories.ticks.append(Ticking(op, op.start, op.end, word is not None, swap))
            if swap.job is not None:
                sure = word is not None and swap.job.key is None
                self._create(Creation(op, op.start, op.end, sure, swap.job))

    def stories(self) -> Stories:
        stories = self._stories
        for op in self._operations.done:
            self._verbs[op.call.verb](op)
        for run in self._operations.runs:
            self._story(run.event.id).runs.append(run)
        for id, last in self._operations.last.items():
            self._story(id).last = last
        stories.lost.sort()
        for story in stories.by_id.values():
            _settle_up(story)
            story.reborn = len(story.creations) > 1 and _may_be_reborn(story, stories.prunes)
        stories.counts.jobs = sum(bool(story.creations) for story in stories.by_id.values())
        stories.counts.claims = sum(len(story.claims) for story in stories.by_id.values())
        return stories


def _groups(op: SeenCall) -> list[list[history.JobEntry]]:
    jobs = cast("Sequence[history.JobEntry]", op.call.items)
    return [list(group) for _, group in groupby(jobs, key=lambda job: job.group)]


def _made(op: SeenCall, answers: Iterator[history.Answer], count: int) -> list[history.Made] | None:
    """The answers for one group: none if it was refused, None if it may be stored."""
    made: list[history.Made] = []
    for answer in answers:
        if not isinstance(answer, history.Made):
            return None if isinstance(answer, history.Word) and answer.word in UNKNOWN else []
        made.append(answer)
        if len(made) == count:
            return made
    raise _mismatch(op)


def _answered(op: SeenCall, kind: type[Item]) -> Iterator[tuple[Item, history.Answer | None]]:
    """The items of a call, each with its answer if that is known."""
    answers = (None,) * len(op.call.items) if op.answers is None else op.answers
    if len(answers) != len(op.call.items):
        raise _mismatch(op)
    for item, answer in zip(op.call.items, answers, strict=True):
        assert isinstance(item, kind)
        yield item, answer


def _words(op: SeenCall, kind: type[Item]) -> Iterator[tuple[Item, str | None]]:
    """The same for calls that are answered in words."""
    for item, answer in _answered(op, kind):
        yield item, answer.word if isinstance(answer, history.Word) else None


def _mismatch(op: SeenCall) -> BrokenHistory:
    return BrokenHistory(f"{op.call.verb} #{op.call.number} by {op.call.who} has more or fewer answers than items")


def _settle_up(story: JobStory) -> None:
    """Collect for each claim what was done under its token, in the order of versions."""
    leases: dict[str, LeaseSpan] = {}
    for claiming in story.claims:
        claim = claiming.claim
        leases.setdefault(claim.token, LeaseSpan(claiming, claim.version, claim.expires_at))
    for extending in story.extends:
        lease = leases.get(extending.renew.token)
        if lease is not None and extending.expires_at is not None:
            lease.extended.append(extending)
        elif lease is not None:
            lease.may_be_extended.append(extending)
    for settling in story.settles:
        lease = leases.get(settling.settle.token)
        if lease is None:
            story.strays.append(settling)
        elif settling.repeat:
            lease.repeats.append(settling)
        elif settling.sure:
            if lease.settled is not None:
                lease.again.append(settling)
            lease.settled = lease.settled or settling
        else:
            lease.attempted.append(settling)
    story.leases = sorted(leases.values(), key=lambda lease: lease.version)


def _may_be_reborn(story: JobStory, prunes: Prunes) -> bool:
    """Whether the id may have been several jobs in turn: stored, removed and stored again."""
    first = min(creation.start for creation in story.creations)
    latest = max(creation.end for creation in story.creations)
    if prunes.latest >= first and prunes.first <= latest:
        return True
    return any(delete.end >= first and delete.start <= latest for delete in story.deletes)
