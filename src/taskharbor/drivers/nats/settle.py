"""Settle: outcomes that concern one job by a swap of its page, the others by the step of the core (D7-D9, K2)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from taskharbor.core import evolve
from taskharbor.core.job import JobRecord
from taskharbor.core.lease import Verdict, settle_verdict
from taskharbor.core.steps import settle as steps
from taskharbor.core.transition import Ack, Cancel, PutBack, Transition
from taskharbor.drivers.nats.cargo import pack_cargo, room
from taskharbor.drivers.nats.commit import TooManyPages
from taskharbor.drivers.nats.drafts import PageSteps
from taskharbor.drivers.nats.pages import (
    HAS_CHILDREN,
    IS_DONE,
    IS_INFLIGHT,
    NO_CARGO,
    NO_RARE,
    JobCargo,
    PagedJob,
    RareFields,
    entry_of,
    micros,
    pack,
    read_cargo,
    record,
    stored,
)
from taskharbor.drivers.nats.store import Streams
from taskharbor.drivers.nats.swaps import Addressed, PageSwap, PageSwaps, by_page

# Jobs that one step settles.
PAGE = 200
# What packed cargo has beside a result, and more.
BESIDE = 64


class NatsSettling:
    """Writes outcomes."""

    def __init__(self, store: Streams, swaps: PageSwaps, runner: PageSteps) -> None:
        self._store, self._swaps, self._runner = store, swaps, runner

    async def settle(self, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
        """Write outcomes, each only if its token still holds the job."""
        verdicts: dict[int, Verdict] = {}
        if len({to.id for to in transitions}) == len(transitions):
            verdicts = await self._settle_plain(transitions, now)
        left = [index for index in range(len(transitions)) if index not in verdicts]
        for first in range(0, len(left), PAGE):
            part = left[first : first + PAGE]
            answers = await self._settle_by_step([transitions[index] for index in part], now)
            verdicts |= dict(zip(part, answers, strict=True))
        return [verdicts[index] for index in range(len(transitions))]

    async def _settle_by_step(self, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
        """Write outcomes with all that they concern; half as many at a time while that is too much for one batch."""
        try:
            return await self._runner.run(steps.settle, transitions, now)
        except TooManyPages:
            if len(transitions) == 1:
                raise
        half = len(transitions) // 2
        first = await self._settle_by_step(transitions[:half], now)
        return first + await self._settle_by_step(transitions[half:], now)

    async def _settle_plain(self, transitions: Sequence[Transition], now: datetime) -> dict[int, Verdict]:
        """Write the outcomes that concern one job only; those left out are for the step."""
        todo = by_page((index, to) for index, to in enumerate(transitions) if not to.new_jobs)
        await self._swaps.until_free(where.page for where in todo)

        async def judge(swapped: PageSwap, items: Sequence[tuple[Addressed, Transition]]) -> dict[int, Verdict]:
            return await self._judge(swapped, items, now)

        return await self._swaps.each(todo, judge, now)

    async def _judge(
        self, swapped: PageSwap, items: Sequence[tuple[Addressed, Transition]], now: datetime
    ) -> dict[int, Verdict]:
        """The verdicts on the outcomes of one page, of which those that are ok are written into it."""
        at, most = micros(now), room(len(swapped.entries)) - BESIDE
        answers: dict[int, Verdict] = {}
        for address, to in items:
            entry = swapped.entry(address.place, to.id)
            if entry is None:
                continue
            if type(to) is Ack and _is_simple(entry, address, to, at, most):
                swapped.put(address.place, _acked(entry, to, at))
                verdict: Verdict | None = "ok"
            else:
                verdict = await self._judge_one(swapped, entry, address, to, now)
            if verdict is None:
                continue
            answers[address.number] = verdict
            if verdict == "ok":
                swapped.settled.append(to)
        return answers

    async def _judge_one(
        self, swapped: PageSwap, entry: PagedJob, address: Addressed, to: Transition, now: datetime
    ) -> Verdict | None:
        """The verdict on one outcome, by the rules of the core; None if it concerns other records."""
        rare = entry.rare or NO_RARE
        job = record(entry, swapped.page, address.place)
        verdict = settle_verdict(job, to, now)
        if verdict != "ok":
            return verdict
        if rare.edges & HAS_CHILDREN or (rare.idempotency_key and _may_cancel(to, job)):
            return None
        if rare.cargo_at is not None:
            return None  # its cargo is stored by itself, and part of it may stay
        after = evolve.settled(job, to, now)
        packed = pack_cargo(_cargo(after, rare), len(swapped.entries))
        for write in packed.writes(self._store.subjects, to.id):
            await self._store.put(write)
        swapped.put(address.place, entry_of(after, entry.number, rare, packed.inline, packed.name))
        return verdict


def _is_simple(entry: PagedJob, address: Addressed, to: Ack, now: int, most: int) -> bool:
    """Whether this is the success of a job with nothing rare, under a lease that holds it."""
    return (
        entry.rare is None
        and entry.state == IS_INFLIGHT
        and entry.until > now
        and entry.lease == address.lease
        and entry.version == address.version
        and (to.result is None or len(to.result) < most)
        and to.last_error is None
        and not to.failures
    )


def _acked(entry: PagedJob, to: Ack, now: int) -> PagedJob:
    """An entry that is done: as `core.evolve.settled` says, for a job that has nothing rare."""
    rare = None
    if to.result is not None or to.failed_at is not None or to.unknown_put_backs:
        cargo = None if to.result is None else pack(JobCargo(to.result))
        rare = RareFields(unknown_put_backs=to.unknown_put_backs, failed_at=stored(to.failed_at), cargo=cargo)
    return PagedJob(
        entry.id,
        IS_DONE,
        entry.due,
        entry.priority,
        entry.version,
        "",
        0,
        entry.worker,
        entry.claimed,
        stored(to.started_at),
        f"{entry.lease}.{entry.version}",
        1,
        now,
        now,
        micros(to.keep_until),
        to.attempts,
        to.crashes,
        entry.run_at,
        entry.number,
        rare,
    )


def _may_cancel(to: Transition, job: JobRecord) -> bool:
    """Whether the outcome may cancel the job, and so free its key."""
    return isinstance(to, Cancel) or (isinstance(to, PutBack) and job.stop_requested_at is not None)


def _cargo(after: JobRecord, rare: RareFields) -> JobCargo:
    known = NO_CARGO if rare.cargo is None else read_cargo(rare.cargo)
    return JobCargo(after.result, after.failures, after.last_error, known.payload)
