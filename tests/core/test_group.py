"""Groups that can be stored without a look-up (D1). Refusals are tested with the steps."""

from __future__ import annotations

import pytest

from taskharbor.core.group import is_closed
from taskharbor.core.job import Dependency, NewJob

from .make import new_job

A, B = new_job(id="a"), new_job(id="b", depends_on=(Dependency("a"),))


@pytest.mark.parametrize(
    ("jobs", "closed"),
    [((A, B), True), ((B, A), False), ((B,), False), ((A, new_job(id="c", idempotency_key="k")), False), ((), True)],
)
def test_D1_a_group_is_closed_if_it_only_depends_on_itself(jobs: tuple[NewJob, ...], closed: bool) -> None:  # noqa: N802
    """D1: no keys, and parents before their children."""
    assert is_closed(jobs) is closed
