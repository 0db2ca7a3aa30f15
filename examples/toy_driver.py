"""A driver in one file: a durable job store in an append-only log, shared by the processes of one machine.

A toy, to read and to start from. docs/writing-a-driver.md explains it; the conformance kit holds it to the contract.

    Log        a key-value store with revisions: reads, and commits that compare first
    Attempt    one attempt at a step of the core: answers its needs, then turns its draft into values
    ToyDriver  the verbs: finds candidates and runs steps
    connect    opens toy:///jobs.log

Its log grows for ever, every process holds all jobs in memory, and every reserve looks at all of them.

Run it: python examples/toy_driver.py
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import NamedTuple, TypeVar
from urllib.parse import SplitResult, unquote
from zlib import crc32

from msgspec import Struct, msgpack
from msgspec.structs import replace

from taskharbor import Harbor, JobRecord
from taskharbor import driver as seam
from taskharbor.core.filter import Filter
from taskharbor.core.keys import KeyRecord
from taskharbor.core.lease import check_duration
from taskharbor.core.line import effective_due, shares
from taskharbor.core.reserved import in_line
from taskharbor.core.shown import due_since, shown
from taskharbor.core.states import TERMINAL, State
from taskharbor.core.steps import enqueue, forget, lease, replay, reschedule, settle, stop
from taskharbor.core.steps.draft import Draft
from taskharbor.core.steps.needs import KeptUntil, Keys, Look, Members, Need, Owned, Payloads, StoredEdge, VerbStep
from taskharbor.core.transition import Transition
from taskharbor.errors import ConfigError, DriverClosed, DriverForked, DriverUnavailable, LeaseError, StoreGone

R = TypeVar("R")
V = TypeVar("V", bound=Struct)


class StoredJob(Struct, frozen=True, tag="job"):
    """`job/<id>`: a record with all its edges, those to its parents and those to its dependants."""

    record: JobRecord
    edges: tuple[StoredEdge, ...] = ()


class StoredKey(Struct, frozen=True, tag="key"):
    """`key/<key>`: an idempotency key."""

    key: KeyRecord


class Owner(Struct, frozen=True, tag="owner"):
    """`owner/<id>`: the jobs of a workflow in the order of their storing; the keys of a workflow or of a job."""

    jobs: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


class Paused(Struct, frozen=True, tag="paused"):
    """`paused/<queue>`: a paused queue."""

    queue: str


Value = StoredJob | StoredKey | Owner | Paused
Edges = dict[tuple[str, int], StoredEdge | None]  # by the child and the position among its dependencies
Values = dict[str, Value | None]  # None removes a value


class Entry(NamedTuple):
    """A value and the revision that wrote it. A removed value keeps its revision."""

    revision: int = 0
    value: Value | None = None


MISSING = Entry()
HEADER = struct.Struct(">II")  # the length of a commit, and its checksum
ENCODER = msgpack.Encoder()
DECODER = msgpack.Decoder(Values)


class Conflict(Exception):
    """A value has changed since it was read: nothing was written."""


class Log:
    """Values by name in a file to which each commit is appended. A revision is the number of a commit."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._pid = os.getpid()
        self._lock = Lock()  # locks of files do not keep threads apart
        self._closed = False
        self._entries: dict[str, Entry] = {}  # in the order in which the values were created
        self._revision = 0
        self._end = 0
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)  # a new file is found again after a power cut
        os.close(folder)

    def get(self, name: str) -> Entry:
        """The value of a name, as of the last refresh or commit."""
        return self._entries.get(name, MISSING)

    def scan(self, kind: type[V]) -> list[V]:
        """All values of a kind, the oldest first."""
        with self._lock:
            values = [entry.value for entry in self._entries.values()]
        return [value for value in values if isinstance(value, kind)]

    def refresh(self) -> None:
        """Read what other processes have committed. The lock waits for a commit that has not reached the disk yet."""
        with self._locked(fcntl.LOCK_SH):
            self._read()

    def commit(self, expected: Mapping[str, int], values: Values) -> None:
        """Write all values if every name is still at the expected revision, else none."""
        with self._locked(fcntl.LOCK_EX):
            self._read()
            if any(self.get(name).revision != revision for name, revision in expected.items()):
                raise Conflict
            if values:
                body = ENCODER.encode(values)
                commit = HEADER.pack(len(body), crc32(body)) + body
                os.ftruncate(self._fd, self._end)  # a writer may have died in the middle of a commit
                if os.pwrite(self._fd, commit, self._end) < len(commit):
                    raise OSError("the disk is full")
                os.fsync(self._fd)
                self._read()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if not self._closed:
                os.close(self._fd)
            self._closed = True

    @contextmanager
    def _locked(self, kind: int) -> Generator[None]:
        if self._pid != os.getpid():
            raise DriverForked("a log belongs to the process that opened it: open it again in the child")
        with self._lock:
            if self._closed:
                raise DriverClosed("this toy driver was closed")
            if not os.fstat(self._fd).st_nlink:
                raise StoreGone("the file of this store was deleted: restart with the right one")
            try:
                fcntl.flock(self._fd, kind)
                try:
                    yield
                finally:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
            except OSError as error:
                raise DriverUnavailable(f"the log cannot be used: {error}") from error

    def _read(self) -> None:
        data = os.pread(self._fd, os.fstat(self._fd).st_size - self._end, self._end)
        while len(data) > HEADER.size:
            size, checksum = HEADER.unpack_from(data)
            body, data = data[HEADER.size : HEADER.size + size], data[HEADER.size + size :]
            if not size or len(body) < size or crc32(body) != checksum:
                break  # a commit that was cut short: it has never happened
            self._end += HEADER.size + size
            self._revision += 1
            for name, value in DECODER.decode(body).items():
                if self.get(name).value is None:
                    self._entries.pop(name, None)  # a new value goes to the end
                self._entries[name] = Entry(self._revision, value)


class Attempt:
    """One attempt at a step. It reads each value once, and remembers the revision."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._seen: dict[str, Entry] = {}
        self._draft = Draft()
        self._values: Values = {}

    def run(self, step: Callable[[Draft], VerbStep[R]]) -> R:
        """Run the step to its end, commit its changes, and return its answer."""
        answer = self._play(step(self._draft))
        self._write()
        self._log.commit({name: entry.revision for name, entry in self._seen.items()}, self._values)
        return answer

    def _play(self, running: VerbStep[R]) -> R:
        while True:
            try:
                need = next(running)
            except StopIteration as end:
                answer: R = end.value
                return answer
            self._answer(need)

    def is_stale(self) -> bool:
        """Whether a value has changed since this attempt read it."""
        return any(self._log.get(name).revision != entry.revision for name, entry in self._seen.items())

    # Reads

    def _get(self, name: str, kind: type[V]) -> V | None:
        if name not in self._seen:
            self._seen[name] = self._log.get(name)
        value = self._seen[name].value
        return value if isinstance(value, kind) else None

    def _jobs(self, ids: Iterable[str]) -> dict[str, StoredJob]:
        found = {id: self._get(f"job/{id}", StoredJob) for id in ids}
        return {id: job for id, job in found.items() if job is not None}

    def _owner(self, id: str) -> Owner:
        return self._get(f"owner/{id}", Owner) or Owner()

    def _members(self, workflow: str) -> list[JobRecord]:
        return [job.record for job in self._jobs(self._owner(workflow).jobs).values()]

    def _answer(self, need: Need) -> None:
        draft = self._draft
        match need:
            case Look():
                self._look(need)
            case Keys(keys):
                self._look_up(keys)
            case Owned(workflows):
                self._look_up(key for id in workflows for key in self._owner(id).keys)
            case KeptUntil(workflows):
                for id in workflows:
                    times = [job.keep_until for job in self._members(id)]
                    ends = [time for time in times if time is not None]
                    draft.kept[id] = max(ends) if len(ends) == len(times) else None
            case Members(workflow, most):
                jobs = self._members(workflow)[::-1][:most]
                draft.learn((), jobs)
                draft.members[workflow] = [job.id for job in jobs]
            case Payloads(ids):
                draft.payloads |= {id: draft.existing(id).payload for id in ids}
            case _:
                raise AssertionError(f"{need} belongs to a protocol that this driver does not have")

    def _look(self, need: Look) -> None:
        near = self._jobs((*need.ids, *need.above, *need.below))
        edges = [e for id in need.above if id in near for e in near[id].edges if e.child == id]
        edges += [e for id in need.below if id in near for e in near[id].edges if e.parent == id]
        ends = [id for edge in edges for id in (edge.child, edge.parent)]
        known = near | self._jobs(ends)
        self._draft.learn((*need.ids, *need.above, *need.below, *ends), (job.record for job in known.values()))
        self._draft.learn_edges(edges)

    def _look_up(self, keys: Iterable[str]) -> None:
        for name in keys:
            found = self._get(f"key/{name}", StoredKey)
            key = None if found is None else found.key
            self._draft.keys.learn(name, key)
            if key is not None:
                jobs = self._jobs(self._owner(key.owner).jobs or [key.owner]).values()
                self._draft.unfinished[key.owner] = sum(job.record.state not in TERMINAL for job in jobs)

    # Writes

    def _write(self) -> None:
        draft = self._draft
        for workflow, until in draft.keep.items():
            for job in self._members(workflow):
                if job.keep_until is not None and job.keep_until < until:
                    draft.learn((), [job])
                    draft.put(replace(job, keep_until=until))
        changed = self._changed_edges()
        for id in dict.fromkeys((*draft.jobs.before, *changed)):
            self._write_job(id, changed[id])
        for id, before, after in draft.jobs.changes():
            record = before or after
            if record is not None and record.workflow_id is not None and not (before and after):
                self._write_owner(record.workflow_id, "jobs", id, kept=after is not None)
        for name, known, new in draft.keys.changes():
            self._values[f"key/{name}"] = None if new is None else StoredKey(new)
            for key in (known, new):
                if key is not None:
                    self._write_owner(key.owner, "keys", name, kept=new is not None and new.owner == key.owner)

    def _changed_edges(self) -> defaultdict[str, Edges]:
        """The edges that the step changed, and all of the jobs that it removed, by the jobs at both ends."""
        changed: defaultdict[str, Edges] = defaultdict(dict)
        gone = [id for id, _, job in self._draft.jobs.changes() if job is None]
        changes = [(edge, None) for job in self._jobs(gone).values() for edge in job.edges]
        for edge, after in (*changes, *((before or after, after) for _, before, after in self._draft.edges.changes())):
            if edge is not None:
                for end in (edge.child, edge.parent):
                    changed[end][edge.child, edge.position] = after
        return changed

    def _write_job(self, id: str, changed: Edges) -> None:
        stored = self._jobs([id]).get(id)
        record = self._draft.jobs.known.get(id, None if stored is None else stored.record)
        edges = {(e.child, e.position): e for e in (stored.edges if stored else ())} | changed
        kept = tuple(edge for edge in edges.values() if edge is not None)
        self._values[f"job/{id}"] = None if record is None else StoredJob(record, kept)

    def _write_owner(self, id: str, field: str, item: str, *, kept: bool) -> None:
        owner = self._values.get(f"owner/{id}", self._owner(id)) or Owner()
        items = [each for each in getattr(owner, field) if each != item] + [item] * kept
        changed = replace(owner, **{field: tuple(items)})
        self._values[f"owner/{id}"] = changed if changed != Owner() else None


class ToyDriver:
    """The five verbs, reading, managing and upkeep. Each call blocks its event loop for one sync of the disk."""

    name = "toy"
    ephemeral = False
    max_payload: int | None = None

    def __init__(self, path: Path) -> None:
        self._log = Log(path)

    def _run(self, step: Callable[[Draft], VerbStep[R]]) -> R:
        """Run a step until nothing that it read has changed before its commit."""
        while True:
            self._log.refresh()
            attempt = Attempt(self._log)
            try:
                return attempt.run(step)
            except Conflict:
                continue
            except Exception:
                if not attempt.is_stale():  # values of different times may contradict each other
                    raise

    def _records(self) -> list[JobRecord]:
        """All records, the oldest first."""
        self._log.refresh()
        return [job.record for job in self._log.scan(StoredJob)]

    def _paused(self) -> set[str]:
        return {it.queue for it in self._log.scan(Paused)}

    # Driver

    async def enqueue(self, groups: Sequence[seam.Group], now: datetime) -> list[seam.GroupResult]:
        def store(draft: Draft) -> VerbStep[list[seam.GroupResult]]:
            answers: list[seam.GroupResult] = []
            for group in groups:  # one commit for all: a refused group has changed nothing in the draft
                answers.append((yield from enqueue.enqueue(draft, group, now)))
            return answers

        return self._run(store)

    async def reserve(
        self,
        queues: Sequence[str],
        now: datetime,
        lease_for: timedelta,
        limit: int,
        worker: str,
        ids: Sequence[str] | None = None,
    ) -> list[JobRecord]:
        check_duration(lease_for)
        got: list[JobRecord] = []
        while len(got) < limit and (due := self._due(queues, now, limit - len(got), ids)):
            # Other workers may have been faster: then there are fewer, and the next in line are tried.
            claim = partial(lease.claim, ids=due, now=now, lease_for=lease_for, worker=worker, new_token=_new_token)
            got += self._run(claim)
        return got

    def _due(self, queues: Sequence[str], now: datetime, limit: int, ids: Sequence[str] | None) -> list[str]:
        """Up to `limit` claimable jobs: those of `ids`, or the first in line of each queue."""
        records, paused = self._records(), self._paused()
        free = [job for job in records if job.queue not in paused and lease.is_claimable(job, now)]
        if ids is not None:
            named = {job.id for job in free}
            return [id for id in dict.fromkeys(ids) if id in named][:limit]
        free.sort(key=lambda job: (-job.priority, effective_due(job)))  # stable: of equals, the first stored
        lines = {queue: [job.id for job in free if job.queue == queue] for queue in in_line(queues)}
        first = [id for queue, share in shares(in_line(queues), limit).items() for id in lines[queue][:share]]
        rest = [id for line in lines.values() for id in line]
        return list(dict.fromkeys((*first, *rest)))[:limit]

    async def extend_lease(
        self, reports: Sequence[seam.Report], now: datetime, lease_for: timedelta
    ) -> list[seam.Extended | LeaseError]:
        check_duration(lease_for)
        return self._run(lambda draft: lease.extend(draft, reports, now, lease_for))

    async def settle(self, transitions: Sequence[Transition], now: datetime) -> list[seam.Verdict]:
        return self._run(lambda draft: settle.settle(draft, transitions, now))

    async def close(self) -> None:
        self._log.close()

    # Inspect

    async def get(self, ids: Sequence[str]) -> list[JobRecord | None]:
        found = {job.id: job for job in self._records()}
        return [found.get(id) for id in ids]

    async def find_key(self, key: str, now: datetime) -> str | None:
        def find(draft: Draft) -> VerbStep[str | None]:
            yield from draft.look_up_living([key])
            known = draft.living_key(key, now)
            return None if known is None else known.owner

        return self._run(find)

    async def query(self, where: Filter, now: datetime, limit: int, after: str | None = None) -> list[JobRecord]:
        newest_first = self._records()[::-1]
        start = next((n for n, job in enumerate(newest_first, 1) if job.id == after), 0)
        return [job for job in newest_first[start:] if where.matches(job, now)][:limit]

    async def counts(self, now: datetime) -> list[seam.QueueCounts]:
        records = self._records()
        found = {queue: seam.QueueCounts(queue=queue, paused=True) for queue in self._paused()}
        for job in records:
            counts, state = found.get(job.queue, seam.QueueCounts(queue=job.queue)), shown(job, now)
            times = [time for time in (counts.oldest_due, due_since(job, now)) if time is not None]
            changes = {state: getattr(counts, state) + 1, "oldest_due": min(times, default=None)}
            found[job.queue] = replace(counts, **changes)
        return [found[queue] for queue in sorted(found)]

    async def dead_groups(self, where: Filter, now: datetime, limit: int) -> list[seam.DeadGroup]:
        causes: defaultdict[str, list[JobRecord]] = defaultdict(list)
        for job in self._records():
            if job.state is State.DLQ and where.matches(job, now):
                causes[job.fingerprint or ""].append(job)
        groups = [_dead_group(fingerprint, jobs) for fingerprint, jobs in causes.items()]
        return sorted(groups, key=lambda group: (-group.count, group.fingerprint))[:limit]

    # Manage

    async def cancel(self, ids: Sequence[str], now: datetime, keep_until: datetime) -> list[seam.Cancellation]:
        return self._run(lambda draft: stop.cancel(draft, ids, now, keep_until))

    async def dead_letter(self, deaths: Sequence[seam.DeadLetter], now: datetime) -> list[seam.DeadLettering]:
        return self._run(lambda draft: stop.dead_letter(draft, deaths, now))

    async def delete(self, ids: Sequence[str]) -> list[seam.Deletion]:
        return self._run(lambda draft: forget.delete(draft, ids))

    async def replay(self, replays: Sequence[seam.Replay], now: datetime) -> list[seam.Replaying]:
        return self._run(lambda draft: replay.replay(draft, replays, now))

    async def reschedule(self, changes: Sequence[seam.Reschedule], now: datetime) -> list[bool]:
        return self._run(lambda draft: reschedule.reschedule(draft, changes))

    async def pause(self, queue: str, paused: bool) -> None:
        self._log.commit({}, {f"paused/{queue}": Paused(queue) if paused else None})

    # Maintain: lists of candidates, which the steps judge again

    async def sweep(self, now: datetime, keep_until: datetime, limit: int) -> int:
        unwanted = [job.id for job in self._records() if job.state not in TERMINAL and lease.is_unwanted(job, now)]
        return self._run(lambda draft: stop.sweep(draft, unwanted, now, keep_until, limit))

    async def prune(self, now: datetime, limit: int) -> int:
        ends = [(job.keep_until, job.id) for job in self._records() if job.keep_until and job.keep_until <= now]
        return self._run(lambda draft: forget.prune(draft, [id for _, id in sorted(ends)], now, limit))


def _new_token() -> str:
    return token_hex(16)


def _dead_group(fingerprint: str, jobs: Sequence[JobRecord]) -> seam.DeadGroup:
    died = sorted((job.completed_at or job.created_at, job.id, job.type, job.last_error or "") for job in jobs)
    last_at, last_id, task, error = died[-1]
    return seam.DeadGroup(
        fingerprint=fingerprint,
        task=task,
        error=error or None,
        count=len(died),
        first_at=died[0][0],
        last_at=last_at,
        last_id=last_id,
    )


async def connect(url: SplitResult, options: dict[str, str]) -> ToyDriver:
    """Open the store that a URL names: toy:///jobs.log in the working folder, toy:////var/jobs.log anywhere."""
    path = Path(unquote(url.path.removeprefix("/")))
    if url.netloc or not path.name:
        raise ConfigError("name a file by three slashes: toy:///jobs.log, or four for toy:////var/lib/jobs.log")
    try:
        return ToyDriver(path)
    except OSError as error:
        raise ConfigError(f"cannot open {path}: {error.strerror}") from error


def main() -> None:
    """Run a job by a worker, and find it again after the store was opened anew."""
    path = Path("toy.log")
    harbor = Harbor(driver=ToyDriver(path))

    @harbor.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    with harbor.open():
        job = double.enqueue(21)
        with harbor.worker():
            print("the result is", job.result(timeout=30))

    with Harbor(driver=ToyDriver(path)).open() as again:
        print("the log says", again.admin.jobs.get(job.id).state)


if __name__ == "__main__":
    main()
