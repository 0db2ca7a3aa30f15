"""Backoff: how long to wait after consecutive failures of a store (X2). Every wait for a store uses it."""

from __future__ import annotations

from msgspec import Struct

from taskharbor.core.retry import Retry, Rng


class Backoff(Struct, frozen=True):
    """`base` seconds after the first failure, doubled after each further one, up to `cap`, with jitter."""

    base: float
    cap: float
    spread: float = 0.25

    def ceiling(self, failures: int) -> float:
        """Seconds to wait after this many failures, before jitter."""
        return Retry(base=self.base, cap=self.cap).ceiling(failures)

    def delay(self, failures: int, rng: Rng) -> float:
        """Seconds to wait after this many failures."""
        return self.ceiling(failures) * jitter(rng, self.spread)


def jitter(rng: Rng, spread: float = 0.25) -> float:
    """A factor around 1, so that many workers do not retry at the same moment."""
    return 1 - spread + 2 * spread * rng.random()


# At most 1.9 s with jitter: a worker resumes within 5 s of its store's return (X2), and a connection attempt that
# began before may take 3 of them to fail.
STORE_BACKOFF = Backoff(base=0.2, cap=1.5)
# Outcomes are retried quickly, because their leases are running out.
SETTLE_BACKOFF = Backoff(base=0.1, cap=2.0, spread=0.5)
# Two transactions that were in conflict must not meet again at once: full jitter around their own length.
CONFLICT_BACKOFF = Backoff(base=0.005, cap=0.2, spread=1.0)
