"""Workflows: `chain`, `group`, `chord`. The stores keep dependencies already; the builders come in a later release."""

from __future__ import annotations

from typing import Any, NoReturn

from taskharbor.errors import CapabilityMissing


def chain(*steps: Any) -> NoReturn:
    """One step after the other, each taking the previous result."""
    raise _to_come("chain")


def group(*steps: Any) -> NoReturn:
    """Steps side by side."""
    raise _to_come("group")


def chord(members: Any, finalizer: Any) -> NoReturn:
    """A group, then a finalizer that takes the list of its results."""
    raise _to_come("chord")


def _to_come(name: str) -> CapabilityMissing:
    return CapabilityMissing(f"{name} is not part of this release; enqueue the next job from the handler instead")
