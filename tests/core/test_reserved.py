"""Names that the TaskManager keeps for itself."""

from __future__ import annotations

import pytest

from taskharbor.core.reserved import KEY_PREFIX, TASKS, check_key, check_queue, in_line, is_news
from taskharbor.errors import InvalidJob

from .make import new_job


def test_the_queue_of_tasks_is_in_no_line() -> None:
    """D2, M1: it is left out however often it is named; other queues keep their order and their shares."""
    assert in_line([TASKS]) == []
    assert in_line(["b", TASKS, "a", TASKS, "b"]) == ["b", "a", "b"]
    assert in_line(["b", "a", "taskharbor", TASKS.upper()]) == ["b", "a", "taskharbor", TASKS.upper()]
    assert in_line([]) == []


def test_new_tasks_are_no_news_for_workers() -> None:
    """M1: but a job among them is."""
    task, job = new_job(id="t", queue=TASKS), new_job(id="j")
    assert not is_news([])
    assert not is_news([task, task])
    assert is_news([job])
    assert is_news([task, job])


def test_names_that_are_a_managers_are_refused() -> None:
    """M1, X5: the error says whose they are; near ones are fine."""
    with pytest.raises(InvalidJob, match=r"a queue must not be 'taskharbor\.tasks': a TaskManager keeps"):
        check_queue("a queue", TASKS)
    with pytest.raises(InvalidJob, match=r"a key must not begin with 'taskharbor\.tasks:'"):
        check_key("a key", f"{KEY_PREFIX}x")
    assert check_queue("a queue", f"{TASKS}2") == f"{TASKS}2"
    assert check_key("a key", TASKS) == TASKS
    assert check_key("a key", "k" * 512) == "k" * 512


@pytest.mark.parametrize("text", ["", None, 7, "a\nb", "k" * 513])
def test_other_rules_hold_as_ever(text: object) -> None:
    """X5: text of a bounded length without control characters."""
    with pytest.raises(InvalidJob):
        check_queue("a queue", text)
    with pytest.raises(InvalidJob):
        check_key("a key", text)
