"""The edge from a child to a parent."""

from __future__ import annotations


class MemoryEdge:
    """A child's dependency on a parent; satisfied at most once."""

    __slots__ = ("child", "parent", "policy", "satisfied")

    def __init__(self, parent: str, child: str, policy: str) -> None:
        self.parent = parent
        self.child = child
        self.policy = policy
        self.satisfied = False
