"""Wrong uses: every line that ends in `# E` must be flagged by both checkers, and no other."""

# ruff: noqa: F841

from __future__ import annotations

from collections.abc import Iterator

from taskharbor import Graph, Harbor, Job, Recycle, Retry, Run, Step, Task, chain, chord, current, group
from taskharbor.manager import TaskManager
from taskharbor.testing import TestBed

harbor = Harbor("memory://")


@harbor.task
def add(a: int, b: int = 0, *, note: str = "") -> int:
    return a + b


@harbor.task(queue="net")
async def fetch(url: str) -> bytes:
    return b""


# arguments
add.enqueue()  # E
add.enqueue("one")  # E
add.enqueue(1, 2, 3)  # E
add.enqueue(1, nots="x")  # E
add.enqueue(1, note=5)  # E
add.step("one")  # E
add.step(1, nots="x")  # E
fetch.enqueue(5)  # E
fetch.step()  # E
add("one")  # E
wrong_coroutine = fetch(5)  # E
add.using(delay=5).enqueue("one")  # E
fetch.using(delay=5).step(ulr="x")  # E

# options are never mixed with arguments
add.enqueue(1, delay=5)  # E
fetch.enqueue("x", queue="y")  # E
add.using(dealy=5)  # E
add.using(delay="5")  # E
add.using(priority="high")  # E
add.using(tags=5)  # E
add.using(headers={"a": 1})  # E
add.using(max_crashes="1")  # E
add.enqueue(1, max_crashes=1)  # E
add.using(run_at=5)  # E
add.using(1)  # E

# results
wrong_result: Job[str] = add.enqueue(1)  # E
wrong_bytes: str = fetch.enqueue("x").result()  # E
wrong_step: Step[str] = add.step(1)  # E
wrong_kind: Task[[str], bytes] = fetch  # E
wrong_call: str = add(1)  # E
wrong_jobs: list[Job[str]] = harbor.enqueue_many([add.step(1)])  # E
harbor.enqueue_many([add])  # E
harbor.enqueue_many(add.step(1))  # E
harbor.enqueue_many([add.enqueue(1)])  # E


# flows
@harbor.task
async def parse(raw: bytes, *, strict: bool = False) -> int:
    return 1


@harbor.task
def merge(parts: list[bytes]) -> str:
    return ""


@harbor.task
def publish(text: str, *, bucket: str) -> None: ...


chain(fetch.step("x"), add)  # E
chain(add.step(1), add, parse)  # E
chain(fetch.step("x"), parse, merge)  # E
chain(merge.step([]), publish)  # E
chain(fetch, parse)  # E
chain()  # E
fetch.step("x").then(add)  # E
fetch.step("x").then(parse, strct=True)  # E
fetch.step("x").then(parse, strict="yes")  # E
merge.step([]).then(publish)  # E
merge.step([]).then(publish, bucket=5)  # E
chord(group(fetch.step("x")), parse)  # E
chord(fetch.step("x"), merge)  # E
chord(group(add.step(1)), merge)  # E
group(add.step(1)).then(merge)  # E
group(fetch)  # E
group(fetch.step("a")).on_failure("collect").then(merge)  # E
group(fetch.step("a").on_failure("collect"), fetch.step("b")).then(merge)  # E
fetch.step("a").on_failure("collect").then(parse)  # E
chord(group(fetch.step("a")), merge, on_failure="collect")  # E
group(fetch.step("a")).on_failure("colect")  # E
chain(fetch.step("x"), parse, on_failure="colect")  # E
chain(fetch.step("x"), parse).using(delay=5)  # E
wrong_run: Run[str] = chain(fetch.step("x"), parse).enqueue()  # E
wrong_list: list[str] = group(fetch.step("x")).enqueue().result()  # E
Graph().add(fetch)  # E
Graph().add(fetch.step("x"), after=[fetch.step("x")])  # E


async def in_a_coroutine() -> None:
    await add.aenqueue()  # E
    await add.aenqueue("one")  # E
    await fetch.aenqueue("x", dealy=5)  # E
    wrong: str = await (await add.aenqueue(1)).aresult()  # E
    wrong_await: str = await fetch("x")  # E
    current().enqueue(add)  # E
    current().enqueue(add.step("one"))  # E
    wrong_child: Job[str] = current().enqueue(add.step(1))  # E
    await harbor.arun_worker(concurency=4)  # E
    await harbor.adrain(queues=5)  # E
    await harbor.drain()  # E
    await harbor.run_worker()  # E
    await harbor.aenqueue("mail.send", {"to": "Ada"}, qeue="mail")  # E
    async with harbor.worker(queues=5):  # E
        pass
    async with harbor.worker() as worker:
        await worker.stop()  # E


def in_a_function() -> None:
    runs: int = harbor.adrain()  # E
    harbor.drain(raise_failure=True)  # E
    harbor.enqueue("mail.send", ["Ada"])  # E
    harbor.enqueue("mail.send", {"to": "Ada"}, qeue="mail")  # E
    wrong_job: Run[str] = harbor.enqueue("mail.send", {})  # E
    with harbor.stand_in(5):  # E
        pass
    with TestBed() as bed:
        bed.enqueued(5)  # E
        bed.advance("1h")  # E
        bed.crash_after(5)  # E


# the decorator and the harbor
harbor.task(qeue="x")  # E
harbor.task(queue=5)  # E
harbor.task(delay=5)  # E
harbor.task(retry=5)  # E
harbor.task(5)  # E
Harbor(5)  # E
Harbor("memory://", max_attempt=5)  # E
Retry(bsae=5)  # E
Retry(growth="wild")  # E

# recurring tasks
harbor.recurring(corn="0 3 * * *")  # E
harbor.recurring(cron=5)  # E
harbor.recurring("0 3 * * *")  # E
harbor.recurring(every="5m")  # E
harbor.recurring(every=5, mode="fixed_rat")  # E
harbor.recurring(every=5, mode=None)  # E
harbor.recurring(every=5, catch_up="latest")  # E
harbor.recurring(every=5, max_catch_up="all")  # E
harbor.recurring(every=5, overlap=True)  # E
harbor.recurring(every=5, overlap="queue")  # E
harbor.recurring(every=5, anchor="2026-01-01")  # E
harbor.recurring(every=5, jitter="1s")  # E
harbor.recurring(cron="@daily", tz=2)  # E
harbor.recurring(cron="@daily", arguments=["a"])  # E
harbor.recurring(cron="@daily", delay=5)  # E
harbor.recurring(cron="@daily", queue=5)  # E
harbor.recurring(cron="@daily", retry=5)  # E
harbor.recurring(cron="@daily", max_crashes="1")  # E
harbor.task(max_crashes="1")  # E
harbor.recurring(cron="@daily")(5)  # E


@harbor.recurring(every=60, arguments={"days": 1})
def report(days: int) -> str:
    return ""


@harbor.recurring(name="again", every=60, arguments={"url": "x"})
@harbor.task
async def visit(url: str) -> bytes:
    return b""


report("one")  # E
report.enqueue("one")  # E
report.enqueue(days=1, dyas=2)  # E
wrong_report: Job[int] = report.enqueue(1)  # E
wrong_kind_of_task: Task[[str], bytes] = visit  # E
visit.enqueue(5)  # E
wrong_number: int = report(1)  # E
harbor.admin.recurring.create("a", report, corn="@daily")  # E
harbor.admin.recurring.create("a", report, every=60, mode="fixed")  # E
harbor.admin.recurring.create("a", every=60)  # E
harbor.admin.recurring.create("a", 5, every=60)  # E
harbor.admin.recurring.create("a", report, every=60, queue="x")  # E
harbor.admin.recurring.create("a", report, every=60, arguments=5)  # E
harbor.admin.recurring.change("a", catch_up="none")  # E
harbor.admin.recurring.next("a", count="3")  # E
harbor.admin.recurring.pause(report)  # E


@harbor.recurring  # E
def without_brackets() -> None: ...


@harbor.middleware  # E
def not_async(job: object) -> int:
    return 0


@harbor.around  # E
async def not_plain(job: object) -> None: ...


@harbor.around  # E
def without_the_job() -> Iterator[None]:
    yield


harbor.task(process="yes")  # E
harbor.task(process=True, memory=0.5)  # E
harbor.recurring(every=60, memory=b"1")  # E
Harbor(recycle=1000)  # E
Recycle(1000)  # E
Recycle(jobs="many")  # E
add.using(process=True)  # E


# names of other libraries
harbor.send_task("name")  # E
add.delay()  # E

# agents
tasks = TaskManager("memory://")
TaskManager(5)  # E
tasks.submit()  # E
tasks.submit("text")  # E
tasks.submit(b"", max_attempts="3")  # E
tasks.claim("id")  # E
tasks.complete("id", "me", "text")  # E
tasks.fail("id", "me")  # E
tasks.claim("id", "me", "token")  # E
tasks.complete("id", "me", token=b"token")  # E
tasks.list(limit="5")  # E
