"""The transition table against the contract's sentence, and the states as people see them."""

from __future__ import annotations

from itertools import product

import pytest

from taskharbor.core.job import JobRecord
from taskharbor.core.shown import due_since, shown
from taskharbor.core.states import MOVES, TERMINAL, Move, Shown, State, check
from taskharbor.errors import IllegalMove

from .make import NOW, SECOND, claimed, lease, record

PLACES: tuple[State | None, ...] = (None, *State)

CONTRACT = """
enqueue:    nowhere → ready, nowhere → waiting
release:    waiting → ready
reschedule: ready → ready
reserve:    ready → inflight
reclaim:    inflight → inflight
ack:        inflight → done
put_back:   inflight → ready, inflight → cancelled, inflight → dlq
fail:       inflight → dlq
cancel:     inflight → cancelled
lapse:      inflight → cancelled, inflight → dlq
withdraw:   ready → cancelled, waiting → cancelled
dead_letter: ready → dlq, waiting → dlq
replay:     dlq → ready, dlq → waiting, cancelled → ready, cancelled → waiting
delete:     done → nowhere, dlq → nowhere, cancelled → nowhere
"""
LEGAL = {
    (name, *move.strip().split(" → "))
    for line in CONTRACT.strip().splitlines()
    for name, _, moves in [line.partition(":")]
    for move in moves.split(",")
}


@pytest.mark.parametrize("move", Move)
def test_the_table_lists_exactly_the_moves_of_the_contract(move: Move) -> None:
    """T1: every move × every pair of states; whatever is not listed is an error."""
    for before, after in product(PLACES, PLACES):
        legal = (str(move), str(before or "nowhere"), str(after or "nowhere")) in LEGAL
        if legal:
            check(move, before, after)
        else:
            with pytest.raises(IllegalMove, match=rf"^{move} cannot take a job from {before or 'nowhere'} to "):
                check(move, before, after)


def test_every_move_has_its_row() -> None:
    """T1: one table, complete."""
    assert set(MOVES) == set(Move)
    assert {name for name, _, _ in LEGAL} == {str(move) for move in Move}


def test_the_terminal_states() -> None:
    """T1: done, dlq and cancelled."""
    assert {State.DONE, State.DLQ, State.CANCELLED} == TERMINAL


def test_done_is_left_only_by_being_deleted() -> None:
    """T1: nothing runs again what was acknowledged."""
    assert [move for move, (sources, _) in MOVES.items() if State.DONE in sources] == [Move.DELETE]


@pytest.mark.parametrize(
    ("job", "seen"),
    [
        (record(due_at=NOW + SECOND), Shown.SCHEDULED),
        (record(due_at=NOW), Shown.READY),
        (record(due_at=NOW - SECOND), Shown.READY),
        (claimed(), Shown.CLAIMED),
        (claimed(started_at=NOW), Shown.RUNNING),
        (claimed(lease=lease(expires_at=NOW)), Shown.LAPSED),
        (claimed(lease=lease(expires_at=NOW - SECOND), started_at=NOW), Shown.LAPSED),
        (claimed(lease=None), Shown.CLAIMED),
        (record(State.WAITING, due_at=NOW + SECOND), Shown.WAITING),
        (record(State.DONE, started_at=NOW), Shown.DONE),
        (record(State.DLQ), Shown.DLQ),
        (record(State.CANCELLED), Shown.CANCELLED),
    ],
    ids=lambda value: value if isinstance(value, Shown) else "",
)
def test_the_shown_state_is_derived(job: JobRecord, seen: Shown) -> None:
    """T, T2: scheduled and ready differ by the due time, claimed and running by the start of the handler."""
    assert shown(job, NOW) is seen
    assert (due_since(job, NOW) is not None) is (seen in (Shown.READY, Shown.LAPSED))


def test_a_job_is_due_since_its_time_or_since_its_lease_ran_out() -> None:
    """D11, T2: a lapsed job waits again from then on."""
    assert due_since(record(due_at=NOW - SECOND), NOW) == NOW - SECOND
    assert due_since(claimed(lease=lease(expires_at=NOW - 2 * SECOND)), NOW) == NOW - 2 * SECOND
