"""Jobs that may be what kills workers run alone (F6b).

A suspect is claimed only by a worker that holds no other lease, and nothing is claimed beside it: so a further crash is
its own, and a crash of others is not counted against it. A worker that meets suspects among other jobs gives them back,
lets its slots run empty, and then claims one of them by its id. Slots do not stay empty for long: when what runs takes
longer than `PATIENCE`, suspects are put off for a while (F7).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskharbor.core.decide import is_suspect
from taskharbor.core.job import JobRecord

PATIENCE = 10.0
REST = 30.0


class Quarantine:
    """Says how many jobs a worker may claim next, and which of those it got have to go back."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._wanted: str | None = None
        self._empty_by = 0.0
        self._rest_until = 0.0
        self._alone = False

    @property
    def patience(self) -> float | None:
        """How long to wait for empty slots at most; None if nothing is waited for."""
        return None if self._wanted is None else max(0.0, self._empty_by - self._time())

    def ask(self, free: int, empty: bool) -> tuple[int, list[str] | None]:
        """How many jobs to reserve, and which if only certain ones; `empty` says that no lease is held."""
        self._alone = self._alone and not empty
        if self._alone:
            return 0, None
        if self._wanted is not None and not empty and self._time() >= self._empty_by:
            self._wanted, self._rest_until = None, self._time() + REST
        if self._wanted is None:
            return free, None
        if not empty:
            return 0, None
        wanted, self._wanted = self._wanted, None
        return 1, [wanted]

    def sort(self, jobs: Sequence[JobRecord], empty: bool) -> tuple[list[JobRecord], list[JobRecord]]:
        """The jobs to run, and those to give back; `empty` says that no other lease is held."""
        suspects = [job for job in jobs if job.crashes and is_suspect(job)]
        if not suspects:
            return list(jobs), []
        if len(jobs) == 1 and empty:
            self._alone = True
            return list(jobs), []
        if self._time() >= self._rest_until:
            self._wanted, self._empty_by = suspects[0].id, self._time() + PATIENCE
        return [job for job in jobs if not is_suspect(job)], suspects

    def delay(self) -> float:
        """For how long suspects are given back: not at all while the slots run empty for one of them."""
        return 0.0 if self._wanted is not None else max(0.0, self._rest_until - self._time())
