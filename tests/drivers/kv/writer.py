"""The values that a step's draft comes to: records with their edges, keys, workflows, schedules and totals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from taskharbor.core.job import JobRecord
from taskharbor.core.keys import KeyRecord
from taskharbor.core.steps.draft import Draft, EdgePlace
from taskharbor.core.steps.needs import StoredEdge
from taskharbor.core.tally import Tally, added

from .reader import Reader, Requests, StoredJob, StoredWorkflow

Changed = dict[EdgePlace, tuple[StoredEdge, StoredEdge | None]]  # an edge, and what it is after the step


class Writer:
    """Turns the changes of a draft into values."""

    def __init__(self, reader: Reader, draft: Draft) -> None:
        self._reader = reader
        self._draft = draft
        self._values: dict[str, Any] = {}

    def values(self) -> Requests[dict[str, Any]]:
        """The values by name; None removes one."""
        yield from self._prolong()
        for id, before, after in self._draft.jobs.changes():
            yield from self._change_members(id, before, after)
        edges = yield from self._changed_edges()
        for number, id in enumerate(dict.fromkeys((*self._draft.jobs.before, *_ends(edges)))):
            yield from self._change_job(id, number, edges)
        for key, known, new in self._draft.keys.changes():
            self._values[f"key/{key}"] = new
            yield from self._change_owners(key, known, new)
        for name, _, schedule in self._draft.schedules.changes():
            self._values[f"schedule/{name}"] = schedule
        for tally in self._draft.tallies:
            name = tally_name(tally)
            total: Tally | None = yield from self._reader.get(name)
            self._values[name] = tally if total is None else added(total, tally)
        return self._values

    def _prolong(self) -> Requests[None]:
        """Keep the records of workflows that have to stay."""
        for workflow, until in self._draft.keep.items():
            for job in (yield from self._reader.members(workflow)):
                if job.keep_until is not None and job.keep_until < until:
                    self._draft.learn((), [job])
                    self._draft.put(replace(job, keep_until=until))

    def _change_members(self, id: str, before: JobRecord | None, after: JobRecord | None) -> Requests[None]:
        job = before or after
        if job is not None and job.workflow_id is not None and (before is None or after is None):
            stored = yield from self._changed_workflow(job.workflow_id)
            members = [each for each in stored.members if each != id] + ([] if after is None else [id])
            self._values[f"workflow/{job.workflow_id}"] = replace(stored, members=tuple(members))

    def _change_owners(self, key: str, before: KeyRecord | None, after: KeyRecord | None) -> Requests[None]:
        for owner in dict.fromkeys(each.owner for each in (before, after) if each is not None):
            if owner not in self._draft.jobs.known:
                stored = yield from self._changed_workflow(owner)
                is_owned = after is not None and after.owner == owner
                keys = [each for each in stored.keys if each != key] + ([key] if is_owned else [])
                self._values[f"workflow/{owner}"] = replace(stored, keys=tuple(keys))

    def _changed_workflow(self, id: str) -> Requests[StoredWorkflow]:
        stored = yield from self._reader.workflow(id)
        changed: StoredWorkflow = self._values.get(f"workflow/{id}", stored)
        return changed

    def _changed_edges(self) -> Requests[Changed]:
        """Changed edges, and every edge of a removed job, also those that the step did not look at."""
        edges: Changed = {}
        for id, _, job in self._draft.jobs.changes():
            stored = (yield from self._reader.job(id)) if job is None else None
            if stored is not None:
                edges |= {(id, edge.position): (edge, None) for edge in stored.above.values()}
                for child, position in stored.below:
                    other = yield from self._reader.job(child)
                    edges |= {} if other is None else {(child, position): (other.above[position], None)}
        for place, before, after in self._draft.edges.changes():
            edge = after or before
            edges |= {} if edge is None else {place: (edge, after)}
        return edges

    def _change_job(self, id: str, number: int, edges: Changed) -> Requests[None]:
        stored = yield from self._reader.job(id)
        job = self._draft.jobs.known.get(id, None if stored is None else stored.job)
        above = {} if stored is None else dict(stored.above)
        below = dict.fromkeys(() if stored is None else stored.below)
        for place, (edge, after) in edges.items():
            if edge.child == id:
                above.pop(edge.position, None)
                above |= {} if after is None else {edge.position: after}
            elif edge.parent == id:
                below.pop(place, None)
                below |= {} if after is None else {place: None}
        number = number if stored is None else stored.number
        self._values[f"job/{id}"] = None if job is None else StoredJob(job, number, above, tuple(below))


def tally_name(tally: Tally) -> str:
    """The name that a total is stored under."""
    return f"tally/{tally.minute.isoformat()}/{tally.queue}/{tally.task}/{tally.outcome}"


def _ends(edges: Changed) -> Iterable[str]:
    return (id for edge, _ in edges.values() for id in (edge.child, edge.parent))
