"""The edges between children and parents."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from taskharbor.core.dependency import Effect, effect
from taskharbor.core.job import JobRecord
from taskharbor.core.states import DONE
from taskharbor.driver import Parent


class MemoryEdge(Struct, eq=False):
    """A child's dependency on a parent; satisfied at most once."""

    parent: str
    child: str
    policy: str
    satisfied: bool = False


class EdgeIndex:
    """The edges of a store, by child and by parent."""

    def __init__(self, jobs: Mapping[str, JobRecord]) -> None:
        self.jobs = jobs
        self.parents: dict[str, list[MemoryEdge]] = {}
        self.children: dict[str, list[MemoryEdge]] = {}

    def connect(self, edge: MemoryEdge) -> None:
        """Add an edge, satisfied if the parent has already ended that way."""
        parent = self.jobs.get(edge.parent)
        edge.satisfied = parent is not None and effect(edge.policy, parent.state) is Effect.SATISFY
        self.parents.setdefault(edge.child, []).append(edge)
        self.children.setdefault(edge.parent, []).append(edge)

    def remove(self, id: str) -> None:
        """Remove the edges of a job."""
        for edge in self.parents.pop(id, ()):
            self.children[edge.parent].remove(edge)
        for edge in self.children.pop(id, ()):
            self.parents[edge.child].remove(edge)

    def is_needed(self, id: str) -> bool:
        """Whether a dependant is not done: a dead one may be replayed and needs the results again (K3)."""
        return any(not edge.satisfied or self.jobs[edge.child].state is not DONE for edge in self.children.get(id, ()))

    def parents_of(self, id: str, most: int) -> list[Parent]:
        """The dependencies of a job in order (K3)."""
        edges = self.parents.get(id, ())
        parents = [self.jobs[edge.parent] for edge in edges]
        sizes = [len(job.result or b"") for job in parents]
        fits = sum(sizes) <= most
        return [
            Parent(job.id, edge.policy, edge.satisfied, job.state, job.result if fits else None, job.last_error, size)
            for edge, job, size in zip(edges, parents, sizes, strict=True)
        ]
