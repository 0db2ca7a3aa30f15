"""Every mutant of the Redis driver is caught by the case of the kit that it names, on a real server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from servers.valkey import ValkeyServer
from taskharbor.drivers.redis import reserve

from .berth import Berth
from .kit import CASES
from .mutant import Mutant, MutantRegistry, StaleMutant, instead
from .redis import REDIS

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def berth(valkey: ValkeyServer) -> Berth:
    return Berth(valkey)


@pytest.fixture(autouse=True)
def short_complaints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where these are set pytest spells out how long lists differ, which takes minutes."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("mutant", REDIS.mutants, ids=lambda mutant: mutant.name)
def test_it_is_caught(mutant: Mutant, berth: Berth, record_property: Callable[[str, object], None]) -> None:
    for catcher in mutant.caught_by:
        berth.check_healthy(catcher)
        assert berth.complaint_about(mutant, catcher) is not None, f"{catcher} does not notice {mutant.name}"
    record_property("mutant", (mutant.kind, mutant.name, mutant.caught_by))


def test_there_are_enough() -> None:
    assert len(REDIS.mutants) >= 90
    assert max(Counter(mutant.name for mutant in REDIS.mutants).values()) == 1
    assert all(mutant.breaks.endswith(".") for mutant in REDIS.mutants)


def test_every_catcher_exists() -> None:
    assert {name for mutant in REDIS.mutants for name in mutant.caught_by} <= CASES.keys()


@pytest.mark.parametrize(
    ("right", "wrong", "match"),
    [
        ("no such text", "", "no longer fits"),
        ("if differs then", "if differs than", "fails on the server"),
        ("#paused ~= believed", "#nobody ~= believed", "fails on the server"),
    ],
    ids=["a text that is gone", "does not compile", "fails while it runs"],
)
def test_a_stale_mutant_is_an_error_and_not_a_catch(right: str, wrong: str, match: str, berth: Berth) -> None:
    mutant = MutantRegistry("redis").mutant((reserve, "RESERVE"), by="")(lambda text: instead(text, right, wrong))
    with pytest.raises(StaleMutant, match=match):
        berth.complaint_about(mutant, "test_D3_never_from_a_paused_queue")
