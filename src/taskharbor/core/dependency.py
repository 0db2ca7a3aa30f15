"""The effect of a parent's end on a waiting child (K2, K4)."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from taskharbor.core.states import TERMINAL, State


class Policy(StrEnum):
    """Stored with each edge: what the child does when that parent fails or is cancelled."""

    HOLD = "hold"
    CANCEL = "cancel"
    COLLECT = "collect"


class Effect(StrEnum):
    """The effect on the edge: it is satisfied, it keeps waiting, or the child is cancelled."""

    SATISFY = "satisfy"
    HOLD = "hold"
    CANCEL = "cancel"


def effect(policy: str, parent: State) -> Effect:
    """The effect of a parent in this state on a child's edge."""
    if parent is State.DONE:
        return Effect.SATISFY
    if parent not in TERMINAL or policy == Policy.HOLD:
        return Effect.HOLD
    return Effect.SATISFY if policy == Policy.COLLECT else Effect.CANCEL


def is_met(policy: str, parent: State | None) -> bool:
    """Whether a new edge is satisfied at once. A parent that is stored in the same step (None) has not ended."""
    return parent is not None and effect(policy, parent) is Effect.SATISFY


class Parent(Struct, frozen=True, gc=False):
    """One dependency of a job: the parent's state and result. `size` is the size of the result."""

    id: str
    policy: str
    satisfied: bool
    state: State
    result: bytes | None
    error: str | None
    size: int = 0
