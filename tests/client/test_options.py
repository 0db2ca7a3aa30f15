"""An option of `@harbor.task` is accepted, typed and stored everywhere that tasks take options."""

from __future__ import annotations

from inspect import signature
from typing import Any, get_overloads

import pytest

from taskharbor import Harbor
from taskharbor.client.declaration import RecurringOptions, When
from taskharbor.client.options import TASK_OPTIONS, JobOptions
from taskharbor.core.recurrence import Definition

# A value of each option that is not its default. A new option needs one here.
CHOSEN: dict[str, Any] = {
    "queue": "reports",
    "priority": 7,
    "max_attempts": 9,
    "max_crashes": 3,
    "timeout": 12.5,
    "tags": ("nightly",),
}


def test_every_option_of_tasks_is_declared_everywhere() -> None:
    """P1, R5: for jobs, for `@harbor.task`, for `@harbor.recurring`, and in what is stored for a recurring task."""
    overloads = [set(signature(each).parameters) for each in get_overloads(Harbor.task)]
    assert {"self", "name", "retry", "process", "memory", *TASK_OPTIONS} in overloads
    assert JobOptions.__annotations__.keys() >= TASK_OPTIONS
    assert RecurringOptions.__annotations__.keys() - When.__annotations__.keys() == TASK_OPTIONS
    assert set(Definition.__struct_fields__) >= TASK_OPTIONS
    assert CHOSEN.keys() == TASK_OPTIONS


@pytest.mark.parametrize("option", sorted(TASK_OPTIONS))
def test_every_option_of_tasks_reaches_the_job(option: str) -> None:
    """R5, N5: the job of a call, and the job of a tick."""
    harbor = Harbor("memory://")

    def work() -> None: ...

    task = harbor.task(name="work", **{option: CHOSEN[option]})(work)
    harbor.admin.recurring.create("nightly", "work", every=3600)
    for job in (task.enqueue(), harbor.admin.recurring.run("nightly")):
        assert getattr(job.record(), option) == CHOSEN[option]
    harbor.close()
