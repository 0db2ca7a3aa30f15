"""A step: one call of a task, bound and encoded. What enqueues and flows are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from taskharbor.client.options import JobOptions, checked, moment, seconds
from taskharbor.client.registered_task import JOIN, Registered
from taskharbor.client.session import Settings
from taskharbor.core.codec import encode_named
from taskharbor.core.decide import later
from taskharbor.core.ids import Ids
from taskharbor.core.job import NewJob
from taskharbor.core.names import check_name
from taskharbor.core.workflow import Edge, Outs
from taskharbor.errors import WrongArguments
from taskharbor.workflows.flow import Edges, FlowOptions, Single, Steps

if TYPE_CHECKING:
    from taskharbor.client.client import Client

R = TypeVar("R", covariant=True)


class Step(Single[R]):
    """One call of a task, ready to be stored; its result will be an R."""

    __slots__ = ("client", "options", "payload", "task")

    def __init__(self, client: Client, task: Registered, payload: bytes, options: JobOptions) -> None:
        self.client = client
        self.task = task
        self.payload = payload
        self.options = options

    def __repr__(self) -> str:
        return f"<Step {self.task.name}>"

    def lay(self, layout: Steps, wait: Edges) -> tuple[Outs, Edges]:
        return Edge(layout.add(self, wait)), []

    @property
    def beginnings(self) -> int:
        return 1

    @property
    def returns(self) -> Any:
        return self.task.signature.returns

    def joining(self) -> Step[None]:
        """A step that does nothing but wait for others, in the same queue."""
        queue: JobOptions = {"queue": self.options["queue"]} if "queue" in self.options else {}
        return Step(self.client, JOIN, JOIN.signature.encode((), {}), queue)


def named_step(
    client: Client, tasks: Mapping[str, Registered], task: str, arguments: Mapping[str, Any], options: Mapping[str, Any]
) -> Step[Any]:
    """A call of a task by its name; where its code is not known, the arguments are taken as they are."""
    session = client.session
    if not isinstance(arguments, Mapping):
        kind = type(arguments).__name__
        raise WrongArguments(f"the arguments of {task} must be a dict by the names of its parameters, not {kind}")
    found = tasks.get(task)
    if found is None:
        elsewhere = Registered(check_name("a task's name", task), _elsewhere, session.settings.retry, {})
        return Step(client, elsewhere, encode_named(arguments, session.payload_limit), checked(options))
    try:
        payload = found.signature.encode((), arguments, session.payload_limit)
    except WrongArguments as error:
        if single := next((name for name in arguments if _is_misplaced(name, found)), None):
            raise WrongArguments(
                f"{error}; {single!r} is an option of the job: give it beside the arguments, as {single}=…"
            ) from None
        raise
    return Step(client, found, payload, checked({**found.options, **options}))


def _is_misplaced(name: str, task: Registered) -> bool:
    """Whether an argument is an option of the job instead."""
    return name in JobOptions.__annotations__ and name not in task.signature.parameters


def _elsewhere() -> Any:
    """Stands for a handler whose code is not here."""


class Preparation:
    """Turns steps into jobs to store, all at one moment: an id, and every option resolved (R2, R5)."""

    def __init__(
        self, settings: Settings, now: datetime, chance: Random, lineage: Mapping[str, str] | None = None
    ) -> None:
        self._settings = settings
        self._now = now
        self._id = Ids(int(now.timestamp() * 1000), chance.getrandbits)
        self._lineage = lineage

    def new_id(self) -> str:
        """An id that nobody has."""
        return self._id()

    def jobs(self, steps: Iterable[Step[Any]], workflow_id: str | None = None) -> list[NewJob]:
        """The jobs to store for steps; one after the other they mostly share a set of options, resolved once."""
        jobs: list[NewJob] = []
        before: Step[Any] | None = None
        pattern: NewJob | None = None
        for step in steps:
            if pattern is None or before is None or step.task is not before.task or step.options is not before.options:
                pattern = self._pattern(step, workflow_id)
            jobs.append(replace(pattern, id=pattern.id or self._id(), payload=step.payload))
            before = step
        return jobs

    def _pattern(self, step: Step[Any], workflow_id: str | None) -> NewJob:
        options, settings, now = step.options, self._settings, self._now
        expires = options.get("expires")
        timeout = options.get("timeout", settings.timeout)
        key = options.get("idempotency_key")
        headers = options.get("headers")
        return NewJob(
            id=options.get("id", ""),
            type=step.task.name,
            queue=options.get("queue", "default"),
            payload=b"",
            priority=options.get("priority", 0),
            run_at=_run_at(options, now),
            expires_at=None if expires is None else _expiry(expires, now),
            timeout=None if timeout is None else seconds(timeout),
            max_attempts=options.get("max_attempts", settings.max_attempts),
            max_crashes=options.get("max_crashes", settings.max_crashes),
            idempotency_key=key,
            key_expires_at=None if key is None else key_expiry(options, settings, now),
            headers={**(self._lineage or {}), **(headers or {})} if self._lineage or headers else {},
            tags=tuple(options.get("tags", ())),
            workflow_id=workflow_id,
        )


def _run_at(options: JobOptions, now: datetime) -> datetime | None:
    if "delay" in options:
        return later(now, seconds(options["delay"]))
    return moment(options["run_at"]) if "run_at" in options else None


def _expiry(expires: float | timedelta | datetime, now: datetime) -> datetime:
    return moment(expires) if isinstance(expires, datetime) else later(now, seconds(expires))


def key_expiry(options: JobOptions | FlowOptions, settings: Settings, now: datetime) -> datetime | None:
    """When a key that is stored now ends; None if with the record."""
    ttl = options.get("idempotency_ttl", settings.idempotency_ttl)
    return None if ttl is None else later(now, seconds(ttl))
