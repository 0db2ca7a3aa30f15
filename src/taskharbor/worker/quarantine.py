"""The quarantine: jobs suspected of killing their workers run alone (F6b).

A worker that claims a suspect among other jobs gives it back, lets its slots run empty, and then claims it by its id.
If that takes too long, the suspect is put off, and the worker waits twice as long the next time: fresh work goes on
(F7), and the suspect's turn comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from taskharbor.core.decide import is_suspect
from taskharbor.core.job import JobRecord

PATIENCE = 10.0
REST = 30.0
ASIDE = 1.0
MOMENT = 1e-6  # less is a rounding error, and waiting for it would repeat for ever


class Quarantine:
    """Limits what a worker claims next, and picks the claimed jobs that it has to give back.

    A worker without others beside it (`alone`) waits for empty slots as long as it takes. Jobs that are isolated, each
    in a process of its own, are never suspects.
    """

    def __init__(
        self, time: Callable[[], float], rng: Random, is_isolated: Callable[[JobRecord], bool] = lambda _: False
    ) -> None:
        self._time = time
        self._rng = rng
        self._is_isolated = is_isolated
        self._wanted: str | None = None
        self._patience = PATIENCE
        self._empty_by = 0.0
        self._rest_until = 0.0
        self._running_alone = False
        self.alone = False

    @property
    def patience(self) -> float | None:
        """The longest wait for empty slots; None if there is nothing to wait for."""
        if self._wanted is None or self.alone:
            return None
        left = self._empty_by - self._time()
        return left if left > MOMENT else 0.0

    def ask(self, free: int, empty: bool) -> tuple[int, list[str] | None]:
        """The number of jobs to reserve, and their ids if only certain ones; `empty` says that no lease is held."""
        self._running_alone = self._running_alone and not empty
        if self._running_alone:
            return 0, None
        if self._wanted is not None and not empty and self.patience == 0.0:
            self._wanted = None
            self._rest_until = self._time() + max(REST, self._patience)
            self._patience *= 2
        if self._wanted is None:
            return free, None
        if not empty:
            return 0, None
        wanted, self._wanted = self._wanted, None
        return 1, [wanted]

    def sort(self, jobs: Sequence[JobRecord], empty: bool) -> dict[str, float]:
        """The ids of the jobs to give back, with the seconds until they are due again; the others may run."""
        suspects = [job.id for job in jobs if job.crashes and is_suspect(job) and not self._is_isolated(job)]
        if not suspects:
            return {}
        if len(jobs) == 1 and empty:
            self._running_alone, self._patience = True, PATIENCE
            return {}
        if self._time() >= self._rest_until:
            self._wanted, self._empty_by = suspects[0], self._time() + self._patience
        return {id: self._delay(id) for id in suspects}

    def _delay(self, id: str) -> float:
        """Seconds until a suspect is due again. Only the next one to run keeps its place.

        Otherwise workers would claim the others and give them back, again and again.
        """
        if id == self._wanted or self.alone:
            return 0.0
        return max(self._rest_until - self._time(), 0.0) + self._rng.uniform(0.1, ASIDE)

    def missed(self) -> None:
        """The wanted job could not be claimed: another worker has it. Let others try for a moment."""
        self._rest_until = self._time() + self._rng.uniform(0.1, ASIDE)
