"""Failures of handlers for those who run them in tests: `drain(raise_failures=True)`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from taskharbor.core.job import JobRecord
from taskharbor.core.outcome import Failed
from taskharbor.errors import JobFailed

MOST_NOTES = 20


class Failure(Struct, frozen=True):
    """A run that failed, and what its handler raised, if that is why."""

    job: JobRecord
    outcome: Failed
    raised: BaseException | None

    @property
    def title(self) -> str:
        """Which job, and what was wrong."""
        return f"job {self.job.id} ({self.job.type}): {self.outcome.kind}: {self.outcome.message}"


def told(failures: Sequence[Failure]) -> Exception:
    """The exception to raise for these: what the first one raised; the notes name its job, and the others."""
    first = failures[0]
    error = first.raised
    if not isinstance(error, Exception):  # a timeout, or an exit that must not end the caller
        error = JobFailed(first.title)
        error.__cause__ = first.raised
    error.add_note(f"raised by job {first.job.id} ({first.job.type}), attempt {first.job.attempts + 1}")
    for failure in failures[1:MOST_NOTES]:
        error.add_note(f"failed as well: {failure.title}")
    if len(failures) > MOST_NOTES:
        error.add_note(f"… and {len(failures) - MOST_NOTES} more")
    return error
