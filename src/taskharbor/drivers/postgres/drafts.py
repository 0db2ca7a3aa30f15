"""Runs a step of the core inside a transaction: locked reads answer its needs (decision 19).

Jobs are locked before their edges are read, and keys in the order of their text, as everywhere in this driver. Only
what deleting needs is answered so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from taskharbor.core.job import JobRecord
from taskharbor.core.keys import KeyRecord
from taskharbor.core.line import SINCE_EVER
from taskharbor.core.states import TERMINAL, WAITING, State
from taskharbor.core.steps.draft import Draft
from taskharbor.core.steps.needs import Keys, Look, Members, Need, Owned, Step, StoredEdge
from taskharbor.drivers.postgres.db import Db, Row
from taskharbor.drivers.postgres.dependants import LOOKS, nowhere
from taskharbor.drivers.shared.columns import STATES

R = TypeVar("R")


async def answered(db: Db, draft: Draft, step: Step[R]) -> R:
    """Answer the needs of a step until it returns; the caller writes the draft."""
    while True:
        try:
            need = next(step)
        except StopIteration as end:
            answer: R = end.value
            return answer
        await _answer(db, draft, need)


async def _answer(db: Db, draft: Draft, need: Need) -> None:
    match need:
        case Look(ids, (), below):
            await _look(db, draft, ids, below)
        case Keys(keys, _):
            _learn_keys(draft, keys, await db.rows("key_lock", list(keys)))
        case Owned(workflows):
            _learn_keys(draft, (), await db.rows("key_owned", list(workflows)))
        case Members(workflow, most):
            draft.members[workflow] = [row[1] for row in await db.rows("prune_members", [workflow], most)]
            draft.learn((), (_record(id, WAITING) for id in draft.members[workflow]))
        case _:
            raise NotImplementedError(f"no step of this driver needs {need}")


async def _look(db: Db, draft: Draft, ids: Sequence[str], below: Sequence[str]) -> None:
    """Of a record, what deleting reads: its state, its key and its workflow; of a dependant, its state."""
    states = await held_states(db, ids, "hold_ended")
    rows = {row[0]: row for row in await db.rows("delete_records", list(states))} if states else {}
    draft.learn(ids, (_record(id, states[id], *row[1:]) for id, row in rows.items()))
    for child, position, parent, policy, satisfied, state in await db.rows("delete_below", list(below)):
        draft.learn((), [_record(child, WAITING if state is None else STATES[state])])
        draft.learn_edges([StoredEdge(child, position, parent, policy, satisfied)])


def _record(id: str, state: State, key: str | None = None, workflow: str | None = None) -> JobRecord:
    return JobRecord(
        id=id,
        type="",
        queue="",
        payload=b"",
        state=state,
        created_at=SINCE_EVER,
        due_at=SINCE_EVER,
        idempotency_key=key,
        workflow_id=workflow,
    )


def _learn_keys(draft: Draft, asked: Iterable[str], rows: Iterable[Row]) -> None:
    for row in rows:
        draft.keys.learn(row[0], KeyRecord(*row))
    for key in asked:
        draft.keys.learn(key, None)


async def held_states(db: Db, ids: Sequence[str], name: str) -> dict[str, State]:
    """The states of those that exist. Those that the statement of this name holds, the live or the ended ones, stay so
    until the transaction ends."""
    states: dict[str, State] = {}
    left = list(dict.fromkeys(ids))
    for _ in range(LOOKS):
        held = {id: STATES[state] for id, state in await db.rows(name, left)}
        states |= held
        found = {row[0]: row[1] for row in await db.rows("states", [id for id in left if id not in states])}
        others = {id: STATES[state] for id, state in found.items() if state is not None}
        states |= {id: state for id, state in others.items() if (state in TERMINAL) is (name == "hold")}
        left = [id for id in found if id not in states]  # moved at this moment
        if not left:
            return states
    raise nowhere(left[0])
