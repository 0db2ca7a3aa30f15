"""Jobs, groups, transitions and times for the cases of the kit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import pytest

from taskharbor.core.job import Dependency, JobRecord, Lease, NewJob
from taskharbor.core.states import State
from taskharbor.core.transition import Ack, Cancel, Fail, PutBack, Transition
from taskharbor.driver import Group

S = TypeVar("S")
T0 = datetime(2026, 3, 1, 12, 0, 0, 123457, tzinfo=UTC)
KEEP = T0 + timedelta(days=1)
MUCH = 2**24
ALL = 100_000


def at(seconds: float) -> datetime:
    """The time this many seconds after the kit's start time."""
    return T0 + timedelta(seconds=seconds)


def job(id: str = "a", **options: Any) -> NewJob:
    """A plain job for queue `q`."""
    plain: dict[str, Any] = {"id": id, "type": "t", "queue": "q", "payload": b"{}"}
    return NewJob(**plain | options)


def group(*jobs: NewJob, **options: Any) -> Group:
    """Jobs stored all or none."""
    return Group(jobs=jobs, **options)


def child(id: str, *parents: str | tuple[str, str], policy: str = "hold", **options: Any) -> NewJob:
    """A job that waits for others, with one policy for all of them or with pairs of a parent and its policy."""
    edges = [(parent, policy) if isinstance(parent, str) else parent for parent in parents]
    return job(id, depends_on=tuple(Dependency(*edge) for edge in edges), **options)


def lease_of(job: JobRecord) -> Lease:
    """The lease of a claimed job."""
    assert job.lease is not None, f"{job.id} carries no lease"
    return job.lease


def token_of(job: JobRecord) -> str:
    """The token of a claimed job."""
    return lease_of(job).token


def expiry_of(job: JobRecord) -> datetime:
    """The end of a claimed job's lease."""
    return lease_of(job).expires_at


def _by_holder(kind: Callable[..., S], job: JobRecord, **fields: Any) -> S:
    token = "" if "token" in fields else token_of(job)
    return kind(**{"id": job.id, "token": token, "keep_until": KEEP} | fields)


# Transitions by the holder of a job, with any fields: `ack(held, result=b"1")`.
ack = partial(_by_holder, Ack)
put_back = partial(_by_holder, PutBack, run_at=T0)
fail = partial(_by_holder, Fail, reason="max_attempts")
cancel = partial(_by_holder, Cancel)
MakeTransition = Callable[..., Transition]
SETTLES: dict[str, MakeTransition] = {"ack": ack, "put_back": put_back, "fail": fail, "cancel": cancel}
AFTER = {"ack": State.DONE, "put_back": State.READY, "fail": State.DLQ, "cancel": State.CANCELLED}
each_kind = pytest.mark.parametrize("kind", list(SETTLES))
