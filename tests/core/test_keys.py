"""Idempotency keys and the fingerprint of what was asked for."""

from __future__ import annotations

from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from taskharbor.core.job import Dependency, NewJob
from taskharbor.core.keys import KeyRecord, digest, group_digest

from .make import NOW, SECOND, moments, new_job

edges = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["hold", "cancel", "collect"])), max_size=3)
asked = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=4)


@given(moments)
def test_a_key_without_an_expiry_lives_as_long_as_its_owner(now: datetime) -> None:
    """I2: `None` means as long as the job record exists."""
    assert KeyRecord("k", "job-1", b"", None).alive(now, owner_ended=True)


def test_a_key_lives_until_its_expiry() -> None:
    """I2: at the expiry itself it is free again."""
    key = KeyRecord("k", "job-1", b"", NOW)
    assert key.alive(NOW - SECOND, owner_ended=True)
    assert not key.alive(NOW, owner_ended=True)
    assert not key.alive(NOW + SECOND, owner_ended=True)


@given(moments)
def test_a_key_lives_at_least_until_its_owner_has_ended(now: datetime) -> None:
    """I2: whatever its expiry."""
    assert KeyRecord("k", "job-1", b"", NOW).alive(now, owner_ended=False)


@given(asked, asked)
def test_different_calls_have_different_digests(one: list[tuple[str, bytes]], other: list[tuple[str, bytes]]) -> None:
    """I3: the same tasks and payloads in the same order, and nothing else, give the same fingerprint."""
    assert (digest(one) == digest(iter(other))) is (one == other)


def test_task_and_payload_do_not_run_into_each_other() -> None:
    """I3: where one part ends and the next begins is part of the fingerprint."""
    assert digest([("ab", b"c")]) != digest([("a", b"bc")])
    assert digest([("a", b"b"), ("c", b"d")]) != digest([("a", b"bcd")])


def three(edges: list[tuple[int, str]], ids: str = "abc") -> list[NewJob]:
    """Jobs of which the last waits for others."""
    depends_on = tuple(Dependency(ids[parent], policy) for parent, policy in edges)
    return [new_job(id=ids[0]), new_job(id=ids[1]), new_job(id=ids[2], depends_on=depends_on)]


@given(edges, edges)
def test_the_digest_of_a_group_depends_on_edges_and_policies(
    one: list[tuple[int, str]], other: list[tuple[int, str]]
) -> None:
    """I3, K4: edges with their order and policies, by position and not by id."""
    assert (group_digest(three(one)) == group_digest(three(other, "xyz"))) is (one == other)


def test_edges_are_part_of_the_digest_of_a_group() -> None:
    """I3: the same edge of another job is another group; one that leads outside, refused later, is not an error."""
    edge = (Dependency("a"),)
    second, third = (new_job(id="a"), new_job(id="b", depends_on=edge), new_job(id="c")), three([(0, "hold")])
    outside = [new_job(id="x"), new_job(id="b"), new_job(id="c", depends_on=edge)]
    assert len({group_digest(jobs) for jobs in (second, third, outside)}) == 3


@given(asked)
def test_the_digest_of_a_group_is_that_of_no_job(asked: list[tuple[str, bytes]]) -> None:
    """I3: a flow never asks for the same as a job, though it have but one step."""
    jobs = [new_job(id=str(number), type=task, payload=payload) for number, (task, payload) in enumerate(asked)]
    assert group_digest(jobs) != digest(asked)
