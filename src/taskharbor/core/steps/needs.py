"""The needs of steps, and a stored edge.

What is answered must hold until the step's changes are written.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

from msgspec import Struct

R = TypeVar("R")


class StoredEdge(Struct, frozen=True, gc=False):
    """A child's dependency on a parent. `position` is its place among the child's dependencies."""

    child: str
    position: int
    parent: str
    policy: str
    satisfied: bool


class Look(Struct, frozen=True, gc=False):
    """Records by id; edges above and below jobs, with the records at both ends."""

    ids: Sequence[str] = ()
    above: Sequence[str] = ()
    below: Sequence[str] = ()


class Keys(Struct, frozen=True, gc=False):
    """Idempotency keys; if asked for, also the number of unfinished jobs of the owner of each known one."""

    keys: Sequence[str]
    unfinished: bool = False


class Owned(Struct, frozen=True, gc=False):
    """The keys of these workflows."""

    workflows: Sequence[str]


class KeptUntil(Struct, frozen=True, gc=False):
    """Until when the last record of each workflow is kept; None while one of its jobs has not ended."""

    workflows: Sequence[str]


class Members(Struct, frozen=True, gc=False):
    """Up to `most` records of a workflow, the newest first."""

    workflow: str
    most: int


class Payloads(Struct, frozen=True, gc=False):
    """The payloads of jobs, which their records in the draft may lack."""

    ids: Sequence[str]


class NamedSchedules(Struct, frozen=True, gc=False):
    """Schedules by name."""

    names: Sequence[str]


Need = Look | Keys | Owned | KeptUntil | Members | Payloads | NamedSchedules
VerbStep = Generator[Need, None, R]
