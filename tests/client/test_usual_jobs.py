"""The options that a task's jobs have in common are resolved once, and reach no job that differs."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from taskharbor import Harbor
from taskharbor.client.job_builder import Call, JobBuilder, current_run
from taskharbor.client.session import Session
from taskharbor.client.settings import Settings
from taskharbor.core.job import NewJob
from taskharbor.drivers.memory import MemoryDriver

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _act(n: int) -> None: ...


@pytest.fixture
def task() -> Any:
    harbor = Harbor(driver=MemoryDriver())
    return harbor.task(name="act", queue="mail", tags=["a"], max_attempts=9)(_act)


def session(**settings: Any) -> Session:
    async def never() -> Any:
        raise AssertionError

    return Session(never, Settings(**settings), lambda: NOW, Random(1))


def built(where: Session, call: Call, workflow_id: str | None = None) -> NewJob:
    (job,) = JobBuilder(where).jobs([call], workflow_id)
    return job


def test_jobs_of_one_task_differ_in_id_and_payload_only(task: Any) -> None:
    """R2, R5: every option of the task and of the harbor is in each of them."""
    where = session(max_crashes=2, timeout=3.0)
    jobs = [built(where, task.step(n)) for n in range(3)]
    assert len({job.id for job in jobs}) == 3
    assert [job.payload for job in jobs] == [task.step(n).payload for n in range(3)]
    assert {(job.queue, job.tags, job.max_attempts, job.max_crashes, job.timeout) for job in jobs} == {
        ("mail", ("a",), 9, 2, 3.0)
    }


def test_each_session_resolves_by_its_own_settings(task: Any) -> None:
    """R5: also if another stands in for the first, and after its settings were replaced."""
    one, other = session(timeout=1.0, max_crashes=1), session(timeout=2.0, max_crashes=None)
    for where, expected in ((one, (1.0, 1)), (other, (2.0, None)), (one, (1.0, 1))):
        job = built(where, task.step(1))
        assert (job.timeout, job.max_crashes) == expected
    one.settings = Settings(timeout=5.0)
    assert built(one, task.step(1)).timeout == 5.0


def test_options_of_one_job_reach_no_other(task: Any) -> None:
    """R5: neither those of `using`, which may depend on the time, nor a workflow's id."""
    where, plain = session(), task.step(1)
    before = built(where, plain)
    special = built(where, task.using(delay=5, idempotency_key="k", queue="other", id="mine").step(1))
    assert (special.id, special.queue, special.run_at) == ("mine", "other", NOW.replace(second=5))
    assert built(where, plain, "flow").workflow_id == "flow"
    after = built(where, plain)
    assert after.id != before.id
    assert (after.queue, after.run_at, after.idempotency_key, after.workflow_id) == ("mail", None, None, None)


def test_jobs_of_a_handler_name_their_parent_and_others_do_not(task: Any) -> None:
    """R5: the lineage in the headers."""
    where = session()
    assert built(where, task.step(1)).headers == {}
    parent: Any = SimpleNamespace(job=NewJob(id="p", type="act", queue="mail", payload=b""))
    before = current_run.set(parent)
    try:
        assert built(where, task.step(1)).headers == {"parent_id": "p", "root_id": "p"}
    finally:
        current_run.reset(before)
    assert built(where, task.step(1)).headers == {}
