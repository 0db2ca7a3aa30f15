"""The handle on a workflow that enqueueing a flow returns."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from msgspec import Struct

from taskharbor.client.client import WARN_AFTER, Client
from taskharbor.client.handle import Collected, Job
from taskharbor.client.options import Duration, wait_limit
from taskharbor.client.other_names import RUN_NAMES, hinting
from taskharbor.client.portal import Portal, blocking
from taskharbor.core.job import JobRecord
from taskharbor.core.states import TERMINAL
from taskharbor.core.wiring import wiring_of
from taskharbor.core.workflow import Nested, Standing, flat, mapped
from taskharbor.driver import at_once
from taskharbor.errors import JobCancelled, JobFailed
from taskharbor.workflows import stored

R = TypeVar("R", covariant=True)
FEW, MANY = 16, 1000
FIRST_LOOK, LAST_LOOK = 0.2, 5.0


class Run(Struct, Generic[R], frozen=True, eq=False):
    """A workflow that was enqueued. `created` is False if its idempotency key already belonged to this one.

    `_outs` are the jobs that the result is made of; if None, they are read from the store, and `_returns` are their
    types as far as known. A flow without steps is done from the start and not stored: its run has no client.
    """

    _client: Client | None
    id: str
    _outs: Nested[Job[Any]] | None = None
    created: bool = True
    same_payload: bool = True
    _returns: Nested[Any] | None = None

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    if not TYPE_CHECKING:
        __getattr__ = hinting(RUN_NAMES, lambda _: "run")

    @property
    def portal(self) -> Portal:
        return cast(Portal, _Here()) if self._client is None else self._client.portal

    async def astate(self) -> str:
        """running, held (something failed, and the rest waits for its replay), done, failed or cancelled."""
        if self._client is None:
            return Standing.DONE.value
        return (await stored.standing_of(self._client, await stored.counts_of(self._client, self.id))).value

    async def acancel(self) -> int:
        """Cancel the jobs that have not ended, and return their number. Running ones stop with their next heartbeat.

        `JobNotFound` if there is no such workflow.
        """
        if self._client is None:
            return 0
        stopped = await stored.cancel(self._client, self.id)
        if not stopped:
            await stored.counts_of(self._client, self.id)
        return stopped

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Wait for the end and return the result; `TimeoutError` after `timeout`, seconds or a `timedelta`.

        Raises `JobFailed`, `JobCancelled` or `JobNotFound` when there will be none without a replay.
        """
        client, outs, limit = self._client, self._outs, wait_limit(timeout)
        if client is None:
            return cast(R, _shaped(outs, iter(())))
        deadline = None if limit is None else asyncio.get_running_loop().time() + limit
        if outs is None:
            outs = await self._stored_outs(client)
        try:
            values = await self._values(client, list(flat(outs)), deadline)
        except JobCancelled:
            if (why := await stored.cause_of(client, self.id)) is None:
                raise
            raise JobFailed(f"workflow {self.id} has failed: {why}. What waited for it was cancelled") from None
        return cast(R, _shaped(outs, iter(values)))

    async def _stored_outs(self, client: Client) -> Nested[Job[Any]]:
        await stored.counts_of(client, self.id)
        found = await stored.results_of(client, self.id)

        def handle(job: JobRecord, returns: Any = Any) -> Job[Any]:
            return (Collected if wiring_of(job.payload).collects else Job)(client, job.id, returns)

        if self._returns is None:
            return mapped(found, handle)
        jobs = flat(found)
        return mapped(self._returns, lambda returns: handle(next(jobs), returns))

    async def _values(self, client: Client, jobs: Sequence[Job[Any]], deadline: float | None) -> list[Any]:
        """The results of these jobs. Each look reads twice as many records as the last; after a wait, one."""
        values: list[Any] = []
        most = FEW
        while len(values) < len(jobs):
            asked = jobs[len(values) : len(values) + most]
            ended = await self._ended(client, asked)
            values += ended
            most = min(most * 2, MANY)
            if len(ended) < len(asked):
                first = asked[len(ended)]
                values.append(first.outcome(await self._wait(client, first, deadline)))
                most = 1
        return values

    async def _ended(self, client: Client, jobs: Sequence[Job[Any]]) -> list[Any]:
        """The results of the first jobs, up to one that has not ended."""
        values: list[Any] = []
        for job, record in zip(jobs, await client.records([job.id for job in jobs]), strict=True):
            if record is not None and record.state not in TERMINAL:
                break
            values.append(job.outcome(record))
        return values

    async def _wait(self, client: Client, job: Job[Any], deadline: float | None) -> JobRecord | None:
        """The job once it has ended; raises if the workflow is held."""
        loop, look = asyncio.get_running_loop(), FIRST_LOOK
        watch, warn_at = None if deadline is not None else client.watch(), loop.time() + WARN_AFTER
        while True:
            until = min(loop.time() + look, warn_at, math.inf if deadline is None else deadline)
            record = await client.wait_for_end(job.id, max(0.0, until - loop.time()))
            if record is None or record.state in TERMINAL:
                return record
            state = await self.astate()
            if state == Standing.HELD:
                why = await stored.cause_of(client, self.id) or "something was cancelled that others wait for"
                raise JobFailed(
                    f"workflow {self.id} is held: {why}. To go on: harbor.admin.workflows.replay({self.id!r})"
                )
            if deadline is not None and loop.time() >= deadline:
                why = await client.why_unclaimed(record)
                raise TimeoutError(f"workflow {self.id} is {state} and has no result yet{why}")
            if loop.time() >= warn_at:
                warn_at = math.inf
                await client.warn_if_unclaimed(record)
            if watch is not None:
                await watch.look(f"workflow {self.id}")
            look = min(look * 2, LAST_LOOK)

    state = blocking(astate)
    result = blocking(aresult)
    cancel = blocking(acancel)


def _shaped(nested: Nested[Any], values: Iterator[Any]) -> Any:
    if isinstance(nested, tuple):
        return [_shaped(part, values) for part in cast("tuple[Nested[Any], ...]", nested)]
    return next(values)


class _Here:
    def call(self, name: str, make: Callable[[], Coroutine[Any, Any, R]]) -> R:
        return at_once(make())
