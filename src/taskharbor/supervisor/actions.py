"""The decisions of a fleet, as values."""

from __future__ import annotations

from msgspec import Struct


class StartWorker(Struct, frozen=True):
    """Start a child with this number; `instead` is the child that it will replace."""

    number: int
    instead: int | None = None
    why: str | None = None


class StopWorker(Struct, frozen=True):
    """Ask a child to stop: gracefully, or at once."""

    number: int
    why: str
    urgent: bool = False


class KillWorker(Struct, frozen=True):
    """Kill a child."""

    number: int
    why: str


class Warn(Struct, frozen=True):
    """Log a warning for the operator."""

    text: str


class EndSupervision(Struct, frozen=True):
    """No child is left: end with this exit code."""

    code: int
    why: str | None = None


Action = StartWorker | StopWorker | KillWorker | Warn | EndSupervision
