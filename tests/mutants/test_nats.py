"""Every mutant of the NATS driver is caught by the case or test that it names, on a real server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from servers.nats import NatsServer

from .mutant import Mutant
from .nats import NATS
from .nats_store import CATCHERS, NatsStore

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def store(nats: NatsServer) -> NatsStore:
    return NatsStore(nats)


@pytest.fixture(autouse=True)
def short_complaints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where these are set pytest spells out how long lists differ, which takes minutes."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("mutant", NATS.mutants, ids=lambda mutant: mutant.name)
def test_it_is_caught(mutant: Mutant, store: NatsStore, record_property: Callable[[str, object], None]) -> None:
    for catcher in mutant.caught_by:
        store.check_healthy(catcher)
        assert store.complaint_about(mutant, catcher) is not None, f"{catcher} does not notice {mutant.name}"
    record_property("mutant", (mutant.kind, mutant.name, mutant.caught_by))


def test_there_are_enough() -> None:
    assert len(NATS.mutants) >= 75
    assert max(Counter(mutant.name for mutant in NATS.mutants).values()) == 1
    assert all(mutant.breaks.endswith(".") for mutant in NATS.mutants)


def test_every_catcher_exists() -> None:
    assert {name for mutant in NATS.mutants for name in mutant.caught_by} <= CATCHERS
