"""Runs steps of the core: reads with revisions, commits if nothing that was read has changed, else starts again.

What is large (cards, keys, results) is stored first, where nobody sees it. The commit is one batch of pages. Whoever
may be about to commit what contradicts it is barred before: by a removal where its page would be.
"""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Callable, Sequence
from random import Random
from typing import Concatenate, ParamSpec, TypeVar

from taskharbor.core.backoff import Backoff
from taskharbor.core.keys import KeyRecord
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
    VerbStep,
)
from taskharbor.drivers.nats.commit import StepCommit
from taskharbor.drivers.nats.pages import KeyNote, moment
from taskharbor.drivers.nats.reader import PageReader
from taskharbor.drivers.nats.store import Outdated, Streams
from taskharbor.drivers.nats.subjects import flow_of
from taskharbor.drivers.nats.watch import LineWatch
from taskharbor.errors import DriverUnavailable

P = ParamSpec("P")
R = TypeVar("R")

# Conflicts in a row after which a step gives up: each means that another has committed.
MOST_TRIES = 50
CONFLICT = Backoff(base=0.002, cap=0.1, spread=1.0)
# How long an enqueue that has its key but not its page is waited for, before it is barred.
ON_ITS_WAY = (0.005, 0.01, 0.02, 0.045)
RNG = Random()


class PageSteps:
    """Runs steps against a store."""

    def __init__(self, store: Streams, watch: LineWatch) -> None:
        self._store, self._watch = store, watch

    async def run(self, step: Callable[Concatenate[Draft, P], VerbStep[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a step until it commits."""
        answer, _ = await self.run_with(step, *args, **kwargs)
        return answer

    async def run_with(
        self, step: Callable[Concatenate[Draft, P], VerbStep[R]], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[R, StepCommit]:
        """Run a step until it commits; its answer, and what was committed."""
        for attempt in range(MOST_TRIES):
            reader, draft = PageReader(self._store), Draft()
            committer = StepCommit(self._store, self._watch, reader, draft)
            try:
                answer = await self._drive(reader, draft, step(draft, *args, **kwargs))
                await committer.commit()
            except Outdated:
                pass
            except DriverUnavailable:
                raise
            except Exception:
                if await committer.is_current():  # what was read was true: the step itself refuses
                    raise
            else:
                return answer, committer
            if attempt:
                await sleep(CONFLICT.delay(attempt, RNG))
        raise DriverUnavailable(
            f"others changed the same jobs {MOST_TRIES} times in a row: nothing was changed, try again"
        )

    async def _drive(self, reader: PageReader, draft: Draft, step: VerbStep[R]) -> R:
        while True:
            try:
                need = next(step)
            except StopIteration as end:
                answer: R = end.value
                return answer
            await self._answer(reader, draft, need)

    async def _answer(self, reader: PageReader, draft: Draft, need: Need) -> None:
        match need:
            case Look(ids, above, below):
                edges = await reader.look(ids, above, below)
                ends = (end for edge in edges for end in (edge.child, edge.parent))
                _learn(reader, draft, (*ids, *above, *below, *ends))
                draft.learn_edges(edges)
            case Keys(keys, unfinished):
                await self._look_up(reader, draft, keys, unfinished)
            case Owned(workflows):
                await self._look_up_owned(reader, draft, workflows)
            case KeptUntil(workflows):
                draft.kept |= {workflow: await reader.kept_until(workflow) for workflow in workflows}
            case Members(workflow, most):
                found = await reader.members(workflow, most)
                draft.learn((), [each.record for each in found])
                draft.members[workflow] = [each.record.id for each in found]
            case Payloads(ids):
                draft.payloads |= {id: draft.existing(id).payload for id in ids}
            case NamedSchedules(names):
                await reader.load_schedules(names)
                for name in names:
                    draft.schedules.learn(name, reader.schedules[name][1])

    async def _look_up(self, reader: PageReader, draft: Draft, keys: Sequence[str], unfinished: bool) -> None:
        await reader.load_notes(keys)
        for key in keys:
            known = confirmed(reader, key)
            if known is None and reader.notes[key][1] is not None:
                known = await self._wait_for(reader, key)
            draft.keys.learn(key, known)
            if known is None or not unfinished:
                continue
            note = reader.notes[key][1]
            if note is not None and note.is_flow:
                draft.unfinished[known.owner] = await reader.unfinished(known.owner)
            elif (seen := reader.job(known.owner)) is not None:
                draft.unfinished[known.owner] = int(seen.record.completed_at is None)

    async def _wait_for(self, reader: PageReader, key: str) -> KeyRecord | None:
        """The owner of a key whose page has not come yet; None if it does not come."""
        for pause in ON_ITS_WAY:
            note = reader.notes[key][1]
            if note is None or is_there(reader, note):
                return None
            await sleep(pause)
            again = PageReader(self._store)
            await again.load_notes([key])
            if confirmed(again, key) is not None:
                raise Outdated  # start again, now that it is there
        return None

    async def _look_up_owned(self, reader: PageReader, draft: Draft, workflows: Sequence[str]) -> None:
        for workflow in workflows:
            pages = await reader.pages_of(workflow)
            keys = [key for seen in pages if seen.page is not None for key, _, _ in seen.page.keys]
            await self._look_up(reader, draft, keys, unfinished=False)


def _learn(reader: PageReader, draft: Draft, ids: Sequence[str]) -> None:
    asked = list(dict.fromkeys(ids))
    draft.learn(asked, [seen.record for id in asked if (seen := reader.job(id)) is not None])


def is_there(reader: PageReader, note: KeyNote) -> bool:
    """Whether the page of a key has come, so that its owner could have been confirmed."""
    seen = reader.pages.get(note.page)
    if seen is None or seen.page is None:
        return False
    return note.is_flow or seen.position(note.owner) is not None


def confirmed(reader: PageReader, key: str) -> KeyRecord | None:
    """The owner of a key, if its page says that it has it."""
    note = reader.notes[key][1]
    if note is None or note.key != key:
        return None
    if note.is_flow:
        seen = reader.pages.get(note.page)
        page = None if seen is None or seen.flow != flow_of(note.workflow) else seen.page
        for name, digest, expires_at in () if page is None else page.keys:
            if name == key:
                return KeyRecord(key, note.owner, digest, None if expires_at is None else moment(expires_at))
        return None
    job = reader.job(note.owner)
    if job is None or job.record.idempotency_key != key:
        return None
    return KeyRecord(key, note.owner, note.digest, job.record.key_expires_at)
