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
from taskharbor.testing import history
from taskharbor.testing.faults import VerbCall, Wrapper
from taskharbor.testing.history import MICROSECOND, micros, monotonic
from taskharbor.worker.context import JobContext

PAGE = 1000


class Recorder(Wrapper):
    """Records every verb that changes something, as its process `who` sees it."""

    def __init__(self, inner: Driver, who: str, sink: history.Sink, at: Callable[[], int] = monotonic) -> None:
        super().__init__(inner)
        self._who = who
        self._sink = sink
        self._at = at
        self._calls = 0

    def _handles(self, verb: str) -> bool:
        return verb in _ASKED

    async def _perform(self, verb: str, arguments: dict[str, Any], call: VerbCall) -> Any:
        self._calls += 1
        number = self._calls
        now = micros(arguments.get("now"))
        self._sink.append(history.Called(self._who, number, self._at(), verb, now, tuple(_ASKED[verb](arguments))))
        try:
            result = await call()
        except BaseException as error:
            self._sink.append(history.Raised(self._who, number, self._at(), type(error).__name__, _is_unknown(error)))
            raise
        self._sink.append(history.Returned(self._who, number, self._at(), tuple(_answers(result))))
        return result

    async def handler(self, job: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """A middleware for the harbor that records when handlers begin and end."""
        self._sink.append(history.Began(self._who, self._at(), job.id, job.lease_version))
        try:
            return await call_next()
        finally:
            self._sink.append(history.Ended(self._who, self._at(), job.id, job.lease_version))


def _is_unknown(error: BaseException) -> bool:
    """Whether the call may have taken effect anyway: only refusals are certain."""
    return not isinstance(error, HarborError) or isinstance(error, DriverUnavailable | DriverClosed)


async def take_stock(
    driver: Driver, now: datetime, sink: history.Sink, at: Callable[[], int] = monotonic
) -> list[JobRecord]:
    """Record the store's contents, page by page, and return them."""
    inspect, records, after = capability(driver, Inspect), list[JobRecord](), None
    while True:
        page = await inspect.query(Filter(), now, PAGE, after)
        sink.append(history.Final(at(), micros(now), tuple(map(_last, page))))
        records += page
        if len(page) < PAGE:
            return records
        after = page[-1].id


def _last(job: JobRecord) -> history.Last:
    return history.Last(
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


def _jobs(groups: Iterable[Group]) -> Iterable[history.JobEntry]:
    for number, group in enumerate(groups):
        for job in group.jobs:
            yield history.JobEntry(
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


def _reserve(given: dict[str, Any]) -> Iterable[history.Asked]:
    ids: Sequence[str] | None = given.get("ids")
    wanted = None if ids is None else tuple(ids)
    return [history.Want(tuple(given["queues"]), given["lease_for"] // MICROSECOND, given["limit"], wanted)]


def _settlement(to: Transition) -> history.SettleEntry:
    return history.SettleEntry(
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


def _swap(given: dict[str, Any]) -> Iterable[history.Asked]:
    for swap in cast("Sequence[driver.Swap]", given["swaps"]):
        jobs = _jobs([Group(jobs=(swap.job,))] if swap.job else [])
        yield history.SwapEntry(swap.name, micros(_slot(swap)), next(iter(jobs), None))


def _slot(swap: driver.Swap) -> datetime | None:
    """The slot of a job from its headers; else the slot that the schedule leaves with this job."""
    seen, then = swap.seen, swap.then
    if swap.job is not None and "schedule" in swap.job.headers:
        return datetime.fromisoformat(swap.job.headers["slot"])
    if swap.job is None or then is None:
        return None
    stays = seen is not None and (seen.slot, seen.last_slot) == (then.slot, then.last_slot)
    return None if stays else then.last_slot


# The recorded verbs, and the items that each is asked about.
_ASKED: dict[str, Callable[[dict[str, Any]], Iterable[history.Asked]]] = {
    "enqueue": lambda given: _jobs(given["groups"]),
    "reserve": _reserve,
    "extend_lease": lambda given: [history.Renew(report.id, report.token) for report in given["reports"]],
    "settle": lambda given: map(_settlement, given["transitions"]),
    "cancel": lambda given: map(history.Named, given["ids"]),
    "dead_letter": lambda given: [history.Named(death.id) for death in given["deaths"]],
    "delete": lambda given: map(history.Named, given["ids"]),
    "free_workflow_key": lambda given: [history.Named(given["workflow_id"])],
    "replay": lambda given: [history.Named(replay.id, micros(replay.run_at)) for replay in given["replays"]],
    "reschedule": lambda given: [
        history.Named(each.id, micros(each.run_at), each.priority) for each in given["changes"]
    ],
    "sweep": lambda given: (),
    "prune": lambda given: (),
    "swap_schedules": _swap,
}
RECORDED = frozenset(_ASKED)


def _answers(result: Any) -> Iterable[history.Answer]:
    for item in _listed(result):
        if isinstance(item, tuple):
            yield from (history.Made(each.id, each.created) for each in cast(tuple[Enqueued, ...], item))
        elif isinstance(item, JobRecord):
            yield _claim(item)
        elif isinstance(item, Extended):
            yield history.KeptEntry(micros(item.expires_at), item.cancel_requested)
        else:
            yield history.Word(type(item).__name__ if isinstance(item, Exception) else str(item))


def _listed(result: Any) -> list[Any]:
    return result if isinstance(result, list) else [result]  # pyright: ignore[reportUnknownVariableType]


def _claim(job: JobRecord) -> history.ClaimEntry:
    assert job.lease is not None
    return history.ClaimEntry(
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
