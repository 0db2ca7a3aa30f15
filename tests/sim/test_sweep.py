"""A million driver operations, some 900 seeds, every promise; `make torture` goes on from there."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, count
from pathlib import Path

import pytest

from servers.fixtures import NewNats
from servers.postgres import PostgresServer
from servers.valkey import ValkeyServer
from taskharbor.testing.simulation import explain, simulate
from taskharbor.testing.simulation.sweep import kept, named
from taskharbor.testing.simulation.workload import everything
from time_report import OPERATIONS

PORTIONS = 25  # each makes half a seed too many
OPERATIONS_EACH = 40_000
SEEDS_EACH = 40  # a seed makes 1,100 operations on average, and 37 seeds are enough for most portions
MORE = 1_000_000
REGRESSIONS = Path(__file__).with_name("regressions")


@pytest.mark.parametrize("portion", range(PORTIONS))
def test_every_promise_holds(portion: int, record_property: Callable[[str, object], None]) -> None:
    """G1, G3, D12, L4, L5, F1, F6, I1, K2, N1, X1, X2, X3, X4, X6, X7: with every fault, whatever the seed."""
    operations, first = 0, portion * SEEDS_EACH
    for seed in chain(range(first, first + SEEDS_EACH), count(MORE + first * SEEDS_EACH)):
        if operations >= OPERATIONS_EACH:
            break
        result = simulate(everything, seed)
        assert result.report.fine, explain(result)
        operations += result.operations
    record_property(OPERATIONS, operations)


@pytest.mark.parametrize("seed", range(6))
def test_sqlite_keeps_them_too(seed: int) -> None:
    """G1, G3, X1, X2, X3: the same seeds on a real store."""
    result = simulate(everything, seed, driver="sqlite")
    assert result.report.fine, explain(result)


@pytest.mark.parametrize("seed", range(3, 7))
def test_postgres_keeps_them_too(seed: int, postgres: PostgresServer) -> None:
    """G1, G3, X1, X2, X3, X4: the same on a server, which is asked while the virtual world stands still."""
    url = postgres.url(postgres.new_database())
    result = simulate(everything, seed, driver=url)
    assert result.report.fine, explain(result)
    if seed == 4:
        assert simulate(everything, seed, driver=url).trace() == result.trace()


@pytest.mark.parametrize("seed", [1, 4, 6])
def test_redis_keeps_them_too(seed: int, valkey: ValkeyServer) -> None:
    """G1, G3, X1, X2, X3, X4: the same on a Valkey, in a namespace that is removed afterwards."""
    url = valkey.url(db=seed)
    result = simulate(everything, seed, driver=url)
    assert result.report.fine, explain(result)
    if seed == 6:
        assert simulate(everything, seed, driver=url).trace() == result.trace()
    assert valkey.command("KEYS", "{simulation_*", db=seed) == []


@pytest.mark.parametrize("seed", [1, 4, 6])
def test_nats_keeps_them_too(seed: int, new_nats: NewNats) -> None:
    """G1, G3, X1, X2, X3, X4: the same on NATS, in streams that are removed afterwards."""
    nats = new_nats()
    result = simulate(everything, seed, driver=nats.url())
    assert result.report.fine, explain(result)
    if seed == 6:
        assert simulate(everything, seed, driver=nats.url()).trace() == result.trace()
    assert not nats.api("STREAM.NAMES").get("streams")


def test_what_failed_once_does_not_fail_again() -> None:
    """Seeds that found something stay."""
    for regression in kept(REGRESSIONS):
        result = simulate(named(regression.scenario), regression.seed, driver=regression.driver)
        assert result.report.fine, explain(result)
