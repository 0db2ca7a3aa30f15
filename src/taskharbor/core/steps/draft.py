"""The draft of a step: what it has seen of the store, and what it changes.

A step reads its own writes. A record in a draft may lack its cargo (payload, result, headers, tags, failures,
progress): no rule reads that, and `evolve` carries it along.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator
from datetime import datetime
from typing import Generic, TypeVar

from taskharbor.core.job import JobRecord
from taskharbor.core.keys import KeyRecord
from taskharbor.core.schedule import Schedule
from taskharbor.core.states import TERMINAL
from taskharbor.core.steps.needs import Keys, Look, Owned, StoredEdge, VerbStep
from taskharbor.core.tally import Tally

K = TypeVar("K")
V = TypeVar("V")

EdgePlace = tuple[str, int]  # a child, and the position of an edge among its dependencies


class Part(Generic[K, V]):
    """Values of one kind by key: those seen, None for what is missing, and those that the step changed."""

    def __init__(self) -> None:
        self.known: dict[K, V | None] = {}
        self.before: dict[K, V | None] = {}

    def learn(self, key: K, value: V | None) -> None:
        """Take in what the store holds. What the step has seen already stays as it is."""
        self.known.setdefault(key, value)

    def put(self, key: K, value: V | None) -> None:
        """Change a value; None removes it."""
        self.before.setdefault(key, self.known.get(key))
        self.known[key] = value

    def unknown(self, keys: Iterable[K]) -> list[K]:
        """The keys that have not been looked up, each once."""
        return [key for key in dict.fromkeys(keys) if key not in self.known]

    def changes(self) -> Iterator[tuple[K, V | None, V | None]]:
        """Each changed key, with its value before and after."""
        return ((key, before, self.known[key]) for key, before in self.before.items())


class Draft:
    """Jobs, edges, keys and schedules as a step sees them.

    Drivers fill it through `learn`, `learn_edges` and the plain attributes; rules use the other methods.
    """

    def __init__(self) -> None:
        self.jobs: Part[str, JobRecord] = Part()
        self.edges: Part[EdgePlace, StoredEdge] = Part()
        self.keys: Part[str, KeyRecord] = Part()
        self.schedules: Part[str, Schedule] = Part()
        self.payloads: dict[str, bytes] = {}
        self.unfinished: Counter[str] = Counter()  # by the owner of a key, as stored
        self.kept: dict[str, datetime | None] = {}
        self.members: dict[str, list[str]] = {}
        self.keep: dict[str, datetime] = {}  # to write: until when to keep a workflow's records at least
        self.tallies: list[Tally] = []  # to write: increments of the totals
        # By job and workflow: how the number of unfinished jobs differs from the stored one.
        self._moved: defaultdict[str, int] = defaultdict(int)
        self._looked_above: set[str] = set()
        self._looked_below: set[str] = set()
        self._looked_owned: set[str] = set()
        self._looked_living: set[str] = set()
        self._above: dict[str, dict[EdgePlace, None]] = {}
        self._below: dict[str, dict[EdgePlace, None]] = {}

    def learn(self, asked: Iterable[str], jobs: Iterable[JobRecord]) -> None:
        """Take in the records that there are among the ids that were asked for."""
        for job in jobs:
            self.jobs.learn(job.id, job)
        for id in asked:
            self.jobs.learn(id, None)

    def learn_edges(self, edges: Iterable[StoredEdge]) -> None:
        """Take in edges."""
        for edge in edges:
            place = edge.child, edge.position
            if place not in self.edges.known:
                self.edges.learn(place, edge)
                self._tie(edge)

    def learn_below(self, ids: Iterable[str]) -> None:
        """Take note that all edges below these jobs are known, though they were not asked for."""
        self._looked_below.update(ids)

    def look(self, ids: Iterable[str] = (), above: Iterable[str] = (), below: Iterable[str] = ()) -> VerbStep[None]:
        """Look at what has not been looked at."""
        need = Look(self.jobs.unknown(ids), _not_in(self._looked_above, above), _not_in(self._looked_below, below))
        if need.ids or need.above or need.below:
            self._looked_above.update(need.above)
            self._looked_below.update(need.below)
            yield need

    def look_up(self, keys: Iterable[str | None]) -> VerbStep[None]:
        """Look up the owners of keys that have not been looked up."""
        if unknown := self.keys.unknown(key for key in keys if key is not None):
            yield Keys(unknown)

    def look_up_living(self, keys: Iterable[str | None]) -> VerbStep[None]:
        """Look up what `living_key` needs of keys."""
        if unknown := _not_in(self._looked_living, (key for key in keys if key is not None)):
            self._looked_living.update(unknown)
            yield Keys(unknown, unfinished=True)

    def look_up_owned(self, workflows: Iterable[str]) -> VerbStep[None]:
        """Look up the keys of the workflows whose keys have not been looked up."""
        if unknown := _not_in(self._looked_owned, workflows):
            self._looked_owned.update(unknown)
            yield Owned(unknown)

    def owned(self, workflows: Container[str]) -> list[KeyRecord]:
        """The keys of these workflows."""
        return [key for key in self.keys.known.values() if key is not None and key.owner in workflows]

    def job(self, id: str) -> JobRecord | None:
        """A record that was looked at."""
        return self.jobs.known[id]

    def existing(self, id: str) -> JobRecord:
        """A record that was looked at and exists, such as the other end of an edge."""
        job = self.jobs.known[id]
        assert job is not None
        return job

    def put(self, job: JobRecord) -> JobRecord:
        """Write a record."""
        self._count(self.jobs.known.get(job.id), -1)
        self._count(job, 1)
        self.jobs.put(job.id, job)
        return job

    def remove(self, job: JobRecord) -> None:
        """Remove a record with its edges. A driver removes those too that were not looked at."""
        self._count(job, -1)
        self.jobs.put(job.id, None)
        for place in (*self._above.pop(job.id, ()), *self._below.pop(job.id, ())):
            self.edges.put(place, None)

    def _count(self, job: JobRecord | None, number: int) -> None:
        if job is not None and job.state not in TERMINAL:
            self._moved[job.id] += number
            if job.workflow_id is not None:
                self._moved[job.workflow_id] += number

    def put_edge(self, edge: StoredEdge) -> None:
        """Write an edge."""
        self.edges.put((edge.child, edge.position), edge)
        self._tie(edge)

    def _tie(self, edge: StoredEdge) -> None:
        place = edge.child, edge.position
        self._above.setdefault(edge.child, {})[place] = None
        self._below.setdefault(edge.parent, {})[place] = None

    def above(self, id: str) -> list[StoredEdge]:
        """The edges to a job's parents that exist."""
        edges = self._edges(self._above.get(id))
        return [edge for edge in edges if self.jobs.known.get(edge.parent) is not None]

    def below(self, id: str) -> list[StoredEdge]:
        """The edges to a job's dependants that exist."""
        edges = self._edges(self._below.get(id))
        return [edge for edge in edges if self.jobs.known.get(edge.child) is not None]

    def _edges(self, places: Iterable[EdgePlace] | None) -> list[StoredEdge]:
        known = self.edges.known
        return [edge for place in places if (edge := known[place]) is not None] if places else []

    def living_key(self, key: str | None, now: datetime) -> KeyRecord | None:
        """The owner of a key that is still in force (I2)."""
        known = None if key is None else self.keys.known[key]
        if known is None:
            return None
        unfinished = self.unfinished[known.owner] + self._moved[known.owner]
        return known if known.alive(now, owner_ended=unfinished == 0) else None

    def owns_key(self, key: str | None, owner: str) -> bool:
        """Whether a key belongs to this job or workflow."""
        known = None if key is None else self.keys.known[key]
        return known is not None and known.owner == owner

    def free_key(self, key: str | None, owner: str) -> None:
        """Forget a key if it belongs to this job or workflow."""
        if key is not None and self.owns_key(key, owner):
            self.keys.put(key, None)


def _not_in(seen: set[str], ids: Iterable[str]) -> list[str]:
    return [id for id in dict.fromkeys(ids) if id not in seen]
