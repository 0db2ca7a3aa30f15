"""The result of a check: violations by invariant, duplicates with their explanations, and counts."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

INVARIANTS = {
    "H1": "no job lost, no job without a request",
    "H2": "one version per claim, unique tokens",
    "H3": "never two valid leases",
    "H4": "no stale commit",
    "H5": "one end per life, every end explained",
    "H6": "attempts, crashes and executions add up",
    "H7": "never too early, never expired",
    "H8": "one creation per key and lifetime",
    "H9": "no two handlers under valid leases",
    "H10": "dependants and recurring slots exactly once",
    "H11": "bounded overtaking",
    "H12": "everything ends",
}


class Reference(Struct, frozen=True, gc=False):
    """An operation or a run that a finding refers to. The number of a run is its lease version."""

    who: str
    number: int
    verb: str
    at: int
    item: str

    def __str__(self) -> str:
        return f"{self.verb} #{self.number} by {self.who} at {self.at} of {self.item}"


class Violation(Struct, frozen=True, gc=False):
    """A broken invariant: its name, what is wrong, and the operations involved."""

    name: str
    message: str
    operations: tuple[Reference, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {self.message}", *(f"    {each}" for each in self.operations)])


class Duplicate(Struct, frozen=True, gc=False):
    """Two runs of one job that overlapped although no promise was broken, and why."""

    job: str
    explanation: str
    operations: tuple[Reference, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"{self.job}: {self.explanation}", *(f"    {each}" for each in self.operations)])


class Counts(Struct):
    """The size of the checked history."""

    operations: int = 0
    unknown: int = 0
    jobs: int = 0
    claims: int = 0
    executions: int = 0


class CheckReport(Struct, frozen=True):
    """The outcome of a check."""

    violations: list[Violation]
    duplicates: list[Duplicate]
    counts: Counts

    @property
    def fine(self) -> bool:
        """Whether nothing was violated."""
        return not self.violations

    @property
    def names(self) -> set[str]:
        """The invariants that were violated."""
        return set(self.by_name)

    @property
    def by_name(self) -> dict[str, list[Violation]]:
        """The violations of each invariant that has any, in the order of `INVARIANTS`."""
        found = {name: [each for each in self.violations if each.name == name] for name in INVARIANTS}
        return {name: violations for name, violations in found.items() if violations}

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, limit: int = 20) -> Iterable[str]:
        """The report as text: counts, then up to `limit` findings of each kind."""
        counts = self.counts
        yield (
            f"{counts.operations} operations ({counts.unknown} with unknown outcomes), {counts.jobs} jobs, "
            f"{counts.claims} claims, {counts.executions} executions"
        )
        for name, found in self.by_name.items():
            yield f"{name} VIOLATED {len(found)} times: {INVARIANTS[name]}"
            yield from _capped(found, limit)
        if self.duplicates:
            yield f"{len(self.duplicates)} overlapping runs, each explained:"
            yield from _capped(self.duplicates, limit)
        yield "fine" if self.fine else f"{len(self.violations)} violations"


def _capped(found: list[Violation] | list[Duplicate], limit: int) -> Iterable[str]:
    for each in found[:limit]:
        yield "  " + str(each).replace("\n", "\n  ")
    if len(found) > limit:
        yield f"  and {len(found) - limit} more"
