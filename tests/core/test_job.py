"""The defaults of a record, as they are stored with the job."""

from __future__ import annotations

import pytest

from taskharbor.core.job import KEPT_FAILURES

from .make import new_job, record


def test_the_defaults_of_a_job() -> None:
    """R5, F3, F6: priority 0, no timeout, one run and three retries, five crashes in a row."""
    job = new_job()
    assert (job.priority, job.timeout, job.max_attempts, job.max_crashes) == (0, None, 4, 5)
    assert (job.run_at, job.expires_at, job.depends_on, job.tags, job.headers) == (None, None, (), (), {})


def test_twenty_failures_are_kept() -> None:
    """R1: the last 20."""
    assert KEPT_FAILURES == 20


def test_records_are_values() -> None:
    """R1: frozen, equal by content, and sharing nothing by accident."""
    assert new_job() == new_job()
    assert new_job().headers is not new_job().headers
    with pytest.raises(AttributeError):
        record().attempts = 5  # type: ignore[misc]
