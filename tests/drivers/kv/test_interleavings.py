"""Steps of the core under random interleavings: what each answers and writes is what some serial order would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from .bucket import Bucket
from .interleaving import Play, play

SHARE = 2_000


@pytest.mark.parametrize("share", range(10))
def test_D12_interleaved_steps_are_serial(share: int) -> None:  # noqa: N802
    """D12, D7, I1, K2, D1: 20,000 interleavings of every verb, judged by the memory store in the order of commits."""
    play(range(share * SHARE, (share + 1) * SHARE))


def test_the_same_seed_plays_the_same() -> None:
    first, second = Play(7), Play(7)
    first.run()
    second.run()
    assert (first.order, first.bucket.revision) == (second.order, second.bucket.revision)
    assert first.bucket.scan("") == second.bucket.scan("")


def test_commits_that_do_not_compare_what_was_read_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interleavings do collide: a store that compares only what it writes loses updates within a few hundred."""
    right = Bucket.commit

    def careless(bucket: Bucket, expected: Mapping[str, int], values: Mapping[str, Any]) -> None:
        right(bucket, {name: expected[name] for name in values if name in expected}, values)

    monkeypatch.setattr(Bucket, "commit", careless)
    with pytest.raises((AssertionError, LookupError)):
        play(range(1_000))
