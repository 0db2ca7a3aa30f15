"""The verbs of the key-value store: candidates are found by a scan, decided on by steps of the core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Concatenate, ParamSpec, TypeVar

from msgspec.structs import astuple

from taskharbor.core.dependency import Parent
from taskharbor.core.evolve import Cancellation, DeadLetter, DeadLettering, Deletion, Replay, Replaying, Reschedule
from taskharbor.core.group import Group, GroupResult
from taskharbor.core.job import JobRecord
from taskharbor.core.lease import Extended, Report, Verdict, check_duration
from taskharbor.core.line import effective_due, shares
from taskharbor.core.reserved import in_line
from taskharbor.core.schedule import Schedule, Swap
from taskharbor.core.states import INFLIGHT, READY, TERMINAL
from taskharbor.core.steps import enqueue, forget, lease, replay, reschedule, settle, stop, swap
from taskharbor.core.steps.draft import Draft
from taskharbor.core.steps.needs import VerbStep
from taskharbor.core.tally import Tally
from taskharbor.core.transition import Transition
from taskharbor.errors import JobExists, LeaseError

from .bucket import Bucket
from .interpreter import requests
from .writer import tally_name

P = ParamSpec("P")
R = TypeVar("R")


class KvStore:
    """The interface of the memory driver's store, over a bucket."""

    def __init__(self, bucket: Bucket, new_token: Callable[[], str]) -> None:
        self.bucket = bucket
        self._new_token = new_token

    def _run(self, step: Callable[Concatenate[Draft, P], VerbStep[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        running = requests(self.bucket, step, *args, **kwargs)
        while True:
            try:
                next(running)
            except StopIteration as end:
                answer: R = end.value
                return answer

    @property
    def jobs(self) -> dict[str, JobRecord]:
        """All records, the oldest first."""
        entries = sorted(self.bucket.scan("job/"), key=lambda entry: (entry.created, entry.value.number))
        return {entry.value.job.id: entry.value.job for entry in entries}

    @property
    def paused(self) -> set[str]:
        """The paused queues."""
        return {entry.value for entry in self.bucket.scan("paused/")}

    def pause(self, queue: str, paused: bool) -> None:
        """Pause a queue, or resume it."""
        self.bucket.commit({}, {f"paused/{queue}": queue if paused else None})

    def newest_first(self, after: str | None, *, unfinished: bool) -> list[str]:
        """The ids of all jobs stored before this one, or of those that have not ended."""
        jobs = self.jobs
        ids = list(jobs)[: list(jobs).index(after) if after in jobs else None]
        return [id for id in reversed(ids) if not unfinished or jobs[id].completed_at is None]

    def find_key(self, key: str, now: datetime) -> str | None:
        """The owner of a living key (I3)."""
        return self._run(_find_key, key, now)

    def enqueue(self, group: Group, now: datetime) -> GroupResult:
        """Store one group."""
        return self._run(enqueue.enqueue, group, now)

    def reserve(
        self,
        queues: Sequence[str],
        now: datetime,
        lease_for: timedelta,
        limit: int,
        worker: str,
        ids: Sequence[str] | None,
    ) -> list[JobRecord]:
        """Claim due jobs. Those that another client claimed in between are replaced by the next in line."""
        check_duration(lease_for)
        got: list[JobRecord] = []
        while len(got) < limit:
            found = self._candidates(queues, now, limit - len(got), ids)
            claimed = self._run(lease.claim, found, now, lease_for, worker, self._new_token)
            got += claimed
            if len(claimed) == len(found):
                break
        return got

    def _candidates(self, queues: Sequence[str], now: datetime, limit: int, ids: Sequence[str] | None) -> list[str]:
        jobs, paused = self.jobs, self.paused
        due = {id: job for id, job in jobs.items() if job.queue not in paused and lease.is_claimable(job, now)}
        if ids is not None:
            return [id for id in dict.fromkeys(ids) if id in due][:limit]
        lines: dict[str, list[str]] = {}
        for job in sorted(due.values(), key=lambda job: (-job.priority, effective_due(job))):
            lines.setdefault(job.queue, []).append(job.id)
        named = [queue for queue in in_line(queues) if queue not in paused]
        first = {queue: lines.get(queue, [])[:share] for queue, share in shares(named, limit).items()}
        rest = [id for queue in dict.fromkeys(named) for id in lines.get(queue, [])[len(first[queue]) :]]
        return [*(id for line in first.values() for id in line), *rest][:limit]

    def extend(self, report: Report, now: datetime, lease_for: timedelta) -> Extended | LeaseError:
        """Renew one lease."""
        return self._run(lease.extend, [report], now, lease_for)[0]

    def settle(self, to: Transition, now: datetime) -> Verdict:
        """Write one outcome."""
        return self._run(settle.settle, [to], now)[0]

    def cancel(self, ids: Sequence[str], now: datetime, keep_until: datetime) -> list[Cancellation]:
        """Cancel jobs."""
        return self._run(stop.cancel, ids, now, keep_until)

    def dead_letter(self, deaths: Sequence[DeadLetter], now: datetime) -> list[DeadLettering]:
        """Dead-letter jobs by hand."""
        return self._run(stop.dead_letter, deaths, now)

    def delete(self, id: str) -> Deletion:
        """Remove one job."""
        return self._run(forget.delete, [id])[0]

    def free_workflow_key(self, workflow_id: str) -> bool:
        """Forget the key of a workflow."""
        return self._run(forget.free_workflow_key, workflow_id)

    def replay(self, replays: Sequence[Replay], now: datetime) -> list[Replaying]:
        """Put dead or cancelled jobs back in line."""
        return self._run(replay.replay, replays, now)

    def reschedule(self, change: Reschedule) -> bool:
        """Move a ready job."""
        return self._run(reschedule.reschedule, [change])[0]

    def parents_of(self, id: str, most: int) -> list[Parent]:
        """The dependencies of a job in order (K3)."""
        return self._run(_parents_of, id, most)

    def sweep(self, now: datetime, keep_until: datetime, limit: int) -> int:
        """End what expired, and what was left behind after a request to stop."""
        left = [id for id, job in self.jobs.items() if job.state not in TERMINAL and lease.is_unwanted(job, now)]
        return self._run(stop.sweep, left, now, keep_until, limit)

    def prune(self, now: datetime, limit: int) -> int:
        """Forget what was kept long enough."""
        ends = [(job.keep_until, id) for id, job in self.jobs.items() if job.keep_until and job.keep_until <= now]
        return self._run(forget.prune, [id for _, id in sorted(ends, key=lambda end: end[0])], now, limit)

    def next_due(self, queues: Sequence[str]) -> datetime | None:
        """When the next job of the queues is due, or a lease expires."""
        named, paused = in_line(queues), self.paused
        jobs = [job for job in self.jobs.values() if job.queue in named and job.queue not in paused]
        times = [job.due_at for job in jobs if job.state is READY]
        times += [job.lease.expires_at for job in jobs if job.state is INFLIGHT and job.lease is not None]
        return min(times, default=None)

    def schedules(self) -> list[Schedule]:
        """All schedules by name."""
        return sorted((entry.value for entry in self.bucket.scan("schedule/")), key=lambda schedule: schedule.name)

    def swap_schedules(self, swaps: Sequence[Swap], now: datetime) -> list[bool | JobExists]:
        """Change schedules and enqueue their jobs."""
        return self._run(swap.swap_schedules, swaps, now)

    def tallies(self, since: datetime) -> list[Tally]:
        """The totals since a minute."""
        found: list[Tally] = [entry.value for entry in self.bucket.scan("tally/")]
        return sorted((it for it in found if it.minute >= since), key=astuple)

    def forget_tallies(self, before: datetime) -> None:
        """Forget old minutes."""
        old = [entry.value for entry in self.bucket.scan("tally/") if entry.value.minute < before]
        self.bucket.commit({}, {tally_name(it): None for it in old})


def _find_key(draft: Draft, key: str, now: datetime) -> VerbStep[str | None]:
    yield from draft.look_up_living([key])
    known = draft.living_key(key, now)
    return None if known is None else known.owner


def _parents_of(draft: Draft, id: str, most: int) -> VerbStep[list[Parent]]:
    yield from draft.look(above=[id])
    edges = sorted(draft.above(id), key=lambda edge: edge.position)
    parents = [draft.existing(edge.parent) for edge in edges]
    sizes = [len(job.result or b"") for job in parents]
    fits = sum(sizes) <= most
    return [
        Parent(job.id, edge.policy, edge.satisfied, job.state, job.result if fits else None, job.last_error, size)
        for edge, job, size in zip(edges, parents, sizes, strict=True)
    ]
