"""Idempotency keys and the fingerprint of what was asked for."""

from __future__ import annotations

from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from taskharbor.core.keys import KeyRecord, digest

from .make import NOW, SECOND, moments

asked = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=4)


@given(moments)
def test_a_key_without_an_expiry_lives_as_long_as_its_owner(now: datetime) -> None:
    """I2: `None` means as long as the job record exists."""
    assert KeyRecord("k", "job-1", b"", None).alive(now)


def test_a_key_lives_until_its_expiry() -> None:
    """I2: at the expiry itself it is free again."""
    key = KeyRecord("k", "job-1", b"", NOW)
    assert key.alive(NOW - SECOND)
    assert not key.alive(NOW)
    assert not key.alive(NOW + SECOND)


@given(asked, asked)
def test_the_digest_tells_different_calls_apart(one: list[tuple[str, bytes]], other: list[tuple[str, bytes]]) -> None:
    """I3: the same tasks and payloads in the same order, and nothing else, give the same fingerprint."""
    assert (digest(one) == digest(iter(other))) is (one == other)


def test_task_and_payload_do_not_run_into_each_other() -> None:
    """I3: where one part ends and the next begins is part of the fingerprint."""
    assert digest([("ab", b"c")]) != digest([("a", b"bc")])
    assert digest([("a", b"b"), ("c", b"d")]) != digest([("a", b"bcd")])
