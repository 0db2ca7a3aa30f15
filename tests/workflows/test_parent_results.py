"""Results of parents on their way to the children: how much one call may carry."""

from __future__ import annotations

from typing import Any

import pytest

from taskharbor import chain
from taskharbor.core import wiring
from taskharbor.errors import StoreCorrupt
from taskharbor.workflows import parent_results as parents
from workflows.test_flows import Sums
from world import virtual

LIMIT = 1000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that is soon reached."""
    monkeypatch.setattr(parents, "LIMIT", LIMIT)
    monkeypatch.setattr(wiring, "LIMIT", LIMIT)


async def started_together(w: Sums, sizes: list[int]) -> list[Any]:
    """The states of children that start at once, each with a result of such a size."""
    runs = [await chain(w.tell.step("x" * (size - 2)), w.note).aenqueue() for size in sizes]
    await w.drain(concurrency=100)
    return [await run.astate() for run in runs]


@virtual
async def test_one_call_carries_no_more_than_one_job_may_be_given() -> None:
    """K3: a share for each; who has more is asked for alone, who has too much is not asked for again."""
    w = Sums()
    sizes = [10, 500, LIMIT, LIMIT + 1, 100, 101, 20, 30, 40, 50]
    assert await started_together(w, sizes) == ["done"] * 3 + ["failed"] + ["done"] * 6
    assert sorted(len(str(word)) for word in w.seen[10:]) == sorted(size - 2 for size in sizes if size <= LIMIT)
    calls = [(len(call["ids"]), call["most"]) for call in w.log.calls("parents")]
    assert calls == [(10, 100), (1, LIMIT), (1, LIMIT), (1, LIMIT)]


@virtual
async def test_a_large_result_that_cannot_be_read_is_its_own_childs_failure() -> None:
    """F7, K3: other jobs do not wait for it."""
    w = Sums(max_attempts=1)
    inner = w.memory.parents

    async def damaged(ids: Any, most: int) -> Any:
        if most == LIMIT:
            raise StoreCorrupt("a row is damaged")
        return await inner(ids, most)

    w.memory.parents = damaged  # type: ignore[method-assign]
    assert await started_together(w, [10, 600, 20]) == ["done", "failed", "done"]
