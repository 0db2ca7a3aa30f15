"""The states of a job and the one table of legal moves between them (T1).

`None` means "not in the store". A move that the table does not list is an error and changes nothing.
"""

from __future__ import annotations

from enum import StrEnum

from taskharbor.errors import IllegalMove


class State(StrEnum):
    """A stored state."""

    __hash__ = str.__hash__  # Enum's own __hash__ is a Python function, and every job is looked up in sets of states

    READY = "ready"
    WAITING = "waiting"
    INFLIGHT = "inflight"
    DONE = "done"
    DLQ = "dlq"
    CANCELLED = "cancelled"


TERMINAL = frozenset({State.DONE, State.DLQ, State.CANCELLED})


class Move(StrEnum):
    """The reason for a change of state."""

    __hash__ = str.__hash__

    ENQUEUE = "enqueue"
    RELEASE = "release"
    RESCHEDULE = "reschedule"
    RESERVE = "reserve"
    RECLAIM = "reclaim"
    ACK = "ack"
    PUT_BACK = "put_back"
    FAIL = "fail"
    CANCEL = "cancel"
    LAPSE = "lapse"
    WITHDRAW = "withdraw"
    DEAD_LETTER = "dead_letter"
    REPLAY = "replay"
    DELETE = "delete"


# Module-level names for hot paths: before Python 3.12, State.READY is a look-up in Python.
READY, WAITING, INFLIGHT, DONE, DLQ, CANCELLED = State

MOVES: dict[Move, tuple[frozenset[State | None], frozenset[State | None]]] = {
    Move.ENQUEUE: (frozenset({None}), frozenset({READY, WAITING})),
    Move.RELEASE: (frozenset({WAITING}), frozenset({READY})),
    Move.RESCHEDULE: (frozenset({READY}), frozenset({READY})),
    Move.RESERVE: (frozenset({READY}), frozenset({INFLIGHT})),
    Move.RECLAIM: (frozenset({INFLIGHT}), frozenset({INFLIGHT})),
    Move.ACK: (frozenset({INFLIGHT}), frozenset({DONE})),
    Move.PUT_BACK: (frozenset({INFLIGHT}), frozenset({READY, CANCELLED, DLQ})),
    Move.FAIL: (frozenset({INFLIGHT}), frozenset({DLQ})),
    Move.CANCEL: (frozenset({INFLIGHT}), frozenset({CANCELLED})),
    Move.LAPSE: (frozenset({INFLIGHT}), frozenset({CANCELLED, DLQ})),
    Move.WITHDRAW: (frozenset({READY, WAITING}), frozenset({CANCELLED})),
    Move.DEAD_LETTER: (frozenset({READY, WAITING}), frozenset({DLQ})),
    Move.REPLAY: (frozenset({DLQ, CANCELLED}), frozenset({READY, WAITING})),
    Move.DELETE: (frozenset({DONE, DLQ, CANCELLED}), frozenset({None})),
}


_LEGAL = {
    (move, before, after) for move, (sources, targets) in MOVES.items() for before in sources for after in targets
}


def check(move: Move, before: State | None, after: State | None) -> None:
    """Raise `IllegalMove` unless the table lists this move."""
    if (move, before, after) not in _LEGAL:
        raise IllegalMove(f"{move} cannot take a job from {before or 'nowhere'} to {after or 'nowhere'}")


class Shown(StrEnum):
    """A state as people see it: derived from the stored one, never written."""

    SCHEDULED = "scheduled"
    READY = "ready"
    WAITING = "waiting"
    CLAIMED = "claimed"
    RUNNING = "running"
    LAPSED = "lapsed"
    DONE = "done"
    DLQ = "dlq"
    CANCELLED = "cancelled"
