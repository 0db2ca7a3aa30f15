"""Names that people know from other libraries."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from typing import Any

import pytest

from taskharbor import Harbor, chain, group

harbor = Harbor("memory://")


@harbor.task
def greet(name: str) -> str:
    """Say hello."""
    return f"Hello {name}"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("delay", r"write greet\.enqueue\(…\)$"),
        ("apply_async", r"write greet\.using\(delay=…, queue=…\)\.enqueue\(…\)$"),
        ("s", r"write greet\.step\(…\)$"),
        ("send", r"write greet\.enqueue\(…\)$"),
        ("enqueue_many", r"write greet\.step\(…\) for each, and harbor\.enqueue_many\(steps\)$"),
        ("delay_on_commit", r"write greet\.using\(tx=…\)\.enqueue\(…\), which commits with your transaction$"),
        ("signature", r"write greet\.step\(…\)$"),
        ("retry", r"'retry': raise RetryAfter\(seconds\), or any exception, in the handler$"),
        ("request", r"'request': call current\(\) in the handler$"),
        ("AsyncResult", r"write harbor\.job\(id\)$"),
        ("nothing", r"^'Task' object has no attribute 'nothing'$"),
    ],
)
def test_a_task_names_its_own_words(name: str, said: str) -> None:
    """P2, X5: the error names the fix; other names fail as ever."""
    with pytest.raises(AttributeError, match=said) as caught:
        getattr(greet, name)
    assert (caught.value.name, caught.value.obj) == (name, greet)
    assert not hasattr(greet, name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("get", r"write job\.result\(timeout=…\)$"),
        ("status", r"write job\.state\(\)$"),
        ("ready", r'write job\.state\(\) == "done"$'),
        ("failed", r'write job\.state\(\) == "dlq"$'),
        ("revoke", r"write job\.cancel\(\)$"),
        ("nothing", r"^'Job' object has no attribute 'nothing'$"),
    ],
)
def test_a_job_names_its_own_words(name: str, said: str) -> None:
    """P2, X5: the handle of another library has other methods; a run has the states of a workflow."""
    job = harbor.job("some-id")
    with pytest.raises(AttributeError, match=said) as caught:
        getattr(job, name)
    assert (caught.value.name, caught.value.obj) == (name, job)
    assert copy.copy(job).id == "some-id"
    said = said.replace("'Job'", "'Run'").replace("job", "run").replace("dlq", "failed")
    with pytest.raises(AttributeError, match=said):
        getattr(harbor.workflow("some-id"), name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("actor", "task"),
        ("shared_task", "task"),
        ("periodic_task", 'recurring(cron="0 3 * * *")'),
        ("run", "run_worker()"),
        ("AsyncResult", "job(id)"),
    ],
)
def test_a_harbor_names_its_own_decorators(name: str, said: str) -> None:
    """X5."""
    with pytest.raises(AttributeError, match=f"write harbor\\.{re.escape(said)}$"):
        getattr(harbor, name)


def test_a_harbor_says_how_tasks_are_found() -> None:
    """X5: what no method of ours replaces."""
    with pytest.raises(AttributeError, match=r"import the modules of the tasks, or name them with --include$"):
        _ = harbor.autodiscover_tasks  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["delay", "apply_async"])
def test_a_flow_names_its_own_word(name: str) -> None:
    """P2, X5: chains and chords, groups, and those with a policy."""
    steps = group(greet.step("Ada"))
    for flow in (steps, chain(greet.step("Ada"), greet), steps.on_failure("hold")):
        with pytest.raises(AttributeError, match=r"write flow\.enqueue\(\)$"):
            getattr(flow, name)


@pytest.mark.parametrize("name", ["send_task", "enqueue_job"])
def test_a_harbor_names_its_own_words(name: str) -> None:
    """X5: for tasks by name."""
    with pytest.raises(AttributeError, match=r'write harbor\.a?enqueue\("task\.name", \{…\}\)$'):
        getattr(harbor, name)


def test_whatever_looks_at_attributes_still_works() -> None:
    """Copies, pickles and inspection look for attributes that are not there, also on objects without any yet."""
    assert copy.copy(greet)("Ada") == "Hello Ada"
    assert not inspect.iscoroutinefunction(greet)
    assert list(inspect.signature(greet).parameters) == ["name"]
    empty: Any = object.__new__(type(greet))
    with pytest.raises(AttributeError, match="_registered"):
        _ = empty.name
    with pytest.raises(AttributeError, match=r"write task\.enqueue"):
        _ = empty.delay
    assert pickle.dumps(type(greet))
    assert greet.__reduce_ex__(2)[1] == (type(greet),)  # what pickle and copy ask for
