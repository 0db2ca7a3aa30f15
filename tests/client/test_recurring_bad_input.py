"""Recurring tasks that make no sense get an error that names the fix; nothing is stored, nothing is registered (X5)."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from rhythm import ticking
from taskharbor import Harbor, Retry
from taskharbor.errors import ConfigError, DuplicateTask, HarborError, ScheduleExists
from world import World, virtual

NAN, INF = float("nan"), float("inf")
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001

# What is declared, and what the error must mention.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "needs cron= or every="),
    ({"cron": "0 3 * * *", "every": 60}, "not both"),
    ({"tz": "Europe/Berlin"}, "needs cron= or every="),
    ({"cron": "61 * * * *"}, "minute"),
    ({"cron": "0 3 * *"}, "4 fields"),
    ({"cron": ""}, "0 fields"),
    ({"cron": "0 0 0 0 0 0 0"}, "7 fields"),
    ({"cron": "0 0 30 2 *"}, "it never happens"),
    ({"cron": "@sometimes"}, "@daily"),
    ({"cron": "every day"}, "fields"),
    ({"cron": 5}, "cron"),
    ({"cron": None}, "cron"),
    ({"cron": "0 3 * * *", "tz": "Europe/Berln"}, "Europe/Berlin"),
    ({"cron": "0 3 * * *", "tz": "../../etc/passwd"}, "unknown"),
    ({"cron": "0 3 * * *", "tz": ""}, "unknown"),
    ({"cron": "0 3 * * *", "tz": 3}, "name of a time zone"),
    ({"cron": "0 3 * * *", "tz": timezone(timedelta(hours=2))}, "name of a time zone"),
    ({"every": 0}, "0.1 seconds"),
    ({"every": -5}, "0.1 seconds"),
    ({"every": 0.05}, "0.1 seconds"),
    ({"every": timedelta(0)}, "0.1 seconds"),
    ({"every": timedelta(days=40_000)}, "36,500 days"),
    ({"every": NAN}, "every"),
    ({"every": 10**400}, "every"),
    ({"every": 60, "anchor": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))}, "UTC can express"),
    ({"every": INF}, "every"),
    ({"every": 1e300}, "every"),
    ({"every": "60"}, "seconds or a timedelta"),
    ({"every": True}, "seconds or a timedelta"),
    ({"every": None}, "seconds or a timedelta"),
    ({"every": 60, "tz": "Europe/Berlin"}, "tz= goes with cron="),
    ({"every": 60, "anchor": NAIVE}, "with a time zone"),
    ({"every": 60, "anchor": "midnight"}, "anchor must be a datetime"),
    ({"cron": "@daily", "anchor": datetime(2026, 1, 1, 5, tzinfo=UTC)}, "anchor= goes with every="),
    ({"cron": "@daily", "mode": "fixed_delay"}, "goes with every="),
    ({"every": 60, "mode": "sometimes"}, "'fixed_rate' or 'fixed_delay'"),
    ({"every": 60, "mode": "fixed_delay", "overlap": "allow"}, "never overlaps"),
    ({"every": 60, "mode": "fixed_delay", "catch_up": "all"}, "catch_up= goes with"),
    ({"every": 60, "mode": "fixed_delay", "anchor": datetime(2026, 1, 2, tzinfo=UTC)}, "anchor= goes with"),
    ({"every": 60, "catch_up": "some"}, "'last' or 'skip' or 'all'"),
    ({"every": 60, "catch_up": True}, "'last' or 'skip' or 'all'"),
    ({"every": 60, "overlap": "maybe"}, "'skip' or 'allow'"),
    ({"every": 60, "max_catch_up": 0}, "1 to 1000"),
    ({"every": 60, "max_catch_up": 1001}, "1 to 1000"),
    ({"every": 60, "max_catch_up": 1.5}, "whole number"),
    ({"every": 60, "max_catch_up": True}, "whole number"),
    ({"every": 60, "jitter": -1}, "jitter"),
    ({"every": 60, "jitter": 61}, "no more than every="),
    ({"every": 60, "jitter": NAN}, "jitter"),
    ({"every": 60, "jitter": "5"}, "seconds or a timedelta"),
    ({"every": 60, "evry": 5}, "'evry'"),
    ({"every": 60, "delay": 5}, "'delay'"),
    ({"every": 60, "idempotency_key": "k"}, "'idempotency_key'"),
]
# What only code can say wrongly, about its jobs.
WRONG_IN_CODE: list[tuple[dict[str, Any], str]] = [
    ({"queue": ""}, "queue"),
    ({"priority": 1000}, "priority"),
    ({"max_attempts": 0}, "max_attempts"),
    ({"max_crashes": 0}, "max_crashes"),
    ({"timeout": -1}, "timeout"),
    ({"tags": "text"}, "tags"),
    ({"retry": "often"}, "retry"),
    ({"name": ""}, "name"),
    ({"name": "a\nb"}, "name"),
    ({"name": 5}, "name"),
    ({"arguments": {"number": 1}}, "arguments="),
]


def nothing() -> None: ...


@pytest.mark.parametrize(("said", "answer"), WRONG, ids=lambda it: str(it)[:60])
@virtual
async def test_the_decorator_refuses_it(said: dict[str, Any], answer: str) -> None:
    """X5, N2: while the code is read, not when it should run."""
    world = World()
    with pytest.raises(ConfigError, match=re.escape(answer)):
        world.harbor.recurring(**said)(nothing)
    await _is_untouched(world)


@pytest.mark.parametrize(("said", "answer"), WRONG_IN_CODE, ids=lambda it: str(it)[:60])
@virtual
async def test_the_decorator_refuses_wrong_options_of_its_jobs(said: dict[str, Any], answer: str) -> None:
    """X5: the same that a task refuses, and what its function cannot be called with."""
    world = World()
    with pytest.raises((HarborError, TypeError, ValueError), match=answer):
        world.harbor.recurring(**{"every": 60, **said})(nothing)
    await _is_untouched(world)


@pytest.mark.parametrize(("said", "answer"), WRONG, ids=lambda it: str(it)[:60])
@virtual
async def test_create_refuses_it(said: dict[str, Any], answer: str) -> None:
    """X5, N5: with the same words."""
    world = World()
    world.harbor.task(name="work")(nothing)
    with pytest.raises(ConfigError, match=re.escape(answer)):
        await world.harbor.admin.recurring.acreate("made", "work", **said)
    assert await world.memory.schedules() == []


@pytest.mark.parametrize(("said", "answer"), [it for it in WRONG if "every" in it[0] or "cron" in it[0]])
@virtual
async def test_change_refuses_it(said: dict[str, Any], answer: str) -> None:
    """X5, N5: what was stored stays as it was."""
    world = World()
    world.harbor.task(name="work")(nothing)
    admin = world.harbor.admin.recurring
    await admin.acreate("made", "work", every=60)
    before = await world.memory.schedules()
    with pytest.raises(ConfigError, match=re.escape(answer)):
        await admin.achange("made", **said)
    assert await world.memory.schedules() == before


@pytest.mark.parametrize("name", ["", "x" * 600, "a\nb", None, 5])
@virtual
async def test_create_refuses_wrong_names(name: Any) -> None:
    """X5: of the recurring task, and of its task."""
    world = World()
    admin = world.harbor.admin.recurring
    with pytest.raises(HarborError, match="name"):
        await admin.acreate(name, "work", every=60)
    with pytest.raises((HarborError, AttributeError), match="name"):
        await admin.acreate("made", name, every=60)
    assert await world.memory.schedules() == []


@virtual
async def test_wrong_arguments_are_refused_where_the_task_is_known() -> None:
    """X5, P3: at create and at change."""
    world = World()

    @world.harbor.task(name="work")
    async def work(number: int) -> None: ...

    admin = world.harbor.admin.recurring
    for arguments in ({}, {"number": "x"}, {"nmber": 1}):
        with pytest.raises(HarborError):
            await admin.acreate("made", "work", every=60, arguments=arguments)
    assert await world.memory.schedules() == []
    await admin.acreate("made", "work", every=60, arguments={"number": 1})
    with pytest.raises(HarborError):
        await admin.achange("made", arguments={"number": "x"})


@virtual
async def test_two_of_one_name_are_refused() -> None:
    """X5, P4: the first one stays as it is, and the name of the second's task is free."""
    world = World()
    harbor = world.harbor
    first = harbor.task(name="one")(nothing)
    harbor.recurring(every=60)(first)

    def other() -> None: ...

    with pytest.raises(ScheduleExists, match="'one'"):
        harbor.recurring(every=30, name="one")(other)
    with pytest.raises(ScheduleExists, match="'one'"):
        harbor.recurring(every=30)(first)
    assert [it.when.interval.total_seconds() for it in harbor._application.recurring.values()] == [60]
    second = harbor.recurring(every=30, name="two")(other)
    with pytest.raises(DuplicateTask, match=r"put @harbor\.task below"):
        harbor.task(second)
    with pytest.raises(DuplicateTask, match="another name="):
        harbor.recurring(every=30, name="five")(other)
    harbor.recurring(every=30, name="three")(first)
    assert list(harbor._application.recurring) == ["one", "two", "three"]
    async with ticking(harbor):
        assert [it.name for it in await world.memory.schedules()] == ["one", "three", "two"]


def test_a_name_that_a_schedule_of_another_task_has_is_refused() -> None:
    """X5: nothing is declared over something else."""
    harbor = Harbor("memory://")

    def other() -> None: ...

    task = harbor.task(name="task")(nothing)
    taken = f"{other.__module__}.{other.__qualname__}"
    harbor.recurring(every=60, name=taken)(task)
    with pytest.raises(ScheduleExists):
        harbor.recurring(every=60)(other)
    assert list(harbor.tasks) == ["task"]
    assert harbor._application.recurring[taken].task.name == "task"


def _needs(number: int) -> None: ...


def _generates() -> Any:
    yield 1


class Thing:
    """No function."""


@pytest.mark.parametrize("function", [_needs, _generates, Thing, 5, None, "text", lambda number: number, dict.fromkeys])
def test_what_cannot_be_called_alone_is_refused(function: Any) -> None:
    """X5: functions that need arguments, and values that are not functions."""
    harbor = Harbor("memory://")
    with pytest.raises(ConfigError):
        harbor.recurring(every=60)(function)
    assert [*harbor.tasks, *harbor._application.recurring] == []


@pytest.mark.parametrize(
    ("used", "said"),
    [
        (lambda task: task.using(delay=5), {}),
        (lambda task: task.using(idempotency_key="k"), {}),
        (lambda task: task.using(headers={"a": "b"}), {}),
        (lambda task: task, {"retry": Retry()}),
        (lambda task: task, {"arguments": {"number": 1}}),
    ],
)
def test_what_does_not_go_with_a_task_is_refused(used: Callable[[Any], Any], said: dict[str, Any]) -> None:
    """X5: options of a single job, and what the task says itself."""
    harbor = Harbor("memory://")
    task = harbor.task(name="work")(nothing)
    with pytest.raises(ConfigError):
        harbor.recurring(every=60, **said)(used(task))
    assert harbor._application.recurring == {}


def test_a_recurring_task_without_times_names_the_fix() -> None:
    """X5: `@harbor.recurring` without brackets."""
    harbor = Harbor("memory://")
    with pytest.raises(ConfigError, match="say when by name"):
        harbor.recurring(nothing)  # type: ignore[arg-type]
    assert [*harbor.tasks, *harbor._application.recurring] == []


@pytest.mark.parametrize("arguments", [[1], "text", 5])
def test_arguments_come_by_name(arguments: Any) -> None:
    """X5."""
    harbor = Harbor("memory://")
    with pytest.raises(ConfigError, match="by the names of parameters"):
        harbor.recurring(every=60, arguments=arguments)
    assert [*harbor.tasks, *harbor._application.recurring] == []


def test_a_task_of_another_harbor_is_refused() -> None:
    """X5: no worker of this one would ever run it."""
    harbor, other = Harbor("memory://"), Harbor("memory://")
    harbor.task(name="work")(nothing)
    with pytest.raises(ConfigError, match="another harbor"):
        harbor.recurring(every=60)(other.task(name="work")(nothing))
    assert harbor._application.recurring == {}


async def _is_untouched(world: World) -> None:
    """Nothing is registered, the task's name is free, and a worker has nothing to store."""
    assert [*world.harbor.tasks, *world.harbor._application.recurring] == []
    async with ticking(world.harbor):
        assert await world.memory.schedules() == []
    world.harbor.recurring(every=60)(nothing)
    assert len(world.harbor.tasks) == len(world.harbor._application.recurring) == 1
