"""The failed runs of a drain, for tests: `drain(raise_failures=True)`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.core.job import JobRecord
from taskharbor.core.outcome import Failed
from taskharbor.errors import JobFailed
from taskharbor.worker.running import JobRun

MOST_NOTES = 20


class FailedRun(Struct, frozen=True):
    """A run that failed, and the exception of its handler, if it raised one."""

    job: JobRecord
    outcome: Failed
    raised: BaseException | None

    @property
    def title(self) -> str:
        return f"job {self.job.id} ({self.job.type}): {self.outcome.kind}: {self.outcome.message}"


class FailedRuns:
    """Collects the failed runs of a worker."""

    def __init__(self, found: list[FailedRun]) -> None:
        self._found = found
        self._raised: dict[str, BaseException] = {}

    def raised(self, run: JobRun, error: BaseException) -> None:
        """Keep what a handler raised until its run is decided."""
        self._raised[run.job.id] = error

    def add(self, run: JobRun, outcome: Failed) -> None:
        job = run.job if run.started_at is None else replace(run.job, started_at=run.started_at)
        self._found.append(FailedRun(job, outcome, self._raised.pop(job.id, None)))


def as_exception(failures: Sequence[FailedRun]) -> Exception:
    """The exception to raise for these: that of the first one, with notes that name its job and the others."""
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
