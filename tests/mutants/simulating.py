"""Letting the simulation look for mutants: seed after seed, until the checker names a broken invariant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from taskharbor.testing.simulation import simulate
from taskharbor.testing.simulation.flows import WrongResult

from .mutant import Mutant
from .storm import storm, weather

# How long a store may take to become quiet after the storm, in virtual seconds.
LIMIT = 900.0
# Within how many seeds these must be found, in every test run. Others are found too (`python -m mutants` lists them),
# but slowly, and some break no invariant of a history: a lease lost for no reason is only a nuisance.
BOUND = 250
FOUND = (
    "cancel_not_stored",
    "child_does_not_wait",
    "child_released_by_its_first_parent",
    "collect_is_taken_for_hold",
    "crash_counts_as_an_attempt",
    "crash_not_counted",
    "dependants_never_released",
    "dependants_released_twice",
    "every_claim_counts_a_crash",
    "extend_not_persisted",
    "extend_revives_an_expired_lease",
    "extend_unfenced",
    "failed_result_is_null",
    "flow_of_a_settle_does_not_wait",
    "freed_slot_unnoticed",
    "hold_runs_after_a_failure",
    "key_freed_on_ack",
    "lapse_not_counted",
    "lease_shorter_than_returned",
    "lost_enqueue",
    "max_crashes_ignored",
    "nesting_flattened",
    "one_attempt_too_many",
    "parents_sorted_by_id",
    "put_back_forgets_attempts",
    "reclaim_by_the_first_expiry",
    "results_in_the_wrong_order",
    "retry_drops_run_at",
    "retry_keeps_its_due_time",
    "settle_repeated_with_a_fresh_decision",
    "settled_token_forgotten",
    "snooze_counted",
    "swap_without_compare",
    "timeout_settled_while_the_handler_runs",
    "token_per_reserve",
    "token_reused_on_reclaim",
    "unfenced_ack",
    "unfenced_put_back",
    "version_not_bumped",
)


class Find(NamedTuple):
    """The first seed that shows a mutant, and the invariants that it breaks there."""

    seed: int
    violated: tuple[str, ...]

    def __str__(self) -> str:
        return f"simulation, seed {self.seed} ({' '.join(self.violated)})"


def broken(seed: int) -> tuple[str, ...]:
    """The invariants that the storm of this seed breaks; K3 if a step of a flow was given something wrong."""
    try:
        report = simulate(storm, seed, faults=weather(seed), limit=LIMIT).report
    except WrongResult:
        return ("K3",)
    return tuple(sorted({violation.name for violation in report.violations}))


def look_for(mutant: Mutant, seeds: Iterable[int]) -> Find | None:
    """The first find among the seeds."""
    for seed in seeds:
        with mutant.applied():
            violated = broken(seed)
        if violated:
            return Find(seed, violated)
    return None
