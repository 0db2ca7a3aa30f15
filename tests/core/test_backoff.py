"""The backoff of every wait for a store."""

from __future__ import annotations

from random import Random

import pytest

from taskharbor.core.backoff import SETTLE_BACKOFF, STORE_BACKOFF, Backoff, jitter


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [(STORE_BACKOFF, [0.2, 0.4, 0.8, 1.5, 1.5]), (SETTLE_BACKOFF, [0.1, 0.2, 0.4, 0.8, 1.6, 2.0])],
)
def test_it_doubles_up_to_its_cap(backoff: Backoff, delays: list[float]) -> None:
    """X2: also after so many failures that two to their power is not a float."""
    assert [backoff.ceiling(failures) for failures in range(1, len(delays) + 1)] == delays
    assert backoff.ceiling(10_000) == backoff.cap


@pytest.mark.parametrize("backoff", [STORE_BACKOFF, SETTLE_BACKOFF])
def test_its_jitter_stays_within_the_spread(backoff: Backoff) -> None:
    """X2: workers that failed together do not come back together, and none comes back much later."""
    rng = Random(1)
    delays = [backoff.delay(20, rng) for _ in range(1000)]
    assert (1 - backoff.spread) * backoff.cap <= min(delays) < max(delays) <= (1 + backoff.spread) * backoff.cap
    assert len(set(delays)) > 900


def test_a_factor_is_one_on_average() -> None:
    rng = Random(1)
    assert sum(jitter(rng) for _ in range(10_000)) / 10_000 == pytest.approx(1, abs=0.01)
