"""Every mutant of PostgreSQL's statements is caught by the catchers it names, on a real server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator

import pytest

from servers.postgres import PostgresServer

from .ground import CATCHERS, Ground
from .mutant import Mutant, MutantRegistry, StaleMutant
from .postgres import MUTANTS, SQL, broken

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def ground(postgres: PostgresServer) -> Generator[Ground]:
    ground = Ground(postgres)
    yield ground
    ground.close()


@pytest.fixture(autouse=True)
def short_complaints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where these are set pytest spells out how long lists differ, which takes minutes."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_is_caught(mutant: Mutant, ground: Ground, record_property: Callable[[str, object], None]) -> None:
    for catcher in mutant.caught_by:
        assert {name for _, name in mutant.places} & ground.statements_of(catcher), f"{catcher} does not run it"
        assert ground.complaint_about(mutant, catcher) is not None, f"{catcher} does not notice {mutant.name}"
    record_property("mutant", (mutant.kind, mutant.name, mutant.caught_by))


def test_there_are_enough() -> None:
    assert len(MUTANTS) >= 110
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
    assert all(mutant.breaks.endswith(".") for mutant in MUTANTS)


def test_every_catcher_exists() -> None:
    assert {name for mutant in MUTANTS for name in mutant.caught_by} <= CATCHERS


class TestStale:
    """A mutant that no longer fits its statement is an error, not a catch."""

    def test_a_text_that_is_gone(self, ground: Ground) -> None:
        mutant = MutantRegistry("postgres").mutant((SQL, "paused"), by="")(lambda sql: broken(sql, "no such text"))
        with pytest.raises(StaleMutant, match="no longer fits"):
            ground.complaint_about(mutant, "test_D3_never_from_a_paused_queue")

    def test_a_text_that_does_not_parse(self, ground: Ground) -> None:
        mutant = MutantRegistry("postgres").mutant((SQL, "paused"), by="")(lambda sql: broken(sql, "SELECT", "SELEKT"))
        with pytest.raises(StaleMutant, match="no longer parses"):
            ground.complaint_about(mutant, "test_D3_never_from_a_paused_queue")
