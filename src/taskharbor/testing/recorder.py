"""Recording histories: a driver that records what its process does with the store, and the store's final contents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, cast

from taskharbor import driver
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord
from taskharbor.core.transition import PutBack, Transition
from taskharbor.driver import Driver, Enqueued, Extended, Group, Inspect, capability
from taskharbor.errors import DriverClosed, DriverUnavailable, HarborError
from taskharbor.testing.faults import Call, Wrapper
from taskharbor.testing.history import (
    MICROSECOND,
    Answer,
    Asked,
    Began,
    Called,
    ClaimEntry,
    Ended,
    Final,
    JobEntry,
    KeptEntry,
    Last,
    Made,
    Named,
    Raised,
    Renew,
    Returned,
    Said,
    SettleEntry,
    Sink,
    SwapEntry,
    Want,
    micros,
    monotonic,
)
from taskharbor.worker.context import JobContext

PAGE = 1000


class Recorder(Wrapper):
    """Records every verb that changes something, as its process `who` sees it."""

    def __init__(self, inner: Driver, who: str, sink: Sink, at: Callable[[], int] = monotonic) -> None:
        super().__init__(inner)
        self._who = who
        self._sink = sink
        self._at = at
        self._calls = 0

    async def _perform(self, verb: str, arguments: dict[str, Any], call: Call) -> Any:
        describe = _ASKED.get(verb)
        if describe is None:
            return await call()
        self._calls += 1
        number = self._calls
        now = micros(arguments.get("now"))
        self._sink.append(Called(self._who, number, self._at(), verb, now, tuple(describe(arguments))))
        try:
            result = await call()
        except BaseException as error:
            self._sink.append(Raised(self._who, number, self._at(), type(error).__name__, _is_unknown(error)))
            raise
        self._sink.append(Returned(self._who, number, self._at(), tuple(_answers(result))))
        return result

    async def handler(self, job: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """A middleware for the harbor that records when handlers begin and end."""
        self._sink.append(Began(self._who, self._at(), job.id, job.lease_version))
        try:
            return await call_next()
        finally:
            self._sink.append(Ended(self._who, self._at(), job.id, job.lease_version))


def _is_unknown(error: BaseException) -> bool:
    """Whether the call may have taken effect anyway: only refusals are certain."""
    return not isinstance(error, HarborError) or isinstance(error, DriverUnavailable | DriverClosed)


async def take_stock(driver: Driver, now: datetime, sink: Sink, at: Callable[[], int] = monotonic) -> list[JobRecord]:
    """Record the store's contents, page by page, and return them."""
    inspect, records, after = capability(driver, Inspect), list[JobRecord](), None
    while True:
        page = await inspect.query(Filter(), now, PAGE, after)
        sink.append(Final(at(), micros(now), tuple(map(_last, page))))
        records += page
        if len(page) < PAGE:
            return records
        after = page[-1].id


def _last(job: JobRecord) -> Last:
    return Last(
        job.id,
        job.state.value,
        job.version,
        job.attempts,
        job.crashes,
        len(job.failures),
        job.unmet,
        job.replays,
        micros(job.completed_at),
        job.settled_token,
        job.idempotency_key,
    )


def _jobs(groups: Iterable[Group]) -> Iterable[JobEntry]:
    for number, group in enumerate(groups):
        for job in group.jobs:
            yield JobEntry(
                job.id,
                number,
                job.queue,
                job.priority,
                micros(job.run_at),
                micros(job.expires_at),
                job.max_attempts,
                job.max_crashes,
                job.idempotency_key,
                micros(job.key_expires_at if group.key is None else group.key_expires_at),
                tuple(edge.parent for edge in job.depends_on),
                tuple(edge.policy for edge in job.depends_on),
                group.key,
                None if group.key is None else group.workflow_id,
            )


def _enqueue(given: dict[str, Any]) -> Iterable[Asked]:
    return _jobs(given["groups"])


def _reserve(given: dict[str, Any]) -> Iterable[Asked]:
    ids: Sequence[str] | None = given.get("ids")
    wanted = None if ids is None else tuple(ids)
    return [Want(tuple(given["queues"]), given["lease_for"] // MICROSECOND, given["limit"], wanted)]


def _extend(given: dict[str, Any]) -> Iterable[Asked]:
    return [Renew(report.id, report.token) for report in given["reports"]]


def _settle(given: dict[str, Any]) -> Iterable[Asked]:
    return [_settlement(to) for to in given["transitions"]]


def _settlement(to: Transition) -> SettleEntry:
    return SettleEntry(
        to.id,
        to.token,
        str(to.__struct_config__.tag),
        to.attempts,
        to.crashes,
        to.unknown_put_backs,
        len(to.failures),
        micros(to.run_at) if isinstance(to, PutBack) else None,
        tuple(_jobs([Group(jobs=to.new_jobs)])),
    )


def _ids(given: dict[str, Any]) -> Iterable[Asked]:
    return [Named(id) for id in given["ids"]]


def _flow(given: dict[str, Any]) -> Iterable[Asked]:
    return [Named(given["workflow_id"])]


def _replay(given: dict[str, Any]) -> Iterable[Asked]:
    return [Named(replay.id, micros(replay.run_at)) for replay in given["replays"]]


def _deaths(given: dict[str, Any]) -> Iterable[Asked]:
    return [Named(death.id) for death in given["deaths"]]


def _reschedule(given: dict[str, Any]) -> Iterable[Asked]:
    return [Named(change.id, micros(change.run_at), change.priority) for change in given["changes"]]


def _swap(given: dict[str, Any]) -> Iterable[Asked]:
    for swap in cast("Sequence[driver.Swap]", given["swaps"]):
        jobs = _jobs([Group(jobs=(swap.job,))] if swap.job else [])
        yield SwapEntry(swap.name, micros(_slot(swap)), next(iter(jobs), None))


def _slot(swap: driver.Swap) -> datetime | None:
    """The slot of a job from its headers; else the slot that the schedule leaves with this job."""
    seen, then = swap.seen, swap.then
    if swap.job is not None and "schedule" in swap.job.headers:
        return datetime.fromisoformat(swap.job.headers["slot"])
    if swap.job is None or then is None:
        return None
    stays = seen is not None and (seen.slot, seen.last_slot) == (then.slot, then.last_slot)
    return None if stays else then.last_slot


def _nothing(given: dict[str, Any]) -> Iterable[Asked]:
    return ()


_ASKED: dict[str, Callable[[dict[str, Any]], Iterable[Asked]]] = {
    "enqueue": _enqueue,
    "reserve": _reserve,
    "extend_lease": _extend,
    "settle": _settle,
    "cancel": _ids,
    "dead_letter": _deaths,
    "delete": _ids,
    "free_workflow_key": _flow,
    "replay": _replay,
    "reschedule": _reschedule,
    "sweep": _nothing,
    "prune": _nothing,
    "swap_schedules": _swap,
}
RECORDED = frozenset(_ASKED)


def _answers(result: Any) -> Iterable[Answer]:
    for item in _listed(result):
        if isinstance(item, tuple):
            yield from (Made(each.id, each.created) for each in cast(tuple[Enqueued, ...], item))
        elif isinstance(item, JobRecord):
            yield _claim(item)
        elif isinstance(item, Extended):
            yield KeptEntry(micros(item.expires_at), item.cancel_requested)
        else:
            yield Said(type(item).__name__ if isinstance(item, Exception) else str(item))


def _listed(result: Any) -> list[Any]:
    return result if isinstance(result, list) else [result]  # pyright: ignore[reportUnknownVariableType]


def _claim(job: JobRecord) -> ClaimEntry:
    assert job.lease is not None
    return ClaimEntry(
        job.id,
        job.lease.token,
        job.lease.version,
        micros(job.lease.expires_at),
        job.queue,
        job.priority,
        micros(job.due_at),
        job.attempts,
        job.crashes,
        micros(job.run_at),
    )
