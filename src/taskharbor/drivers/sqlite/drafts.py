"""Runs a step of the core inside a write transaction, which keeps every other writer out (decision 19)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec
from apsw import Connection

from taskharbor.core.job import LAST_MOMENT, JobRecord
from taskharbor.core.keys import KeyRecord
from taskharbor.core.line import SINCE_EVER
from taskharbor.core.steps.draft import Draft
from taskharbor.core.steps.needs import KeptUntil, Keys, Look, Members, Need, Owned, Payloads, StoredEdge, VerbStep
from taskharbor.drivers.shared import drafts
from taskharbor.drivers.shared.columns import STATES
from taskharbor.drivers.sqlite.rows import SqliteRow, micros, micros_or_none, moment
from taskharbor.drivers.sqlite.sql import load

JOBS, DAMAGED, PAYLOADS = load("step_jobs"), load("step_damaged"), load("step_payloads")
ABOVE, BELOW = load("step_above"), load("step_below")
KEYS, OWNED, UNFINISHED = load("step_keys"), load("step_owned"), load("step_unfinished")
KEPT, MEMBERS = load("step_kept"), load("step_members")
PUT, PUT_EDGE, PUT_KEY, KEEP = load("step_put"), load("step_edge"), load("key_put"), load("step_keep")
REMOVE, REMOVE_EDGES, REMOVE_KEY = load("step_remove"), load("step_remove_edges"), load("key_remove")

P = ParamSpec("P")
R = TypeVar("R")
_encode = msgspec.json.Encoder().encode
TIMES = 1 + len(drafts.TIMES)


def run(db: Connection, step: Callable[Concatenate[Draft, P], VerbStep[R]], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a step and write what it changed."""
    draft = Draft()
    needs = step(draft, *args, **kwargs)
    while True:
        try:
            need = next(needs)
        except StopIteration as end:
            _write(db, draft)
            answer: R = end.value
            return answer
        _answer(db, draft, need)


def _answer(db: Connection, draft: Draft, need: Need) -> None:
    match need:
        case Look(ids, above, below):
            edges = [*_edges(db, ABOVE, above), *_edges(db, BELOW, below)]
            ends = [end for edge in edges for end in (edge.child, edge.parent)]
            _learn_jobs(db, draft, draft.jobs.unknown((*ids, *above, *below, *ends)))
            draft.learn_edges(edges)
        case Keys(keys, unfinished):
            _learn_keys(db, draft, KEYS, keys)
            if unfinished:
                owners = [known.owner for key in keys if (known := draft.keys.known[key]) is not None]
                draft.unfinished |= dict(_rows(db, UNFINISHED, owners))
        case Owned(workflows):
            _learn_keys(db, draft, OWNED, workflows)
        case KeptUntil(workflows):
            until = {id: db.execute(KEPT, (id,)).get for id in workflows}
            draft.kept |= {id: None if stored is None else _time(stored) for id, stored in until.items()}
        case Members(workflow, most):
            draft.members[workflow] = [id for (id,) in db.execute(MEMBERS, (workflow, most))]
            _learn_jobs(db, draft, draft.jobs.unknown(draft.members[workflow]))
        case Payloads(ids):
            draft.payloads |= dict(_rows(db, PAYLOADS, ids))
        case _:
            raise NotImplementedError(f"no step of this driver needs {need}")


def _rows(db: Connection, statement: str, ids: Iterable[str]) -> Iterable[SqliteRow]:
    given = list(ids)
    return db.execute(statement, (_encode(given).decode(),)) if given else ()


def _edges(db: Connection, statement: str, ids: Iterable[str]) -> list[StoredEdge]:
    return [StoredEdge(*row) for row in _rows(db, statement, ids)]


def _learn_jobs(db: Connection, draft: Draft, ids: Sequence[str]) -> None:
    try:
        rows = list(_rows(db, JOBS, ids))
    except UnicodeDecodeError:  # one damaged job must not stop what is done to the others (X5)
        rows = [tuple(map(_readable, row)) for row in _rows(db, DAMAGED, ids)]
    draft.learn(ids, (drafts.record(row, READERS) for row in rows))


def _learn_keys(db: Connection, draft: Draft, statement: str, asked: Sequence[str]) -> None:
    for key, owner, digest, expires_at in _rows(db, statement, asked):
        until = None if expires_at is None else _time(expires_at)
        draft.keys.learn(key, KeyRecord(key, _readable(owner), digest, until))
    if statement is KEYS:
        for key in asked:
            draft.keys.learn(key, None)


def _readable(stored: Any) -> Any:
    """Return a stored value; of bytes that are not text, the part that can be read."""
    return stored.decode(errors="replace") if isinstance(stored, bytes) else stored


def _time(stored: int) -> datetime:
    """Return a stored time; one that is out of range does not stop a step."""
    try:
        return moment(stored)
    except OverflowError:
        return LAST_MOMENT if stored > 0 else SINCE_EVER


_READ: dict[str, drafts.ValueReader] = {
    **dict.fromkeys(drafts.READ, lambda stored: stored),
    **dict.fromkeys(("due_at", *drafts.TIMES), _time),
    "state": STATES.__getitem__,
    "lease": lambda stored: drafts.lease_until(_time(stored)),
    "kept": bool,
}
READERS = list(_READ.items())
# The jobs of a step share most of their times.
_stored = lru_cache(maxsize=4096)(micros_or_none)


def _write(db: Connection, draft: Draft) -> None:
    """Write what a step changed."""
    db.executemany(PUT, [_row(job) for job in drafts.changed_jobs(draft)])
    db.executemany(PUT_EDGE, [(*place, edge.satisfied) for place, _, edge in draft.edges.changes() if edge is not None])
    for statement in (REMOVE, REMOVE_EDGES):
        _rows(db, statement, drafts.removed(draft.jobs))
    db.executemany(REMOVE_KEY, [(key,) for key in drafts.removed(draft.keys)])
    stored = [it for _, _, it in draft.keys.changes() if it is not None]
    db.executemany(PUT_KEY, [(it.key, it.owner, it.digest, micros_or_none(it.expires_at)) for it in stored])
    db.executemany(KEEP, [(workflow, micros(until)) for workflow, until in draft.keep.items()])


def _row(job: JobRecord) -> SqliteRow:
    row = drafts.values(job)
    payload = None if job.payload is drafts.UNREAD else job.payload
    return (*map(_stored, row[:TIMES]), *row[TIMES:], payload, job.id)
