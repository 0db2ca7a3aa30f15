"""Steps: interleavings of them all, and by hand what no interleaving is sure to show."""
# ruff: noqa: N802 (clause ids are written as in the contract)

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from drivers.kv.bucket import Bucket
from drivers.kv.interleaving import play
from drivers.kv.interpreter import requests
from taskharbor.core.evolve import Replay
from taskharbor.core.group import Enqueued, Group
from taskharbor.core.job import Dependency
from taskharbor.core.schedule import Schedule, Swap
from taskharbor.core.states import CANCELLED, DLQ, DONE, READY, WAITING
from taskharbor.core.steps.dependants import apply_ends, apply_stored_ends
from taskharbor.core.steps.draft import Draft
from taskharbor.core.steps.enqueue import enqueue
from taskharbor.core.steps.forget import PRUNE_AGAIN, delete, prune
from taskharbor.core.steps.lease import claim
from taskharbor.core.steps.needs import KeptUntil, Keys, Look, Members, Owned, StoredEdge, VerbStep
from taskharbor.core.steps.replay import replay
from taskharbor.core.steps.settle import settle
from taskharbor.core.steps.stop import cancel
from taskharbor.core.steps.swap import swap_schedules
from taskharbor.core.transition import Ack
from taskharbor.errors import JobExists, UnknownDependency

from .make import NOW, SECOND, new_job, record

R = TypeVar("R")
LATER = NOW + 60 * SECOND


def run(bucket: Bucket, step: Callable[..., VerbStep[R]], *args: Any) -> R:
    """Run a step alone."""
    running = requests(bucket, step, *args)
    while True:
        try:
            next(running)
        except StopIteration as end:
            answer: R = end.value
            return answer


def group(*jobs: Any, **given: Any) -> Group:
    return Group(jobs=jobs, **given)


def state(bucket: Bucket, id: str) -> str | None:
    stored = bucket.get(f"job/{id}").value
    return None if stored is None else str(stored.job.state)


def done(bucket: Bucket, *jobs: Any) -> None:
    """Store jobs that are done and may be pruned at once."""
    assert isinstance(run(bucket, enqueue, group(*jobs), NOW), tuple)
    ids = [job.id for job in jobs]
    tokens = iter(ids)
    run(bucket, claim, ids, NOW, SECOND, "w", lambda: next(tokens))
    assert run(bucket, settle, [Ack(id=id, token=id, keep_until=NOW) for id in ids], NOW) == ["ok"] * len(ids)


def test_D12_interleaved_steps_are_serial() -> None:
    """D12: every verb, judged by the memory store; tests/drivers/kv plays many more."""
    play(range(400))


def test_D1_a_refused_group_changes_nothing() -> None:
    """D1: an id that is taken, and a dependency that is not in the group."""
    bucket = Bucket()
    run(bucket, enqueue, group(new_job(id="a")), NOW)
    taken = run(bucket, enqueue, group(new_job(id="b"), new_job(id="a")), NOW)
    stray = run(bucket, enqueue, group(new_job(id="b", depends_on=(Dependency("a"),))), NOW)
    twice = run(bucket, enqueue, group(new_job(id="b"), new_job(id="b")), NOW)
    assert [type(each) for each in (taken, stray, twice)] == [JobExists, UnknownDependency, JobExists]
    assert (state(bucket, "b"), bucket.revision) == (None, 1)


def test_D9_new_jobs_that_are_known_are_left_out() -> None:
    """D9, I1: by their id or by their key; the others are stored."""
    bucket = Bucket()
    run(bucket, enqueue, group(new_job(id="a"), new_job(id="b", idempotency_key="k")), NOW)
    run(bucket, claim, ["a"], NOW, SECOND, "w", lambda: "t")
    new = (new_job(id="b"), new_job(id="c", idempotency_key="k"), new_job(id="d"))
    assert run(bucket, settle, [Ack(id="a", token="t", keep_until=NOW, new_jobs=new)], NOW) == ["ok"]
    assert [state(bucket, id) for id in "abcd"] == [DONE, READY, None, READY]


def test_I2_a_key_is_free_once_a_step_has_ended_its_owner() -> None:
    """I2: a step reads its own writes; past its ttl, a key holds its place while its owner is unfinished."""
    bucket = Bucket()
    run(bucket, enqueue, group(new_job(id="a", idempotency_key="k", key_expires_at=NOW), new_job(id="b")), NOW)
    tokens = iter("ab")
    run(bucket, claim, ["a", "b"], NOW, SECOND, "w", lambda: next(tokens))
    again = (new_job(id="c", idempotency_key="k"),)
    first = Ack(id="b", token="b", keep_until=NOW, new_jobs=again)
    run(bucket, settle, [first], NOW)
    assert state(bucket, "c") is None
    run(bucket, settle, [Ack(id="a", token="a", keep_until=NOW, new_jobs=again)], NOW)
    assert state(bucket, "c") == READY


def test_X8_prune_stops_at_its_limit() -> None:
    """X8: plain jobs one by one, a workflow dependants first."""
    bucket = Bucket()
    done(bucket, *(new_job(id=id) for id in "abc"))
    done(bucket, *(new_job(id=id, workflow_id="w") for id in "xyz"))
    assert run(bucket, prune, list("abcxyz"), LATER, 2) == 2
    assert run(bucket, prune, list("abcxyz"), LATER, 2) == 2
    assert [state(bucket, id) for id in "abcxyz"] == [None, None, None, DONE, DONE, None]


def test_X8_a_workflow_that_runs_again_before_it_is_held_is_kept() -> None:
    """X8: a driver that locks asks again once it holds the members."""
    draft = Draft()
    step = prune(draft, ["a"], NOW, 9)
    assert next(step) == Look(["a"], [], ["a"])
    draft.learn(["a"], [record(DONE, id="a", workflow_id="w", keep_until=NOW)])
    assert next(step) == KeptUntil(["w"])
    draft.kept["w"] = NOW
    assert step.send(None) == Members("w", 9)
    draft.members["w"] = ["a"]
    assert step.send(None) == KeptUntil(["w"])
    draft.kept["w"] = None
    assert step.send(None) == Owned(["w"])
    with pytest.raises(StopIteration) as end:
        step.send(None)
    assert end.value.value == 0
    assert draft.keep == {"w": NOW + PRUNE_AGAIN}
    assert not draft.jobs.before


def test_N3_a_schedule_is_swapped_with_its_job_or_not_at_all() -> None:
    """N3: without a job, with a job whose id is taken, and with one that depends on another."""
    bucket = Bucket()
    run(bucket, enqueue, group(new_job(id="a")), NOW)
    then = Schedule(name="tick", definition=b"d", slot=NOW)
    taken = Swap(name="tick", seen=None, then=then, job=new_job(id="a"))
    [refused] = run(bucket, swap_schedules, [taken], NOW)
    assert isinstance(refused, JobExists)
    assert bucket.scan("schedule/") == []
    swaps = [Swap(name="tick", seen=None, then=then), Swap(name="tick", seen=None, then=None)]
    assert run(bucket, swap_schedules, swaps, NOW) == [True, False]
    stray = Swap(name="tick", seen=then, then=None, job=new_job(id="b", depends_on=(Dependency("a"),)))
    with pytest.raises(UnknownDependency):
        run(bucket, swap_schedules, [stray], NOW)
    assert [entry.value for entry in bucket.scan("schedule/")] == [then]


def test_K4_an_edge_to_a_missing_dependant_is_skipped() -> None:
    """K4: a damaged store does not stop a cascade."""
    draft = Draft()
    parent = record(DLQ, id="p")
    draft.learn(["p", "gone", "c"], [parent, record(WAITING, id="c", unmet=1)])
    edges = [StoredEdge("gone", 0, "p", "cancel", False), StoredEdge("c", 0, "p", "cancel", False)]
    draft.learn_edges([*edges, edges[1]])
    for need in apply_ends(draft, [parent], NOW):
        assert isinstance(need, Look | Keys)
    assert draft.existing("c").state is CANCELLED
    assert list(draft.jobs.before) == ["c"]


def test_K4_an_end_that_is_stored_already_is_carried_on() -> None:
    """K4: by a driver that writes the outcome itself."""
    draft = Draft()
    draft.learn(["p", "c"], [record(DLQ, id="p"), record(WAITING, id="c", unmet=1)])
    draft.learn_edges([StoredEdge("c", 0, "p", "cancel", False)])
    for need in apply_stored_ends(draft, ["p"], NOW):
        assert isinstance(need, Look | Keys)
    assert draft.existing("c").state is CANCELLED


def test_K4_a_line_that_was_seen_is_not_looked_at_again() -> None:
    """K4: a driver may answer with the whole line below a dead job at once."""
    draft = Draft()
    draft.learn(["p", "c", "d"], [record(DLQ, id="p"), *(record(WAITING, id=id, unmet=1) for id in "cd")])
    draft.learn_edges([StoredEdge("c", 0, "p", "cancel", False), StoredEdge("d", 0, "c", "cancel", False)])
    draft.learn_below("cd")
    assert list(apply_stored_ends(draft, ["p"], NOW)) == [Look([], [], ["p"])]
    assert {draft.existing(id).state for id in "cd"} == {CANCELLED}


def test_Q3_an_edge_to_a_missing_parent_is_skipped() -> None:
    """Q3: nor a replay."""
    draft = Draft()
    step = replay(draft, [Replay(id="c")], NOW)
    next(step)
    draft.learn(["c", "gone"], [record(DLQ, id="c")])
    draft.learn_edges([StoredEdge("c", 0, "gone", "collect", True)])
    with pytest.raises(StopIteration) as end:
        next(step)
    assert end.value.value == ["replayed"]
    assert draft.existing("c").state is READY


def test_K3_a_step_sees_its_own_deletions() -> None:
    """K3: a parent goes with its last dependant, if that is named first."""
    bucket = Bucket()
    child = new_job(id="c", depends_on=(Dependency("p"),))
    assert run(bucket, enqueue, group(new_job(id="p"), child), NOW) == (Enqueued("p", True), Enqueued("c", True))
    assert run(bucket, cancel, ["p", "c", "p"], NOW, LATER) == ["cancelled", "cancelled", "finished"]
    assert run(bucket, delete, ["p", "c", "p", "x"]) == ["needed", "deleted", "deleted", "missing"]
    assert bucket.scan("job/") == []
