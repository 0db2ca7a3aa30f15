"""How a key-value store runs a step: it reads with revisions, and commits if nothing that it read has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from taskharbor.core.steps.draft import Draft
from taskharbor.core.steps.needs import (
    KeptUntil,
    Keys,
    Look,
    Members,
    NamedSchedules,
    Need,
    Owned,
    Payloads,
    StoredEdge,
    VerbStep,
)

from .bucket import Bucket, Conflict
from .reader import Reader, Requests
from .writer import Writer

P = ParamSpec("P")
R = TypeVar("R")


def requests(
    bucket: Bucket, step: Callable[Concatenate[Draft, P], VerbStep[R]], *args: P.args, **kwargs: P.kwargs
) -> Requests[R]:
    """Run a step until it commits; after a conflict it starts again."""
    while True:
        reader, draft = Reader(bucket), Draft()
        try:
            answer = yield from _run(reader, draft, step(draft, *args, **kwargs))
            values = yield from Writer(reader, draft).values()
            yield
            bucket.commit(reader.revisions, values)
        except Conflict:
            continue
        except Exception:
            if reader.is_stale():  # values of different times may contradict each other
                continue
            raise
        return answer


def _run(reader: Reader, draft: Draft, step: VerbStep[R]) -> Requests[R]:
    while True:
        try:
            need = next(step)
        except StopIteration as end:
            answer: R = end.value
            return answer
        yield from _answer(reader, draft, need)


def _answer(reader: Reader, draft: Draft, need: Need) -> Requests[None]:
    match need:
        case Look():
            yield from _look(reader, draft, need)
        case Keys(keys, _):
            yield from _look_up(reader, draft, keys)
        case Owned(workflows):
            yield from _look_up(reader, draft, (yield from reader.owned(workflows)))
        case KeptUntil(workflows):
            for id in workflows:
                draft.kept[id] = yield from reader.kept_until(id)
        case Members(workflow, most):
            jobs = (yield from reader.members(workflow))[::-1][:most]
            draft.learn((), jobs)
            draft.members[workflow] = [job.id for job in jobs]
        case Payloads(ids):
            draft.payloads |= {id: draft.existing(id).payload for id in ids}
        case NamedSchedules(names):
            for name in names:
                draft.schedules.learn(name, (yield from reader.get(f"schedule/{name}")))


def _look(reader: Reader, draft: Draft, need: Look) -> Requests[None]:
    near = yield from reader.jobs((*need.ids, *need.above, *need.below))
    edges: list[StoredEdge] = [edge for id in need.above if id in near for edge in near[id].above.values()]
    parents = yield from reader.jobs(edge.parent for edge in edges)
    places = [place for id in need.below if id in near for place in near[id].below]
    children = yield from reader.jobs(child for child, _ in places)
    edges += [children[child].above[position] for child, position in places if child in children]
    asked = (*need.ids, *need.above, *need.below, *(end for edge in edges for end in (edge.child, edge.parent)))
    draft.learn(asked, (each.job for each in (*near.values(), *parents.values(), *children.values())))
    draft.learn_edges(edges)


def _look_up(reader: Reader, draft: Draft, keys: Sequence[str]) -> Requests[None]:
    for key in keys:
        known = yield from reader.key(key)
        draft.keys.learn(key, known)
        if known is not None:
            draft.unfinished[known.owner] = yield from reader.unfinished(known.owner)
