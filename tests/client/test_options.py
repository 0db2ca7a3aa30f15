"""An option of `@harbor.task` is accepted, typed and stored everywhere that tasks take options."""

from __future__ import annotations

from inspect import signature
from typing import Any, get_overloads

import pytest

from taskharbor import Harbor, Retry
from taskharbor.client.declaration import RecurringOptions, TickOptions
from taskharbor.client.options import TASK_ONLY, TASK_OPTIONS, JobOptions
from taskharbor.core.recurrence import Definition
from taskharbor.decorators import Manner
from taskharbor.errors import ConfigError, InvalidJob

# A value of each option that is not its default. A new option needs one here.
CHOSEN: dict[str, Any] = {
    "queue": "reports",
    "priority": 7,
    "max_attempts": 9,
    "max_crashes": 3,
    "timeout": 12.5,
    "tags": ("nightly",),
}
# The same of the options that only tasks take, as they are given and as they are kept.
CHOSEN_ONLY: dict[str, tuple[Any, Any]] = {
    "retry": (Retry.fixed(7), Retry.fixed(7)),
    "process": (True, True),
    "memory": ("64 MiB", 64 * 1024 * 1024),
}


def work() -> None: ...


def test_every_option_of_tasks_is_declared_everywhere() -> None:
    """P1, R5: for jobs, for `@harbor.task`, for `@harbor.recurring`, and in what is stored for a recurring task."""
    overloads = [set(signature(each).parameters) for each in get_overloads(Harbor.task)]
    assert {"self", "name", *TASK_ONLY, *TASK_OPTIONS} in overloads
    assert JobOptions.__annotations__.keys() >= TASK_OPTIONS
    assert RecurringOptions.__annotations__.keys() - TickOptions.__annotations__.keys() == TASK_OPTIONS
    assert set(Definition.__struct_fields__) >= TASK_OPTIONS
    assert CHOSEN.keys() == TASK_OPTIONS


@pytest.mark.parametrize("option", sorted(TASK_OPTIONS))
def test_every_option_of_tasks_reaches_the_job(option: str) -> None:
    """R5, N5: the job of a call, and the job of a tick."""
    harbor = Harbor("memory://")
    task = harbor.task(name="work", **{option: CHOSEN[option]})(work)
    harbor.admin.recurring.create("nightly", "work", every=3600)
    for job in (task.enqueue(), harbor.admin.recurring.run("nightly")):
        assert getattr(job.record(), option) == CHOSEN[option]
    harbor.close()


def test_every_option_of_tasks_alone_is_declared_everywhere() -> None:
    """P1: for `@harbor.task` and `@harbor.recurring`, and in what they pass on."""
    assert Manner.__struct_fields__ == TASK_ONLY
    assert set(signature(Harbor.task).parameters) == {"self", "function", "name", *TASK_ONLY, "options"}
    assert set(signature(Harbor.recurring).parameters) == {"self", "function", "name", "arguments", *TASK_ONLY, "given"}
    assert CHOSEN_ONLY.keys() == set(TASK_ONLY)
    assert not TASK_OPTIONS.intersection(TASK_ONLY)


@pytest.mark.parametrize("option", TASK_ONLY)
def test_every_option_of_tasks_alone_reaches_the_task(option: str) -> None:
    """P1: by both decorators."""
    harbor = Harbor("memory://")
    given, kept = CHOSEN_ONLY[option]
    options: dict[str, Any] = {"process": True, option: given} if option == "memory" else {option: given}
    one = harbor.task(name="one", **options)(work)
    two = harbor.recurring(every=60, **options)(work)
    assert [getattr(task.registered, option) for task in (one, two)] == [kept, kept]


@pytest.mark.parametrize("option", TASK_ONLY)
def test_messages_know_every_option_of_tasks_alone(option: str) -> None:
    """X5: a wrong name is answered by all that are right; an option of the task given to a job, by where it belongs."""
    harbor = Harbor("memory://")
    given: dict[str, Any] = {"wrong": 1}
    with pytest.raises(ConfigError, match=rf"the options are .*\b{option}\b"):
        harbor.task(**given)
    with pytest.raises(ConfigError, match=rf"and in code .*\b{option}\b"):
        harbor.recurring(every=60, **given)
    task = harbor.task(work)
    of_task: dict[str, Any] = {option: CHOSEN_ONLY[option][0]}
    with pytest.raises(InvalidJob, match=rf"it is set on the task, @harbor\.task\({option}=…\)"):
        task.using(**of_task)
