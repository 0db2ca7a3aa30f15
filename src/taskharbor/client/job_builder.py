"""Calls of tasks, and the builder of their jobs: gives each an id and resolves its options (R2, R5)."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from taskharbor.client.client import Client
from taskharbor.client.options import Duration, JobOptions, KeyOptions, moment, seconds
from taskharbor.client.registered_task import JOIN, Registered
from taskharbor.client.session import Session
from taskharbor.client.settings import Settings
from taskharbor.core import ids
from taskharbor.core.codec import checked_size
from taskharbor.core.decide import later
from taskharbor.core.ids import Ids, milliseconds
from taskharbor.core.job import JobRecord, NewJob
from taskharbor.core.reserved import TASKS

if TYPE_CHECKING:  # most programs have no cron to read
    from taskharbor.core.recurrence import Definition


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """One call of a task, bound and encoded, with the options of its job. A `Step` is one in a flow."""

    client: Client
    task: Registered
    payload: bytes
    options: JobOptions

    @property
    def returns(self) -> Any:
        """The type of the result, as far as annotations tell."""
        return self.task.signature.returns

    def joining(self) -> Call:
        """A no-op call that only waits for others, in the same queue."""
        queue: JobOptions = {"queue": self.options["queue"]} if "queue" in self.options else {}
        return Call(self.client, JOIN, JOIN.signature.encode((), {}), queue)


class HasJob(Protocol):
    """A run of a job."""

    job: JobRecord


current_run: ContextVar[HasJob | None] = ContextVar("taskharbor_run", default=None)  # set by workers


class JobBuilder:
    """Builds jobs at one time: the session's, unless another is given."""

    def __init__(self, session: Session, now: datetime | None = None) -> None:
        self.now = now or session.now()
        self._session = session
        self._settings = session.settings
        self._lineage = _lineage()

    @cached_property
    def new_id(self) -> Ids:
        """Makes ids."""
        return Ids(milliseconds(self.now), self._session.rng.getrandbits)

    def jobs(self, calls: Iterable[Call], workflow_id: str | None = None) -> list[NewJob]:
        """The jobs of these calls; most share the options of the call before, which are resolved once."""
        jobs: list[NewJob] = []
        before: Call | None = None
        pattern: NewJob | None = None
        for call in calls:
            if pattern is None or before is None or call.task is not before.task or call.options is not before.options:
                pattern = self._pattern(call, workflow_id)
            jobs.append(replace(pattern, id=pattern.id or self.new_id(), payload=call.payload))
            before = call
        return jobs

    def job(self, call: Call) -> NewJob:
        """The only job of a call, or `PayloadTooLarge`: as `jobs` and `checked`, for one."""
        pattern = self._pattern(call, None)
        if len(call.payload) > (limit := self._session.payload_limit):
            checked_size(call.payload, limit, f"the arguments of {pattern.type}")
        id = pattern.id or ids.uuid7(milliseconds(self.now), self._session.rng.getrandbits(74))
        return replace(pattern, id=id, payload=call.payload)

    def tick(self, name: str, definition: Definition, slot: datetime, run_at: datetime | None) -> NewJob:
        """The job of a tick of a recurring task; its headers name both."""
        of_job = {field: getattr(definition, field) for field in definition.OF_JOBS}
        headers = {"schedule": name, "slot": slot.isoformat()}
        return NewJob(id=self.new_id(), type=definition.task, run_at=run_at, headers=headers, **of_job)

    def managed(self, payload: bytes, key: str | None, max_attempts: int | None) -> NewJob:
        """The job of a TaskManager's task (M1)."""
        return NewJob(
            id=self.new_id(),
            type=TASKS,
            queue=TASKS,
            payload=payload,
            max_attempts=max_attempts,
            max_crashes=None,
            idempotency_key=key,
            kept=True,
            headers=self._lineage,
        )

    def checked(self, jobs: list[NewJob]) -> tuple[NewJob, ...]:
        """The jobs, or `PayloadTooLarge` for the first whose payload is above the limit (R4)."""
        limit = self._session.payload_limit  # also the engine's own, which is known once it is open
        for job in jobs:
            if len(job.payload) > limit:
                checked_size(job.payload, limit, f"the arguments of {job.type}")
        return tuple(jobs)

    def _time(self, given: Duration | datetime) -> datetime:
        return moment(given) if isinstance(given, datetime) else later(self.now, seconds(given))

    def _pattern(self, call: Call, workflow_id: str | None) -> NewJob:
        """The job of a call but for its payload and, unless it was given, its id.

        The options of a task contain no times: without options of their own, its jobs share the whole pattern.
        """
        task, settings = call.task, self._settings
        if call.options is not task.options or workflow_id is not None or self._lineage:
            return self._resolved(call, workflow_id)
        usual = task.usual
        if usual is None or usual[0] is not settings:
            usual = task.usual = settings, self._resolved(call, None)
        return usual[1]

    def _resolved(self, call: Call, workflow_id: str | None) -> NewJob:
        options, settings = call.options, self._settings
        expires, run_at = options.get("expires"), options.get("run_at") or options.get("delay")
        timeout = options.get("timeout", settings.timeout)
        key = options.get("idempotency_key")
        given = {**self._lineage, **(options.get("headers") or {})}
        return NewJob(
            id=options.get("id", ""),
            type=call.task.name,
            queue=options.get("queue", "default"),
            payload=b"",
            priority=options.get("priority", 0),
            run_at=None if run_at is None else self._time(run_at),
            expires_at=None if expires is None else self._time(expires),
            timeout=None if timeout is None else seconds(timeout),
            max_attempts=options.get("max_attempts", settings.max_attempts),
            max_crashes=options.get("max_crashes", settings.max_crashes),
            idempotency_key=key,
            key_expires_at=None if key is None else key_expiry(options, settings, self.now),
            headers=given,
            tags=tuple(options.get("tags", ())),
            workflow_id=workflow_id,
        )


def _lineage() -> dict[str, str]:
    """Headers that name the job whose handler enqueues; empty outside handlers."""
    if (run := current_run.get()) is None:
        return {}
    job = run.job
    inherited = {name: value for name, value in job.headers.items() if name in ("correlation_id", "traceparent")}
    return {**inherited, "parent_id": job.id, "root_id": job.headers.get("root_id", job.id)}


def key_expiry(options: KeyOptions, settings: Settings, now: datetime) -> datetime | None:
    """When a key that is stored now expires; None if it expires with the record."""
    ttl = options.get("idempotency_ttl", settings.idempotency_ttl)
    return None if ttl is None else later(now, seconds(ttl))
