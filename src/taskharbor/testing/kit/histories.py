"""The strategies of the state machine: small pools, so that ids and keys repeat often.

The fields of a plan carry their strategies, and `st.builds` reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Any, NamedTuple

from hypothesis import strategies as st
from msgspec.structs import replace

from taskharbor.core.job import Dependency, Failure, NewJob, Progress
from taskharbor.core.schedule import Schedule
from taskharbor.core.transition import Ack, Cancel, Fail, PutBack, Transition
from taskharbor.driver import Group, Swap
from taskharbor.testing.kit.jobs import at, job

QUEUES = ("a", "b", "c")
KEYS = ["k0", "k1", "k2"]
GROUP_KEYS = ["g0", "g1"]

FLAGS = st.booleans()
RARELY = st.sampled_from([False, False, False, True])
ONE_QUEUE = st.sampled_from(QUEUES)
QUEUE_LISTS = st.one_of(st.just(list(QUEUES)), st.lists(ONE_QUEUE, min_size=1, max_size=4))
LIMITS = st.sampled_from([20, 3, 1, 2, 0])
LEASES = st.sampled_from([60.0, 10.0, 4.5, 1.0, 0.000001])
STEPS = st.sampled_from([0.5, 1.0, 0.000001, 5.0, 11.0, 60.0, -0.5, -3.0])
KEEPS = st.sampled_from([50.0, 5.0, 0.0])
PROGRESS = st.sampled_from([None, Progress(0.5, "half"), Progress(1.0)])
MAYBE_KEY = st.sampled_from([None, None, *KEYS])
TTLS = st.sampled_from([None, 0.5, 5.0, 40.0])
STALE = ["existence", "definition", "slot", "paused", "last_job_id", "last_slot"]
POLICIES = st.sampled_from(["hold", "cancel", "collect"])
EDGES = st.lists(st.tuples(st.integers(0, 2), POLICIES), max_size=2)
ANOTHER = Schedule(name="", definition=b"other", slot=at(9), paused=True, last_job_id="other", last_slot=at(9))
ACTIONS = st.sampled_from(["cancel", "dead_letter", "replay", "delete", "reschedule", "free"])
FAILURE = Failure(1, "E", "message", "trace", at(1))


class Pick(NamedTuple):
    """A claim by its age: one that still holds, or (`any`) one that may have ended long ago."""

    age: Annotated[int, st.integers(0, 9)]
    any: Annotated[bool, RARELY]


PICKS = st.lists(st.builds(Pick), min_size=1, max_size=3)
# Jobs by their age; an age beyond the first job means a job that does not exist.
AGES = st.lists(st.integers(0, 12), min_size=1, max_size=4)


class OperatorCall(NamedTuple):
    """The arguments of an operator's action."""

    key: Annotated[str | None, MAYBE_KEY]
    payload: Annotated[bytes | None, st.sampled_from([None, b"edited"])]
    delay: Annotated[float | None, st.sampled_from([None, 0.0, -4.0, 2.0, 15.0])]
    priority: Annotated[int | None, st.sampled_from([None, -1, 0, 1, 100])]
    keep: Annotated[float, KEEPS]


OPERATOR_CALLS = st.builds(OperatorCall)


class SwapPlan(NamedTuple):
    """A change of a schedule; `stale` means a wrong expectation."""

    name: Annotated[str, st.sampled_from(["tick", "tock"])]
    kind: Annotated[str, st.sampled_from(["declare", "tick", "pause", "run", "remove"])]
    slot: Annotated[int | None, st.sampled_from([None, 1, 2, 3])]
    stale: Annotated[str | None, st.sampled_from([None] * 6 + STALE)]
    again: Annotated[int | None, st.sampled_from([None, None, None, 0])]
    key: Annotated[str | None, MAYBE_KEY]


SWAPS = st.lists(st.builds(SwapPlan), max_size=4)


class JobPlan(NamedTuple):
    """A job before its id and times are known: `again` is the age of a job whose id it repeats."""

    again: Annotated[int | None, st.sampled_from([None] * 9 + [0, 1])]
    queue: Annotated[str, ONE_QUEUE]
    payload: Annotated[bytes, st.sampled_from([b"x", b"y"])]
    priority: Annotated[int, st.sampled_from([0, 0, 1, -1])]
    delay: Annotated[float | None, st.sampled_from([None, None, -4.0, 3.0, 20.0])]
    expires: Annotated[float | None, st.sampled_from([None, None, 4.0, 30.0])]
    key: Annotated[str | None, MAYBE_KEY]
    ttl: Annotated[float | None, TTLS]
    edges: Annotated[list[tuple[int, str]], st.one_of(st.just([]), EDGES)]
    workflow: Annotated[str | None, st.sampled_from([None, None, "w0", "w1"])]
    kept: Annotated[bool, RARELY]


class GroupPlan(NamedTuple):
    """A group before its times are known."""

    jobs: Annotated[list[JobPlan], st.lists(st.builds(JobPlan), min_size=1, max_size=5)]
    key: Annotated[str | None, st.sampled_from([None, None, None, *GROUP_KEYS])]
    ttl: Annotated[float | None, TTLS]


class SettlePlan(NamedTuple):
    """A transition before its claim is known."""

    pick: Annotated[Pick, st.builds(Pick)]
    kind: Annotated[str, st.sampled_from(["ack", "ack", "fail", "put_back", "cancel"])]
    delay: Annotated[float, st.sampled_from([0.0, -1.0, 2.0])]
    keep: Annotated[float, KEEPS]
    attempts: Annotated[int, st.integers(0, 3)]
    crashes: Annotated[int, st.integers(0, 2)]
    fingerprint: Annotated[str | None, st.sampled_from([None, "f0", "f1"])]
    started: Annotated[bool, FLAGS]
    new_jobs: Annotated[list[JobPlan], st.one_of(st.just([]), st.lists(st.builds(JobPlan), max_size=3))]


def groups(most: int = 2) -> st.SearchStrategy[list[GroupPlan]]:
    """One call of enqueue."""
    return st.lists(st.builds(GroupPlan), min_size=most // 2, max_size=most)


def settles(most: int = 3) -> st.SearchStrategy[list[SettlePlan]]:
    """One call of settle."""
    return st.lists(st.builds(SettlePlan), min_size=1, max_size=most)


def group_of(plan: GroupPlan, now: datetime, name: Callable[[int | None], str]) -> Group:
    """The group at `now`. A keyed one is a flow, whose jobs share its workflow and carry no key of their own."""
    plans = plan.jobs
    workflow = None
    if plan.key is not None:
        workflow = f"flow {name(None)}"
        plans = [each._replace(workflow=workflow, key=None) for each in plans]
    return Group(
        jobs=jobs_of(plans, now, name), key=plan.key, key_expires_at=_after(now, plan.ttl), workflow_id=workflow
    )


def jobs_of(plans: list[JobPlan], now: datetime, name: Callable[[int | None], str]) -> tuple[NewJob, ...]:
    """The jobs at `now`; edges only lead to earlier members, and a job with edges has no key (D1)."""
    ids = [name(plan.again) for plan in plans]
    edges = [_edges(plan, ids[place], ids[:place]) for place, plan in enumerate(plans)]
    parents = {edge.parent for mine in edges for edge in mine}
    return tuple(
        job(
            id,
            queue=plan.queue,
            payload=plan.payload,
            priority=plan.priority,
            run_at=_after(now, plan.delay),
            # Whether a child expires before or after its parent's cascade is the driver's choice, and shows in due_at.
            expires_at=None if mine else _after(now, plan.expires),
            idempotency_key=None if mine or id in parents else plan.key,
            key_expires_at=None if mine or id in parents or plan.key is None else _after(now, plan.ttl),
            depends_on=mine,
            workflow_id=plan.workflow,
            kept=plan.kept,
        )
        for id, plan, mine in zip(ids, plans, edges, strict=True)
    )


def _edges(plan: JobPlan, id: str, earlier: list[str]) -> tuple[Dependency, ...]:
    """Edges to earlier members; two may lead to the same one."""
    known = [(earlier[back], policy) for back, policy in plan.edges if back < len(earlier) and earlier[back] != id]
    return tuple(Dependency(parent, policy) for parent, policy in known)


def transition_of(plan: SettlePlan, id: str, token: str, now: datetime, new_jobs: tuple[NewJob, ...]) -> Transition:
    """The transition at `now`."""
    common: dict[str, Any] = {
        "id": id,
        "token": token,
        "keep_until": now + timedelta(seconds=plan.keep),
        "started_at": now - timedelta(seconds=plan.attempts) if plan.started else None,
        "attempts": plan.attempts,
        "crashes": plan.crashes,
        "failures": (FAILURE,) * plan.attempts,
        "new_jobs": new_jobs,
    }
    if plan.kind == "ack":
        return Ack(**common, result=b"r" if plan.attempts else None)
    if plan.kind == "put_back":
        return PutBack(**common, run_at=now + timedelta(seconds=plan.delay))
    if plan.kind == "fail":
        return Fail(**common, reason="r", fingerprint=plan.fingerprint, last_error=f"e{plan.crashes}")
    return Cancel(**common)


def swap_of(plan: SwapPlan, stored: Schedule | None, new: NewJob) -> Swap:
    """The swap of a schedule that is `stored`, with a right or a wrong expectation."""
    known = stored or Schedule(name=plan.name, definition=b"d", slot=None)
    seen, then = stored, _then(plan, known, new)
    if plan.stale == "existence":
        seen = known if stored is None else None
    elif plan.stale is not None:
        seen = replace(known, **{plan.stale: getattr(ANOTHER, plan.stale)})
    return Swap(name=plan.name, seen=seen, then=then, job=new if plan.kind in ("tick", "run") else None)


def _then(plan: SwapPlan, known: Schedule, new: NewJob) -> Schedule | None:
    slot = None if plan.slot is None else at(plan.slot)
    moves: dict[str, Schedule | None] = {
        "declare": replace(known, definition=f"d{plan.slot}".encode(), slot=slot),
        "pause": replace(known, paused=not known.paused),
        "tick": replace(known, slot=slot, last_job_id=new.id, last_slot=known.slot),
        "run": known,
        "remove": None,
    }
    return moves[plan.kind]


def _after(now: datetime, seconds: float | None) -> datetime | None:
    return None if seconds is None else now + timedelta(seconds=seconds)
