"""The claims of one manager: the jobs with their tokens, without payloads.

A claim is forgotten when it is settled, or an hour after it has expired: its last settle may be repeated (D8).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime, timedelta

from msgspec.structs import replace

from taskharbor.core.job import JobRecord
from taskharbor.driver.forking import after_fork

REMEMBERED = timedelta(hours=1)
FEW = 1000


class Claims:
    """Claimed jobs by id, for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, JobRecord] = {}
        self._claiming: Counter[tuple[str, str]] = Counter()
        self._look_at = FEW
        after_fork(self, Claims._renew)

    def _renew(self) -> None:
        """Reset the lock that a parent thread may have held; the claims are the parent's."""
        self._lock, self._jobs, self._claiming = threading.Lock(), {}, Counter()

    def __len__(self) -> int:
        return len(self._jobs)

    @contextmanager
    def claiming(self, id: str, worker: str) -> Generator[None]:
        """Inside the block a claim is made: the store may have it before this manager does."""
        with self._lock:
            self._claiming[id, worker] += 1
        try:
            yield
        finally:
            with self._lock:
                self._claiming[id, worker] -= 1
                if not self._claiming[id, worker]:
                    del self._claiming[id, worker]

    def is_claiming(self, id: str, worker: str) -> bool:
        """Whether another call of this worker is making a claim."""
        return (id, worker) in self._claiming

    def take(self, job: JobRecord, now: datetime) -> None:
        """Remember a claim instead of an earlier one on the same task."""
        with self._lock:
            self._jobs[job.id] = replace(job, payload=b"")
            if len(self._jobs) >= self._look_at:
                self._jobs = {id: it for id, it in self._jobs.items() if not _is_over(it, now)}
                self._look_at = max(FEW, 2 * len(self._jobs))

    def of(self, id: str, worker: str) -> JobRecord | None:
        """The claim of this worker, also if it has expired."""
        job = self._jobs.get(id)
        return job if job is not None and job.lease is not None and job.lease.worker == worker else None

    def has(self, job: JobRecord) -> bool:
        """Whether this manager holds the job."""
        return job.lease is not None and _token(self._jobs.get(job.id)) == job.lease.token

    def renew(self, job: JobRecord) -> None:
        """Note a claim's new expiry, if it is still the one that is held."""
        with self._lock:
            if _token(self._jobs.get(job.id)) == _token(job):
                self._jobs[job.id] = job

    def forget(self, id: str, token: str | None) -> None:
        """Forget this claim, but not a later one."""
        with self._lock:
            if _token(self._jobs.get(id)) == token:
                self._jobs.pop(id, None)

    def drop(self, id: str) -> None:
        """Forget any claim on a task that cannot be claimed again."""
        with self._lock:
            self._jobs.pop(id, None)


def _token(job: JobRecord | None) -> str | None:
    return None if job is None or job.lease is None else job.lease.token


def _is_over(job: JobRecord, now: datetime) -> bool:
    return job.lease is None or job.lease.expires_at + REMEMBERED <= now
