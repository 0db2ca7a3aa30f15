"""The reference store: one plain method per verb, each one atomic step, over `core.evolve`.

Single-threaded; `driver.py` beside it adds the lock and the async face.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from datetime import datetime, timedelta
from heapq import heappop, heappush
from itertools import count
from typing import Literal

from msgspec.structs import replace

from taskharbor.core import evolve
from taskharbor.core.dependency import Effect, effect
from taskharbor.core.evolve import Cancellation, DeadLetter, DeadLettering, Deletion, Replay, Replaying, Reschedule
from taskharbor.core.group import Enqueued, Group, GroupResult
from taskharbor.core.job import JobRecord, NewJob
from taskharbor.core.keys import KeyRecord, digest, group_digest
from taskharbor.core.lease import Extended, Report, Verdict, check_duration, refusal, settle_verdict
from taskharbor.core.line import effective_due, shares
from taskharbor.core.reserved import in_line
from taskharbor.core.states import CANCELLED, DLQ, INFLIGHT, READY, TERMINAL, WAITING
from taskharbor.core.transition import Transition
from taskharbor.driver import PRUNE_AGAIN
from taskharbor.drivers.memory.edges import EdgeIndex, MemoryEdge
from taskharbor.drivers.memory.keys import KeyTable
from taskharbor.drivers.memory.line import Leases, Line, is_free, is_held, is_unwanted
from taskharbor.errors import JobExists, LeaseError, UnknownDependency

StopAnswer = Literal["missing", "finished", "requested"]


class Store:
    """Jobs, keys and edges, and every step that changes them."""

    def __init__(self, new_token: Callable[[], str]) -> None:
        self.jobs: dict[str, JobRecord] = {}
        self.keys = KeyTable(self.jobs)
        self.free_workflow_key = self.keys.free_workflow
        self.edges = EdgeIndex(self.jobs)
        self.parents_of = self.edges.parents_of
        self.paused: set[str] = set()
        self._seq: dict[str, int] = {}
        self._numbers = count()
        self._line = Line()
        self._leases = Leases(self.jobs)
        self._expiring: list[tuple[datetime, str]] = []
        self._ended: list[tuple[datetime, int, str]] = []
        self._stopping: dict[str, None] = {}
        self._new_token = new_token

    def enqueue(self, group: Group, now: datetime) -> GroupResult:
        """Store one group all or none (D1)."""
        if group.key is not None and (known := self.keys.living(group.key, now)) is not None:
            same = known.digest == group_digest(group.jobs)
            return tuple(Enqueued(known.owner, False, same) for _ in group.jobs)
        ids = {job.id for job in group.jobs}
        earlier = set[str]()
        for job in group.jobs:
            if job.id in self.jobs and self._key_of(job, now) is None:
                return JobExists(f"job {job.id} exists")
            if missing := [edge.parent for edge in job.depends_on if edge.parent not in earlier]:
                return UnknownDependency(f"job {job.id} depends on {missing[0]}, which is not before it in its group")
            earlier.add(job.id)
        if len(ids) < len(group.jobs):
            return JobExists("a group names the same id twice")
        if group.key is not None and group.workflow_id is not None:
            content = group_digest(group.jobs)
            self.keys[group.key] = KeyRecord(group.key, group.workflow_id, content, group.key_expires_at)
        return self._store(group.jobs, now)

    def _store(self, jobs: Sequence[NewJob], now: datetime) -> tuple[Enqueued, ...]:
        for job in jobs:
            for edge in job.depends_on:
                self.edges.connect(MemoryEdge(edge.parent, job.id, edge.policy))
        return tuple(self._store_one(job, now) for job in jobs)

    def _store_one(self, job: NewJob, now: datetime) -> Enqueued:
        if (key := job.idempotency_key) is not None:
            content = digest([(job.type, job.payload)])
            if (known := self._key_of(job, now)) is not None:
                return Enqueued(known.owner, False, known.digest == content)
            self.keys[key] = KeyRecord(key, job.id, content, job.key_expires_at)
        unmet = sum(not edge.satisfied for edge in self.edges.parents.get(job.id, ()))
        self._seq[job.id] = next(self._numbers)
        if job.expires_at is not None:
            heappush(self._expiring, (job.expires_at, job.id))
        if job.workflow_id is not None:
            self.keys.members.setdefault(job.workflow_id, set()).add(job.id)
        self._write(evolve.enqueued(job, now, unmet))
        return Enqueued(job.id, True)

    def _key_of(self, job: NewJob, now: datetime) -> KeyRecord | None:
        return self.keys.living(job.idempotency_key, now)

    def newest_first(self, after: str | None, *, unfinished: bool) -> list[str]:
        """The ids of the jobs stored before `after`, or of all, newest first; `unfinished`: that have not ended."""
        seq = self._seq
        ids = [id for id in reversed(self.jobs) if not unfinished or self.jobs[id].completed_at is None]
        last = None if after is None else seq.get(after)
        return ids if last is None else [id for id in ids if seq[id] < last]

    def find_key(self, key: str, now: datetime) -> str | None:
        """The id of the job or workflow that holds a key in force (I3)."""
        known = self.keys.living(key, now)
        return None if known is None else known.owner

    def reserve(
        self,
        queues: Sequence[str],
        now: datetime,
        lease_for: timedelta,
        limit: int,
        worker: str,
        ids: Sequence[str] | None,
    ) -> list[JobRecord]:
        """Claim due jobs, lapsed ones among them (D2, D3, D5, D11)."""
        check_duration(lease_for)
        self._line_up_lapsed(now)

        jobs = self.jobs

        def fits(id: str) -> bool:
            return is_free(jobs[id], now)

        found: list[str] = []
        if ids is not None:
            found = [id for id in dict.fromkeys(ids) if id in self.jobs and self._is_due(self.jobs[id], now)]
            found = found[: max(limit, 0)]
        else:
            open_queues = [queue for queue in in_line(queues) if queue not in self.paused]
            for queue, share in shares(open_queues, limit).items():
                found += self._line.take(queue, now, share, fits)
            for queue in dict.fromkeys(open_queues):
                found += self._line.take(queue, now, max(limit, 0) - len(found), fits)
        expires_at = now + lease_for
        return [self._claim(jobs[id], now, expires_at, worker) for id in found]

    def _claim(self, job: JobRecord, now: datetime, expires_at: datetime, worker: str) -> JobRecord:
        return self._write(evolve.claimed(job, self._new_token(), now, expires_at, worker))

    def _line_up_lapsed(self, now: datetime) -> None:
        while (entry := self._leases.first()) is not None and entry[0] <= now:
            self._leases.drop_first()
            job = self.jobs[entry[1]]
            self._line.put(job.id, job.queue, job.priority, effective_due(job), self._seq[job.id])

    def _is_due(self, job: JobRecord, now: datetime) -> bool:
        in_line = job.state is INFLIGHT or (job.state is READY and job.due_at <= now)
        return in_line and job.queue not in self.paused and is_free(job, now)

    def extend(self, report: Report, now: datetime, lease_for: timedelta) -> Extended | LeaseError:
        """Renew one lease (D6)."""
        job = self.jobs.get(report.id)
        refused = refusal(job, report.id, report.token, now)
        if job is None or refused is not None:
            return refused or LeaseError(report.id)
        job = self._write(evolve.extended(job, now + lease_for, report.started_at, report.progress))
        assert job.lease is not None
        asked, dies = job.stop_requested_at is not None, job.stop_reason is not None
        return Extended(job.lease.expires_at, asked and not dies, asked and dies)

    def settle(self, to: Transition, now: datetime) -> Verdict:
        """Write one outcome, with its new jobs and its effect on dependants, if the token is valid (D7-D9)."""
        job = self.jobs.get(to.id)
        verdict = settle_verdict(job, to, now)
        if job is None or verdict != "ok":
            return verdict
        self._write(evolve.settled(job, to, now))
        if to.new_jobs:
            fresh: dict[str, NewJob] = {}
            for new in to.new_jobs:
                if new.id not in self.jobs and self._key_of(new, now) is None:
                    fresh.setdefault(new.id, new)
            self._store(list(fresh.values()), now)
        if to.id in self.edges.children:
            self._apply_end(to.id, now)
        return verdict

    def _apply_end(self, id: str, now: datetime) -> None:
        """Apply a parent's end to its dependants, and of cancelled ones to theirs, with the same retention (K2, K4)."""
        ended, keep_until = [id], self.jobs[id].keep_until
        while ended:
            parent = self.jobs[ended.pop()]
            for edge in self.edges.children.get(parent.id, ()):
                child = self.jobs[edge.child]
                outcome = Effect.HOLD if edge.satisfied else effect(edge.policy, parent.state)
                if outcome is Effect.SATISFY:
                    edge.satisfied = True
                    child = self._write(replace(child, unmet=child.unmet - 1))
                    if child.unmet == 0 and child.state is WAITING:
                        self._write(evolve.released(child, now))
                elif outcome is Effect.CANCEL and child.state is WAITING and keep_until is not None:
                    self._write(evolve.withdrawn(child, now, keep_until))
                    ended.append(child.id)

    def cancel(self, ids: Sequence[str], now: datetime, keep_until: datetime) -> list[Cancellation]:
        """Cancel ready and waiting jobs, and request a stop of inflight ones (T3)."""
        answers: list[Cancellation] = [self._cancel(id, now, keep_until) for id in ids]
        for id, answer in zip(ids, answers, strict=True):
            if answer == "cancelled":
                self._apply_end(id, now)
        return answers

    def _cancel(self, id: str, now: datetime, keep_until: datetime) -> Cancellation:
        answer = self._request_stop(id, lambda job: evolve.asked_to_cancel(job, now))
        if answer is None:
            self._write(evolve.withdrawn(self.jobs[id], now, keep_until))
        return answer or "cancelled"

    def _request_stop(self, id: str, ask: Callable[[JobRecord], JobRecord]) -> StopAnswer | None:
        """Request a stop if the job is inflight; None if no worker holds it and it can end at once."""
        job = self.jobs.get(id)
        if job is None:
            return "missing"
        if job.state in TERMINAL:
            return "finished"
        if job.state is not INFLIGHT:
            return None
        self._write(ask(job))
        self._stopping[id] = None
        return "requested"

    def dead_letter(self, deaths: Sequence[DeadLetter], now: datetime) -> list[DeadLettering]:
        """Dead-letter ready and waiting jobs, and request a stop of inflight ones (Q4)."""
        answers: list[DeadLettering] = [self._dead_letter(death, now) for death in deaths]
        for death, answer in zip(deaths, answers, strict=True):
            if answer == "dead":
                self._apply_end(death.id, now)
        return answers

    def _dead_letter(self, death: DeadLetter, now: datetime) -> DeadLettering:
        answer = self._request_stop(death.id, lambda job: evolve.asked_to_die(job, death, now))
        if answer is None:
            self._write(evolve.dead_lettered(self.jobs[death.id], death, now))
        return answer or "dead"

    def delete(self, id: str) -> Deletion:
        """Delete one ended job that no dependant needs."""
        job = self.jobs.get(id)
        if job is None:
            return "missing"
        if job.state not in TERMINAL:
            return "live"
        if self.edges.is_needed(id):
            return "needed"
        self._remove(job)
        return "deleted"

    def _remove(self, job: JobRecord) -> None:
        del self.jobs[job.id], self._seq[job.id]
        self.keys.forget(job)
        self.edges.remove(job.id)

    def replay(self, replays: Sequence[Replay], now: datetime) -> list[Replaying]:
        """Put dead or cancelled jobs back in line (Q2), each waiting for those parents that run again too (Q3)."""
        again = {it.id for it in replays if it.id in self.jobs and self.jobs[it.id].state in (DLQ, CANCELLED)}
        for id in again:
            self._reopen(id, again)
        return [self._replay(replay, now) for replay in replays]

    def _reopen(self, id: str, again: Set[str]) -> None:
        """Let a job wait again for replayed parents whose failure it had collected."""
        for edge in self.edges.parents.get(id, ()):
            if edge.satisfied and (edge.parent in again or self.jobs[edge.parent].state not in TERMINAL):
                edge.satisfied = False
                self.jobs[id] = replace(self.jobs[id], unmet=self.jobs[id].unmet + 1)

    def _replay(self, replay: Replay, now: datetime) -> Replaying:
        job = self.jobs.get(replay.id)
        if job is None:
            return "missing"
        if job.state not in (DLQ, CANCELLED):
            return "not_dead"
        if replay.idempotency_key is not None:
            self.keys.free(job)
        else:
            replay = replace(replay, idempotency_key=job.idempotency_key, key_expires_at=job.key_expires_at)
        has_key = self._take_key(replay, job, now)
        if not has_key:
            replay = replace(replay, idempotency_key=None, key_expires_at=None)
        self._write(evolve.replayed(job, replay, now))
        return "replayed" if has_key else "replayed_without_key"

    def _take_key(self, replay: Replay, job: JobRecord, now: datetime) -> bool:
        """Give a replayed job its key back; False if another job or workflow holds it."""
        key = replay.idempotency_key
        if key is None or self.keys.owns(job.id, key):
            return True
        if self.keys.living(key, now) is not None:
            return False
        payload = job.payload if replay.payload is None else replay.payload
        self.keys[key] = KeyRecord(key, job.id, digest([(job.type, payload)]), replay.key_expires_at)
        return True

    def reschedule(self, change: Reschedule) -> bool:
        """Move a ready job."""
        job = self.jobs.get(change.id)
        if job is None or job.state is not READY:
            return False
        self._write(evolve.rescheduled(job, change.run_at, change.priority))
        return True

    def sweep(self, now: datetime, keep_until: datetime, limit: int) -> int:
        """End jobs that expired, and lapsed ones with a stop request (T1, N1)."""
        while self._expiring and self._expiring[0][0] <= now:
            self._stopping[heappop(self._expiring)[1]] = None
        swept = 0
        for id in list(self._stopping):
            job = self.jobs.get(id)
            if job is None or job.state in TERMINAL:
                del self._stopping[id]
            elif not is_unwanted(job, now):  # `now` is earlier than the last sweep's, or the job was replayed
                del self._stopping[id]
                if job.expires_at is not None:
                    heappush(self._expiring, (job.expires_at, id))
            elif swept < limit and not is_held(job, now):
                del self._stopping[id]
                end = evolve.lapsed if job.state is INFLIGHT else evolve.withdrawn
                self._write(end(job, now, keep_until))
                self._apply_end(id, now)
                swept += 1
        return swept

    def prune(self, now: datetime, limit: int) -> int:
        """Delete records whose retention has run out and that nothing needs (X8)."""
        over: dict[str, JobRecord] = {}
        later: list[tuple[datetime, int, str]] = []
        while len(over) < limit and self._ended and self._ended[0][0] <= now:
            entry = heappop(self._ended)
            job = self.jobs.get(entry[2])
            if job is None or job.keep_until != entry[0] or job.id in over:
                continue
            if self.edges.is_needed(job.id):
                later.append(entry)
            elif job.workflow_id is None:
                over[job.id] = job
            elif not self._is_kept(job.workflow_id, now):
                later.append(entry)
                over |= self._last_members(job.workflow_id, limit - len(over))
        for job in over.values():
            self._remove(job)
        for entry in later:
            heappush(self._ended, entry)
        return len(over)

    def _last_members(self, workflow: str, limit: int) -> dict[str, JobRecord]:
        """The jobs of a workflow to be deleted, dependants before their parents."""
        ids = sorted(self.keys.members[workflow], key=self._seq.__getitem__, reverse=True)
        return {id: self.jobs[id] for id in ids[:limit]}

    def _is_kept(self, workflow: str, now: datetime) -> bool:
        """Whether a workflow must be kept, and with it all of its jobs."""
        until = self._kept_until(workflow, now)
        if until <= now:
            return False
        for id in self.keys.members[workflow]:
            job = self.jobs[id]
            if job.keep_until is not None and job.keep_until < until:
                self._write(replace(job, keep_until=until))
        return True

    def _kept_until(self, workflow: str, now: datetime) -> datetime:
        times = [self.jobs[id].keep_until for id in self.keys.members[workflow]]
        ends = [known.expires_at for known in self.keys.values() if known.owner == workflow]
        return now + PRUNE_AGAIN if None in times else max(time for time in (*times, *ends) if time is not None)

    def next_due(self, queues: Sequence[str]) -> datetime | None:
        """When the next job of the queues is due, or any lease runs out."""
        times = [due for queue in in_line(queues) if queue not in self.paused and (due := self._line.next_due(queue))]
        if (lease := self._leases.first()) is not None:
            times.append(lease[0])
        return min(times, default=None)

    def _write(self, job: JobRecord) -> JobRecord:
        """Store a record and everything derived from it."""
        id, state, lease = job.id, job.state, job.lease
        before = self.jobs.get(id)
        self.jobs[id] = job
        was_lined = self._line.drop(id)
        if state is READY:
            self._line.put(id, job.queue, job.priority, job.due_at, self._seq[id])
        elif lease is not None:
            if was_lined or before is None or before.lease != lease:
                self._leases.put((lease.expires_at, id, lease.token))
        elif job.keep_until is not None:
            heappush(self._ended, (job.keep_until, self._seq[id], id))
            if state is CANCELLED and job.idempotency_key is None and before is not None:
                self.keys.free(before)
        return job
