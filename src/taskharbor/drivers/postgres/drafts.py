"""Runs a step of the core inside a transaction: locked reads answer its needs (decision 19).

The order of locks, for every statement of this driver, hot paths included:

1. live rows, parents before their dependants, each batch by number: settles, heartbeats, cancels, sweeps. A replay
   locks the live parents of a job before the job, as the end of a parent does.
2. ended rows by number: deletes, replays, and the ended dependants of what ends.
3. edges, by child and position. The edges above and below a job belong to its row: they are read once it is locked.
4. keys, by text. Only an enqueue takes keys first, for jobs that no other transaction knows yet.

Searches (reserve, sweep, prune) skip rows that another transaction holds: they wait for nothing. A step locks only the
table that it changes, live or ended, and reads the rest without a lock; a cascade also locks the dependants that it
changes, wherever they are. It locks up to a thousand at a time, so two cascades that meet can deadlock: PostgreSQL ends
one of the two transactions, and `steps.py` runs it again. A job that changes tables while a step waits for it may
be lockable only out of order: then the step gives up its locks, and `steps.py` runs it again too (`Moved`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec.structs import astuple

from taskharbor.core.dependency import Policy
from taskharbor.core.job import JobRecord
from taskharbor.core.keys import KeyRecord
from taskharbor.core.states import TERMINAL
from taskharbor.core.steps.draft import Draft
from taskharbor.core.steps.needs import KeptUntil, Keys, Look, Members, Need, Owned, Payloads, StoredEdge, VerbStep
from taskharbor.drivers.postgres.db import Db, Row
from taskharbor.drivers.postgres.failure import Moved
from taskharbor.drivers.postgres.rows import text_or_none
from taskharbor.drivers.shared import drafts
from taskharbor.drivers.shared.columns import STATES
from taskharbor.errors import StoreCorrupt

P = ParamSpec("P")
R = TypeVar("R")

# A look into `live` and then into `ended` misses a row that moves between the two. The next look finds it, unless it
# has moved again.
LOOKS = 10

# The statements that read jobs and lock them in one of their tables, or in both.
LIVE, ENDED, BOTH = "step_hold_live", "step_hold_ended", "step_hold"


async def run(
    db: Db, locks: str, step: Callable[Concatenate[Draft, P], VerbStep[R]], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Run a step and write what it changed: LIVE jobs and their dependants, or ENDED jobs."""
    drafting = Drafting(db, locks)
    answer = await drafting.follow(step(drafting.draft, *args, **kwargs))
    await drafting.write()
    return answer


class Drafting:
    """The draft of one step, and how its needs are answered."""

    def __init__(self, db: Db, locks: str) -> None:
        self.draft = Draft()
        self._db = db
        self._locks = locks
        self._held: set[str] = set()
        self._keyed: set[str] = set()
        self._contended: set[str] = set()
        self._held_keys: list[str] = []

    async def follow(self, needs: VerbStep[R]) -> R:
        """Answer what a step needs until it ends."""
        while True:
            try:
                need = next(needs)
            except StopIteration as end:
                answer: R = end.value
                return answer
            await self.answer(need)

    async def answer(self, need: Need) -> None:
        """Load what a step needs into the draft."""
        draft = self.draft
        match need:
            case Look():
                await self._look(need)
            case Keys(keys, unfinished):
                await self._look_up(keys, unfinished)
            case Owned(workflows):
                self._keyed.update(workflows)
                self._learn_keys(await self._rows("step_owned", workflows))
            case KeptUntil(workflows):
                draft.kept.update(await self._pairs("step_kept", workflows))
                draft.kept.update(dict.fromkeys(self._contended.intersection(workflows)))
            case Members(workflow, most):
                await self._learn_members(workflow, most)
            case Payloads(ids):
                draft.payloads.update(await self._pairs("step_payloads", ids))
            case _:
                raise NotImplementedError(f"no step of this driver needs {need}")

    async def _look(self, need: Look) -> None:
        """Lock jobs, then read their edges; of the edges above them, those to parents that are locked too.

        A parent that was replayed meanwhile counts as replayed after this step.
        """
        parents = [row[0] for row in await self._rows("step_hold_parents", need.above)]
        await self._hold((*need.ids, *need.above, *need.below), self._locks)
        above = [StoredEdge(*row) for row in await self._rows("step_above", need.above)]
        below = await self._below(need.below)
        if self._locks == LIVE and (line := await self._hold_line(below)):
            below += await self._below(line)
            self.draft.learn_below(line)
            await self._hold(_changing(below), BOTH)
        await self._read((*parents, *(edge.child for edge in below)))
        locked = self._held.union(parents)
        self.draft.learn_edges((*(edge for edge in above if edge.parent in locked), *below))

    async def _below(self, ids: Sequence[str]) -> list[StoredEdge]:
        return [StoredEdge(*row) for row in await self._rows("step_below", ids)]

    async def _hold_line(self, below: Sequence[StoredEdge]) -> list[str]:
        """Lock the dependants that may change; return those to be cancelled, and in turn theirs, as far as locked.

        Looking at one generation after another would take a round trip for each step of a long chain.
        """
        cancelled = [edge.child for edge in below if not edge.satisfied and edge.policy == Policy.CANCEL]
        line = [row[0] for row in await self._rows("step_line", cancelled)]
        await self._hold((*_changing(below), *line), BOTH)
        return [id for id in line if id in self._held]

    async def _hold(self, ids: Iterable[str], name: str) -> None:
        """Lock and read jobs that are live, or ended, or either; the others are only read.

        A job that moved to the other table while this waited for its row is read again. If it should have been locked,
        the step has to begin again (`Moved`), because jobs behind it in the order are locked already. Dependants have
        no order among themselves: they are tried again here.
        """
        left = [id for id in dict.fromkeys(ids) if id not in self._held]
        known = self.draft.jobs.known
        seen = [id for id in left if id in known and not _is_live(known.pop(id))]
        for _ in range(LOOKS if name == BOTH else 1):
            left = await self._lock(left, name)
        await self._read(left)
        if any((job := known[id]) is not None and _is_locked(job, name) for id in left):
            raise Moved
        if any(_is_live(known[id]) for id in seen):
            raise Moved  # it is live again: the edges below it may have changed since they were read

    async def _lock(self, ids: Sequence[str], name: str) -> list[str]:
        """Lock and read jobs; return those that were moving between the tables."""
        if not ids:
            return []
        found = await self._records(ids, name)
        self.draft.learn((), found)
        self._held.update(job.id for job in found if _is_locked(job, name))
        left = self.draft.jobs.unknown(ids)
        moved = await self._pairs("states", left)
        if lost := [id for id, state in moved.items() if state is None]:
            raise nowhere(lost[0])
        self.draft.learn([id for id in left if id not in moved], ())
        return list(moved)

    async def _learn_members(self, workflow: str, most: int) -> None:
        """Lock members without waiting. If another transaction holds one, the workflow counts as unfinished.

        While its key is locked no other transaction removes its members: then they are only read.
        """
        members = self.draft.members[workflow] = [row[0] for row in await self._db.rows("step_members", workflow, most)]
        if workflow not in self._keyed and len(await self._rows("hold_free", members)) < len(members):
            self._contended.add(workflow)
        await self._read(members)

    async def _read(self, ids: Iterable[str]) -> None:
        """Read jobs without a lock."""
        unknown = self.draft.jobs.unknown(ids)
        self.draft.learn(unknown, await self._records(unknown))

    async def _records(self, ids: Sequence[str], name: str = "step_jobs") -> list[JobRecord]:
        return [drafts.record(row, READERS) for row in await self._rows(name, ids)]

    async def _look_up(self, keys: Sequence[str], unfinished: bool) -> None:
        """Lock keys. A step that may take one locks the missing ones too, by placeholders."""
        if unfinished:
            self._held_keys += keys
            await self._rows("key_hold", keys)
        self._learn_keys(await self._rows("step_keys", keys))
        for key in keys:
            self.draft.keys.learn(key, None)
        if unfinished:
            owners = [known.owner for key in keys if (known := self.draft.keys.known[key]) is not None]
            self.draft.unfinished |= await self._pairs("step_unfinished", owners)

    def _learn_keys(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.draft.keys.learn(row[0], KeyRecord(*row))

    async def write(self) -> None:
        """Write what the step changed."""
        draft, rows = self.draft, self._rows
        if jobs := list(drafts.changed_jobs(draft)):
            await self._db.rows("step_put", *_columns(jobs))
        edges = [edge for _, _, edge in draft.edges.changes() if edge is not None]
        if edges:
            places = [edge.child for edge in edges], [edge.position for edge in edges]
            await self._db.rows("step_edge", *places, [edge.satisfied for edge in edges])
            await rows("enqueue_awaited", [edge.parent for edge in edges if not edge.satisfied])
        gone = drafts.removed(draft.jobs)
        await rows("step_remove", gone)
        await rows("step_remove_edges", gone)
        await rows("key_remove", drafts.removed(draft.keys))
        if keys := [key for _, _, key in draft.keys.changes() if key is not None]:
            await self._db.rows("key_put", *map(list, zip(*map(astuple, keys), strict=True)))
        await rows("key_leave", self._held_keys)
        if keep := {id: until for id, until in draft.keep.items() if id not in self._contended}:
            await self._db.rows("step_keep", list(keep), list(keep.values()))

    async def _rows(self, name: str, ids: Iterable[str]) -> Sequence[Row]:
        """The rows of a statement that takes a list; none for an empty one."""
        given = list(ids)
        return await self._db.rows(name, given) if given else []

    async def _pairs(self, name: str, ids: Iterable[str]) -> dict[str, Any]:
        return {row[0]: row[1] for row in await self._rows(name, ids)}


def _changing(below: Iterable[StoredEdge]) -> list[str]:
    """The dependants that a step which locks live jobs may change.

    It never ends a job as done, so a dependant with the policy `hold` stays as it is.
    """
    return [edge.child for edge in below if not edge.satisfied and edge.policy != Policy.HOLD]


def _is_live(job: JobRecord | None) -> bool:
    return job is not None and job.state not in TERMINAL


def _is_locked(job: JobRecord, name: str) -> bool:
    """Whether a statement that locks jobs has locked this one."""
    return name in (BOTH, ENDED if job.state in TERMINAL else LIVE)


def _columns(jobs: Sequence[JobRecord]) -> list[list[Any]]:
    """The parameters of step_put. A list without a value is left empty."""
    payloads = [None if job.payload is drafts.UNREAD else job.payload for job in jobs]
    named = zip(drafts.CHANGED, zip(*map(drafts.values, jobs), strict=True), strict=True)
    changed = (list(map(text_or_none, column) if name in drafts.TEXTS else column) for name, column in named)
    columns: list[list[Any]] = [[job.id for job in jobs], payloads, *changed]
    return [[] if column.count(None) == len(column) else column for column in columns]


def nowhere(id: str) -> StoreCorrupt:
    """The error for a job that is neither live nor has ended."""
    return StoreCorrupt(f"job {id} is stored, but nothing says in what state: delete its row of the table `job`")


_READ: dict[str, drafts.ValueReader] = {
    **dict.fromkeys(drafts.READ, lambda stored: stored),
    "state": STATES.__getitem__,
    "lease": drafts.lease_until,
}
READERS = list(_READ.items())
