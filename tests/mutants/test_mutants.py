"""Every mutant is caught by the test it names, and many by the simulation; without a mutant, nothing is reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from .catching import MUTANTS, check_healthy, complaint_about
from .kit import CASES
from .matrix import catchers
from .mutant import Mutant
from .scenes import SCENES
from .simulating import BOUND, FOUND, broken, look_for

# What a mutant breaks off in the middle may leave tasks and coroutines behind.
pytestmark = pytest.mark.filterwarnings("ignore")

NAMED = {
    "unfenced_ack",
    "ack_ignores_expiry",
    "extend_revives_an_expired_lease",
    "extend_not_persisted",
    "token_reused_on_reclaim",
    "version_not_bumped",
    "lost_enqueue",
    "half_stored_group",
    "reserve_returns_done_jobs",
    "retry_drops_run_at",
    "idempotency_check_then_put",
    "heartbeat_stopped_before_settle",
    "dependants_released_twice",
    "settle_replay_not_recognised",
    "priority_ignored",
    "future_job_early",
    "crash_not_counted",
}


@pytest.fixture(autouse=True)
def short_complaints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where these are set pytest spells out how long lists differ, which takes minutes and is never read."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_is_caught(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    for catcher in mutant.caught_by:
        check_healthy(catcher, mutant.kind)
        assert complaint_about(mutant, catcher) is not None, f"{catcher} does not notice {mutant.name}"
    record_property("mutant", (mutant.kind, mutant.name, mutant.caught_by))


@pytest.mark.parametrize("name", FOUND)
def test_the_simulation_finds_it(name: str, record_property: Callable[[str, object], None]) -> None:
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
    find = look_for(mutant, range(BOUND))
    assert find is not None, f"{BOUND} seeds do not show {name}"
    assert broken(find.seed) == (), "the healthy product fails here too"
    record_property("mutant", (mutant.kind, mutant.name, (str(find),)))


def test_the_matrix_shows_every_mutant_to_the_tests_that_it_names() -> None:
    """`python -m mutants` would report the others as not caught."""
    assert {mutant.name for mutant in MUTANTS if not {*mutant.caught_by} <= {*catchers(mutant)}} == set()


def test_there_are_enough_of_every_kind() -> None:
    kinds = Counter(mutant.kind for mutant in MUTANTS)
    assert kinds["driver"] >= 100
    assert min(kinds[kind] for kind in ("core", "worker", "sqlite", "step")) >= 20


def test_the_classics_are_among_them() -> None:
    assert {mutant.name for mutant in MUTANTS} >= NAMED


def test_names_are_unique_and_everybody_says_what_is_broken() -> None:
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
    assert all(mutant.breaks.endswith(".") for mutant in MUTANTS)


def test_every_catcher_exists() -> None:
    assert {name for mutant in MUTANTS for name in mutant.caught_by} <= CASES.keys() | SCENES.keys()


def test_every_scene_is_needed() -> None:
    """A scene that catches no mutant belongs in tests/worker."""
    assert SCENES.keys() <= {name for mutant in MUTANTS for name in mutant.caught_by}
