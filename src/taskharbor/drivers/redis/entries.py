"""The indexes: which entries a job has in which of them, as a function of its record.

A step writes the difference between the entries of a job before and after. The scripts of the hot verbs keep the same
entries; tests compare them with this function. An entry is the name of a key, a member, and its score or number:

    line:<priority>:<queue>   in line, by due time; a member is the number of the job, then its id
    leases                    claimed, by expiry; once lapsed and in line again they are in `lined` instead
    expiring                  not ended and with an `expires_at`, by that
    stopping                  claimed and asked to stop
    ended                     done, dead and cancelled, by `keep_until`
    all, dead                 all jobs, and the dead, by number
    flow:<workflow>           the jobs of a workflow, by number; flowborn:<workflow>, by the time they were stored
    flowends:<workflow>       those that ended, by `keep_until`
    counts                    the number of jobs per state and queue
    flowcounts                the number of jobs per state and workflow: `active` for ready and claimed ones, `open` for
                              all that have not ended
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime

from taskharbor.core.job import JobRecord
from taskharbor.core.line import SINCE_EVER, effective_due
from taskharbor.core.states import DLQ, INFLIGHT, READY, State
from taskharbor.drivers.redis.parts import is_open, micros
from taskharbor.drivers.redis.wire import Arg

FIRST = "-inf"
ACTIVE = "active"
FLOW_COUNTS = (ACTIVE, "open", "waiting", "done", "dlq", "cancelled")
MOST_WORDS = 1000  # of one command: the stack of Lua has to hold them
Write = tuple[Arg, ...]  # a command
Entries = dict[tuple[str, str], str]  # key and member → score
Numbers = dict[tuple[str, str], int]


def line(priority: int, queue: str) -> str:
    """The name of a line."""
    return f"line:{priority}:{queue}"


def member(seq: int, id: str) -> str:
    """A job in line."""
    return f"{seq:016d}{id}"


def score(time: datetime) -> str:
    """A time as a score."""
    return FIRST if time == SINCE_EVER else str(micros(time))


def entries(job: JobRecord, seq: int, lined: int) -> Entries:
    """The members and scores of a job."""
    found: Entries = {("all", job.id): str(seq)}
    if job.state is READY or lined:
        found[line(job.priority, job.queue), member(seq, job.id)] = score(effective_due(job))
        found[f"ranks:{job.queue}", str(job.priority)] = str(job.priority)
    if job.lease is not None:
        found["lined" if lined else "leases", job.id] = score(job.lease.expires_at)
    if is_open(job.state):
        if job.expires_at is not None:
            found["expiring", job.id] = score(job.expires_at)
        if job.state is INFLIGHT and job.stop_requested_at is not None:
            found["stopping", job.id] = "0"
    elif job.keep_until is not None:
        found["ended", job.id] = score(job.keep_until)
    if job.state is DLQ:
        found["dead", job.id] = str(seq)
    if job.workflow_id is not None:
        found[f"flow:{job.workflow_id}", job.id] = str(seq)
        found[f"flowborn:{job.workflow_id}", job.id] = score(job.created_at)
        found["flows", job.workflow_id] = "0"
        if job.keep_until is not None:
            found[f"flowends:{job.workflow_id}", job.id] = score(job.keep_until)
    return found


def numbers(job: JobRecord) -> Numbers:
    """The totals that a job counts in."""
    found: Numbers = {("counts", f"{job.state.value} {job.queue}"): 1}
    if job.workflow_id is not None:
        for name in flow_counts(job.state):
            found["flowcounts", f"{name} {job.workflow_id}"] = 1
    return found


def flow_counts(state: State) -> tuple[str, ...]:
    """The totals of its workflow that a job in this state counts in. A claim changes none of them."""
    name = ACTIVE if state in (READY, INFLIGHT) else state.value
    return (name, "open") if is_open(state) else (name,)


def difference(before: Entries, after: Entries) -> Iterator[tuple[str, ...]]:
    """The commands that turn the entries before into those after. Names that others may need too are not removed."""
    for key, name in before.keys() - after.keys():
        if not key.startswith("ranks:") and key != "flows":
            yield "ZREM", key, name
    for (key, name), value in after.items():
        if before.get((key, name)) != value:
            yield "ZADD", key, value, name


def changes(before: Numbers, after: Numbers) -> Iterator[tuple[str, ...]]:
    """The commands that turn the totals before into those after."""
    for key, name in sorted(before.keys() | after.keys()):
        if by := after.get((key, name), 0) - before.get((key, name), 0):
            yield "HINCRBY", key, name, str(by)


def _is_addition(group: tuple[tuple[Arg, Arg], list[Arg]]) -> bool:
    return group[0][0] != "ZREM"


def together(writes: Iterable[Write]) -> Iterator[Write]:
    """The same writes by fewer commands: those of one key at once, numbers added up. No two concern the same member.

    Entries are removed first: after that a full server refuses nothing, and jobs can end, be cancelled and pruned.
    """
    sums: Counter[tuple[Arg, Arg]] = Counter()
    grouped: dict[tuple[Arg, Arg], list[Arg]] = {}
    others: list[Write] = []
    for command, key, *words in writes:
        if command == "HINCRBY":
            sums[key, words[0]] += int(words[1])
        elif command in ("HSET", "ZADD", "ZREM"):
            grouped.setdefault((command, key), []).extend(words)
        else:
            others.append((command, key, *words))
    for (command, key), words in sorted(grouped.items(), key=_is_addition):
        for first in range(0, len(words), MOST_WORDS):
            yield command, key, *words[first : first + MOST_WORDS]
    yield from (("HINCRBY", key, name, by) for (key, name), by in sums.items() if by)
    yield from others
