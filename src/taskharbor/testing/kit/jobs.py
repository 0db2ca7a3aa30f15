"""Jobs, groups, transitions and times for the cases of the kit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskharbor.core.job import Dependency, JobRecord, NewJob
from taskharbor.core.states import State
from taskharbor.core.transition import Ack, Cancel, Fail, PutBack, Transition
from taskharbor.driver import Group

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


def child(id: str, *parents: str, policy: str = "hold", **options: Any) -> NewJob:
    """A job that waits for others."""
    return job(id, depends_on=tuple(Dependency(parent, policy) for parent in parents), **options)


def token_of(job: JobRecord) -> str:
    """The token of a claimed job."""
    assert job.lease is not None, f"{job.id} carries no lease"
    return job.lease.token


def expiry_of(job: JobRecord) -> datetime:
    """The end of a claimed job's lease."""
    assert job.lease is not None, f"{job.id} carries no lease"
    return job.lease.expires_at


def _by_holder(job: JobRecord, **fields: Any) -> dict[str, Any]:
    return {"id": job.id, "token": "" if "token" in fields else token_of(job), "keep_until": KEEP} | fields


def ack(job: JobRecord, **fields: Any) -> Ack:
    """An Ack by the holder."""
    return Ack(**_by_holder(job, **fields))


def put_back(job: JobRecord, **fields: Any) -> PutBack:
    """A PutBack by the holder, runnable at once."""
    return PutBack(**_by_holder(job, **{"run_at": T0, **fields}))


def fail(job: JobRecord, **fields: Any) -> Fail:
    """A Fail by the holder."""
    return Fail(**_by_holder(job, **{"reason": "max_attempts", **fields}))


def cancel(job: JobRecord, **fields: Any) -> Cancel:
    """A Cancel by the holder."""
    return Cancel(**_by_holder(job, **fields))


Settling = Callable[..., Transition]
SETTLES: dict[str, Settling] = {"ack": ack, "put_back": put_back, "fail": fail, "cancel": cancel}
AFTER = {"ack": State.DONE, "put_back": State.READY, "fail": State.DLQ, "cancel": State.CANCELLED}
each_kind = pytest.mark.parametrize("kind", list(SETTLES))
