"""Right uses: no checker may complain about any line of this file."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from zoneinfo import ZoneInfo

from taskharbor import (
    AsyncTask,
    FailedStep,
    Flow,
    Graph,
    Harbor,
    Job,
    JobContext,
    Recycle,
    Retry,
    Run,
    Step,
    Task,
    chain,
    chord,
    current,
    group,
)
from taskharbor import manager as agents
from taskharbor.admin.recurring import RecurringTask
from taskharbor.testing import TestBed

harbor = Harbor("memory://", max_attempts=5, max_crashes=None, keep_done=timedelta(hours=1))


@harbor.task
def add(a: int, b: int = 0, *, note: str = "") -> int:
    return a + b


@harbor.task
async def fetch(url: str, *, timeout: float = 5) -> bytes:
    return b""


@harbor.task(queue="mail", priority=5, max_attempts=1, max_crashes=1, timeout=30, retry=Retry(base=1), tags=["a"])
def mail(user: int) -> None: ...


@harbor.task(name="slow", timeout=timedelta(minutes=5), retry=lambda attempts: 2.0 * attempts)
async def slow() -> dict[str, int]:
    return {}


@harbor.task()
def bare() -> str:
    return ""


@harbor.task(process=True, memory="512 MiB", timeout=60)
def compute(rounds: int) -> bytes:
    return b""


assert_type(compute.enqueue(3), Job[bytes])
Harbor("memory://", recycle=Recycle(jobs=1000, age=timedelta(hours=1), memory=2**30))


@harbor.recurring(every=60, process=True, memory=2**29)
async def by_process() -> None: ...


@harbor.recurring(cron="0 3 * * *", tz="Europe/Berlin", retry=lambda attempts: 1.0)
def nightly() -> int:
    return 1


@harbor.recurring(
    every=timedelta(minutes=5),
    anchor=datetime(2026, 1, 1, tzinfo=UTC),
    mode="fixed_rate",
    catch_up="all",
    max_catch_up=10,
    overlap="allow",
    jitter=5,
    name="ticking",
    queue="q",
    priority=1,
    max_attempts=None,
    max_crashes=1,
    timeout=timedelta(minutes=1),
    retry=Retry(base=1),
    tags=["a"],
)
async def ticking() -> bytes:
    return b""


@harbor.recurring(name="weekly", cron="@weekly", tz=ZoneInfo("Europe/Berlin"), arguments={"days": 7}, timeout=None)
@harbor.recurring(every=0.5, mode="fixed_delay")
@harbor.task(queue="reports")
def stacked(days: int = 1, *, dry: bool = False) -> str:
    return ""


@harbor.recurring(every=60, catch_up="skip", overlap="skip", arguments={"url": "x"})
@harbor.task(retry=lambda attempts: 1.0)
async def stacked_async(url: str) -> float:
    return 0.0


# A task knows its kind, and a direct call keeps its type.
assert_type(add(1, b=2), int)
coroutine: Coroutine[Any, Any, bytes] = fetch("x")
assert_type(mail(1), None)
assert_type(bare(), str)
a_task: Task[[], str] = bare
another: AsyncTask[[], dict[str, int]] = slow

# A recurring task is a task, of the kind and with the arguments of its function.
assert_type(nightly, Task[[], int])
assert_type(nightly(), int)
assert_type(nightly.enqueue().result(), int)
assert_type(ticking, AsyncTask[[], bytes])
assert_type(ticking.using(delay=5).enqueue(), Job[bytes])
assert_type(stacked(7, dry=True), str)
assert_type(stacked.enqueue(days=3), Job[str])
assert_type(stacked_async.step("x"), Step[float])
another_coroutine: Coroutine[Any, Any, float] = stacked_async("x")

# Operators make, change and run them; a task or its name will do.
assert_type(
    harbor.admin.recurring.create("a", stacked, cron="0 3 * * *", tz="UTC", arguments={"days": 2}), RecurringTask
)
assert_type(harbor.admin.recurring.create("b", "shop.report", every=timedelta(hours=1), jitter=60), RecurringTask)
assert_type(harbor.admin.recurring.create("c", ticking, every=10, mode="fixed_delay"), RecurringTask)
assert_type(harbor.admin.recurring.change("a", cron="@daily", catch_up="last"), RecurringTask)
assert_type(harbor.admin.recurring.list(), list[RecurringTask])
assert_type(harbor.admin.recurring.next("a", count=3), list[datetime])
assert_type(harbor.admin.recurring.pause("a").next_run, datetime | None)
assert_type(harbor.admin.recurring.run("a"), Job[Any])

# The result's type comes from the function, for `def` and `async def` alike.
assert_type(add.enqueue(1, note="x"), Job[int])
assert_type(add.enqueue(1, note="x").result(timeout=5), int)
assert_type(fetch.enqueue("x", timeout=1), Job[bytes])
assert_type(mail.enqueue(1), Job[None])
assert_type(slow.enqueue().result(), dict[str, int])
assert_type(add.step(1), Step[int])
assert_type(fetch.step("x"), Step[bytes])

# Options keep the kind of the task.
assert_type(add.using(delay=5, queue="x").enqueue(1), Job[int])
assert_type(fetch.using(run_at=datetime.now(UTC), expires=60).step("x"), Step[bytes])
add.using(
    id="x",
    priority=-5,
    delay=timedelta(seconds=1),
    expires=datetime.now(UTC),
    idempotency_key="k",
    idempotency_ttl=None,
    max_attempts=None,
    max_crashes=None,
    timeout=None,
    tags=["a", "b"],
    headers={"a": "b"},
    tx=object(),
)

# Groups of one kind, and of several.
assert_type(harbor.enqueue_many([add.step(1), add.step(2)]), list[Job[int]])
assert_type(harbor.enqueue_many(fetch.step(str(number)) for number in range(3)), list[Job[bytes]])
mixed: list[Step[Any]] = [add.step(1), fetch.step("x")]
harbor.enqueue_many(mixed)


# Flows: each step takes the result before, and the last one's is the run's.
@harbor.task
async def parse(raw: bytes, *, strict: bool = False) -> int:
    return 1


@harbor.task
def merge(parts: list[bytes]) -> str:
    return ""


@harbor.task
async def lenient(parts: list[bytes | FailedStep]) -> str:
    return ""


@harbor.task
def publish(text: str, *, bucket: str) -> None: ...


@dataclass
class Report:
    size: int


@harbor.task
async def report(url: str) -> Report:
    return Report(0)


@harbor.task
async def some(reports: list[Report | FailedStep]) -> int:
    return sum(each.size for each in reports if isinstance(each, Report))


@harbor.task
def some_of_some(reports: list[list[Report | FailedStep]]) -> int:
    return len(reports)


@harbor.task
def maybe(found: Report | FailedStep) -> str | None:
    return found.error if isinstance(found, FailedStep) else None


pages = [fetch.step("a"), fetch.step("b")]
assert_type(chain(fetch.step("x"), parse, add), Flow[int])
assert_type(chain(fetch.step("x"), parse, add, on_failure="cancel").enqueue(), Run[int])
assert_type(chain(fetch.step("x"), parse, group(pages), merge).enqueue().result(), str)
assert_type(chord(group(fetch.step(url) for url in "ab"), merge).enqueue(), Run[str])
assert_type(chord(group(*pages), merge), Flow[str])
assert_type(group(pages).then(merge).then(publish, bucket="out").enqueue().result(timeout=5), None)
assert_type(fetch.step("x").then(parse, strict=True).then(add, 5, note="x").enqueue(), Run[int])
assert_type(group(pages).enqueue().result(), list[bytes])
assert_type(group(group(pages), group(pages)).enqueue().result(), list[list[bytes]])
assert_type(group(pages).on_failure("collect").then(lenient).enqueue(), Run[str])
assert_type(group(pages).on_failure("cancel").then(merge).enqueue(), Run[str])
reports = group(report.step("a"), report.step("b")).on_failure("collect")
assert_type(reports, Flow[list[Report | FailedStep]])
assert_type(reports.then(some).enqueue(), Run[int])
assert_type(chain(reports, some), Flow[int])
assert_type(chord(group(report.step("a")), some, on_failure="collect"), Flow[int])
assert_type(chord(group(pages), lenient, on_failure="collect").enqueue(), Run[str])
chain(report.step("a"), maybe, on_failure="collect")
assert_type(group(reports, reports).then(some_of_some).enqueue().result(), int)
assert_type(group(report.step("a").on_failure("collect"), report.step("b")).then(some).enqueue(), Run[int])
assert_type(report.step("a").on_failure("collect").then(maybe).enqueue().result(), str | None)
assert_type(group(pages).then(merge).using(idempotency_key="k", idempotency_ttl=60).enqueue(), Run[str])
assert_type(current().enqueue(group(pages).then(merge)), Run[str])

graph = Graph()
page = graph.add(fetch.step("x"))
size = graph.add(page.then(parse))
graph.add(page.then(parse, strict=True), after=[size], on_failure="collect")
graph.add(page.then(parse), after=[size], on_failure=None)
graph.add(group(page, page).then(merge))
assert_type(graph.enqueue().state(), str)
several: list[Flow[Any]] = [fetch.step("x"), chain(fetch.step("x"), parse)]
group(several)


async def in_a_coroutine() -> None:
    assert_type(await chain(fetch.step("x"), parse).aenqueue(), Run[int])
    assert_type(await (await chord(group(pages), merge).aenqueue()).aresult(), str)
    assert_type(await add.aenqueue(1, 2), Job[int])
    assert_type(await fetch.aenqueue("x"), Job[bytes])
    assert_type(await (await fetch.aenqueue("x")).aresult(), bytes)
    assert_type(await fetch("x"), bytes)
    assert_type(await harbor.aenqueue_many([add.step(1)]), list[Job[int]])
    job = await add.aenqueue(1)
    assert_type(await job.astate(), str)
    assert_type(await job.acancel(), bool)
    assert_type(job.created, bool)
    async with harbor.open(), harbor.worker(["mail"], concurrency=2), harbor.worker({"mail": 3, "default": 1}):
        assert_type(await harbor.adrain(raise_failures=True), int)
    await harbor.arun_worker(concurrency=4, lease=30)
    assert_type(await harbor.aenqueue("mail.send", {"to": "Ada"}, idempotency_key="k"), Job[Any])
    await harbor.amigrate(dry=True)
    await harbor.aclose()
    async with harbor.stand_in("memory://") as same:
        assert_type(same, Harbor)
    assert_type(await harbor.admin.recurring.acreate("d", add, every=60, arguments={"a": 1}), RecurringTask)
    assert_type(await harbor.admin.recurring.arun("d"), Job[Any])
    assert_type(await harbor.admin.recurring.adelete("d"), None)


def in_a_function() -> None:
    with harbor.open() as same, harbor.worker(["mail"]) as worker, harbor.stand_in("memory://", everywhere=False):
        assert_type(same, Harbor)
        assert_type(worker.id, str)
        assert_type(worker.busy + worker.finished, int)
        assert_type(harbor.drain(["mail"], raise_failures=True), int)
    harbor.run_worker({"mail": 3}, concurrency=4, lease=30)
    assert_type(harbor.enqueue("mail.send", {"to": "Ada"}, queue="mail", delay=5), Job[Any])
    assert_type(harbor.enqueue("mail.send"), Job[Any])
    harbor.migrate(dry=True)
    harbor.close()
    assert_type(harbor.job("x").record().arguments, dict[str, Any])
    with TestBed("memory://", [harbor]) as bed:
        assert_type(bed, TestBed)
        assert_type(bed.drain(raise_failures=False), int)
        assert_type(bed.enqueued(add)[0].arguments["a"], Any)
        bed.crash_after(fetch, times=2)
        bed.crash_after(add.enqueue(1))
        assert_type(bed.advance(timedelta(hours=1)), datetime)


@harbor.task
async def parent() -> int:
    job = current()
    job.progress(0.5, "half")
    assert_type(job, JobContext)
    assert_type(job.enqueue(add.step(1)), Job[int])
    assert_type(job.enqueue(fetch.using(delay=1).step("x")), Job[bytes])
    assert_type(job.lease_version, int)
    assert_type(job.slot, datetime | None)
    return job.attempt


@harbor.middleware
async def timing(job: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
    return await call_next()


@harbor.around
def connections(job: JobContext) -> Iterator[None]:
    assert_type(job.attempt, int)
    yield


@harbor.around
@contextmanager
def timed(job: JobContext) -> Generator[float]:
    yield 0.0


@harbor.around
def quiet(job: JobContext) -> AbstractContextManager[None]:
    return nullcontext()


@harbor.around
class Span:
    def __init__(self, job: JobContext) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *raised: object) -> None: ...


assert_type(Span, type[Span])


@harbor.lifespan
async def pool() -> AsyncGenerator[None]:
    yield


async def agent(tasks: agents.TaskManager) -> None:
    assert_type(tasks.submit(b"", idempotency_key="k", max_attempts=3), str)
    assert_type(await tasks.aclaim("id", "me"), agents.Task)
    assert_type(tasks.claim("id", "me", token="t").claim_token, str | None)
    assert_type(tasks.heartbeat("id", "me", 0.5, "half", token="t"), agents.Task)
    assert_type(tasks.complete("id", "me", b"done", token="t"), agents.Task)
    assert_type(tasks.fail("id", "me", ValueError("no")).status, agents.TaskStatus)
    assert_type(tasks.list("pending", limit=5), list[agents.Task])
    assert_type(await tasks.alist(agents.TaskStatus.FAILED), list[agents.Task])
    assert_type(tasks.delete("id"), None)
    async with agents.TaskManager(harbor, lease=timedelta(minutes=1)) as own:
        assert_type(await own.aretry("id"), agents.Task)
