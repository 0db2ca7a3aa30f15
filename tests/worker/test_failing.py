"""Failure: retries, dead letters, crashes, unknown tasks, and handlers that raise whatever they like."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from taskharbor import Retry, RetryAfter, Snooze, Unrecoverable, current
from taskharbor.core.decide import MAX_UNKNOWN_PUT_BACKS
from taskharbor.core.job import KEPT_FAILURES, JobRecord, NewJob
from taskharbor.core.text import ERROR_LIMIT
from taskharbor.driver import Group
from taskharbor.testing import Outage
from world import World, time, until, virtual


async def end_of(world: World, task: Any, *args: Any, **worker: Any) -> JobRecord:
    """Run one job to its end."""
    job = await task.aenqueue(*args)
    async with world.worker(**worker):
        await until(lambda: world.memory._store.jobs[job.id].completed_at, 0.05, 1000)
    return await world.record(job)


@virtual
async def test_a_job_is_retried_with_growing_delays_and_then_dead_lettered() -> None:
    """F1, F2, F3: four runs by default, the n-th retry within base x 2^(n-1) of the failure."""
    world = World()
    starts: list[float] = []

    @world.harbor.task
    async def bad() -> None:
        starts.append(time())
        raise ValueError("no")

    dead = await end_of(world, bad)
    assert len(starts) == 4
    for number, (before, after) in enumerate(itertools.pairwise(starts)):
        assert 0 <= after - before <= 0.5 * 2**number + 0.01
    assert (dead.state, dead.dlq_reason, dead.attempts) == ("dlq", "max_attempts", 4)
    assert dead.last_error == "ValueError: no"


@pytest.mark.parametrize(
    ("of_harbor", "of_task", "of_job", "expected"),
    [(2, ..., ..., 2), (2, 3, ..., 3), (2, 3, 1, 1), (2, None, 6, 6), (1, None, ..., 12)],
)
@virtual
async def test_max_attempts_is_the_jobs_own_then_the_tasks_then_the_harbors(
    of_harbor: int, of_task: Any, of_job: Any, expected: int
) -> None:
    """F3, R5: and None means unlimited."""
    world = World(max_attempts=of_harbor, retry=Retry.fixed(1))
    runs = 0

    async def bad() -> None:
        nonlocal runs
        runs += 1
        assert current().attempt == runs
        if runs == 12:
            raise Unrecoverable("enough")
        raise ValueError

    task: Any = world.harbor.task(**({} if of_task is ... else {"max_attempts": of_task}))(bad)
    await end_of(world, task if of_job is ... else task.using(max_attempts=of_job))
    assert runs == expected


@virtual
async def test_the_policies_of_a_task_choose_the_delay() -> None:
    """F2: fixed, linear, exponential without jitter, and a function of one's own."""
    world = World(max_attempts=4)
    starts: dict[str, list[float]] = {}

    def bad(name: str, retry: Any) -> Any:
        async def handler() -> None:
            starts.setdefault(name, []).append(time())
            raise ValueError

        return world.harbor.task(name=name, retry=retry)(handler)

    tasks = [
        bad("fixed", Retry.fixed(7)),
        bad("linear", Retry.linear(5, jitter=False)),
        bad("doubling", Retry(base=1, cap=3, jitter=False)),
        bad("own", lambda attempts: 10 * attempts),
    ]
    await world.harbor.aenqueue_many(task.step() for task in tasks)
    async with world.worker() as worker:
        await until(lambda: worker.finished == 16)
    gaps = {
        name: [round(after - before, 3) for before, after in itertools.pairwise(times)]
        for name, times in starts.items()
    }
    assert gaps == {"fixed": [7, 7, 7], "linear": [5, 10, 15], "doubling": [1, 2, 3], "own": [10, 20, 30]}


def raises(error: BaseException | type[BaseException]) -> Callable[[int], float]:
    def policy(attempts: int) -> float:
        raise error

    return policy


@pytest.mark.parametrize(
    "policy",
    [raises(KeyError("x")), raises(SystemExit), lambda _: -1, lambda _: float("nan"), lambda _: "soon", lambda _: None],
)
@virtual
async def test_a_broken_policy_dead_letters_its_job_and_keeps_the_worker(policy: Any) -> None:
    """F2, F11: the policy is the user's code as well."""
    world = World()

    @world.harbor.task(retry=policy)
    async def bad() -> None:
        raise ValueError("first")

    @world.harbor.task
    async def good() -> str:
        return "fine"

    async with world.worker():
        dead = await end_of(world, bad)
        assert await (await good.aenqueue()).aresult() == "fine"
    assert (dead.state, dead.dlq_reason) == ("dlq", "broken_retry_policy")
    assert next(failure.kind for failure in dead.failures) == "ValueError"
    assert "retry policy" in (dead.last_error or "")


@virtual
async def test_unrecoverable_goes_to_the_dlq_at_once() -> None:
    """F4."""
    world = World()

    @world.harbor.task
    async def hopeless() -> None:
        raise Unrecoverable("bad address")

    dead = await end_of(world, hopeless)
    assert (dead.attempts, dead.version, dead.dlq_reason) == (1, 1, "unrecoverable")
    assert "bad address" in (dead.last_error or "")


@virtual
async def test_snooze_counts_no_attempt_and_retry_after_does() -> None:
    """F4: both choose the time."""
    world = World()
    seen: list[tuple[float, int, int]] = []

    @world.harbor.task(max_attempts=2)
    async def patient() -> str:
        seen.append((time(), current().attempt, current().lease_version))
        if len(seen) <= 5:
            raise Snooze(timedelta(minutes=1))
        if len(seen) == 6:
            raise RetryAfter(10)
        return "done"

    job = await end_of(world, patient)
    assert job.state == "done"
    assert job.attempts == 1
    assert [round(at, 3) for at, _, _ in seen] == [0, 60, 120, 180, 240, 300, 310]
    assert [attempt for _, attempt, _ in seen] == [1] * 6 + [2]
    assert [version for _, _, version in seen] == [1, 2, 3, 4, 5, 6, 7]


@virtual
async def test_filters_say_which_errors_are_worth_a_retry() -> None:
    """F4: `retry_on` and `give_up_on`; the latter wins."""
    world = World(max_attempts=3)

    def failing(name: str, error: Exception, **filters: Any) -> Any:
        async def handler() -> None:
            raise error

        return world.harbor.task(name=name, retry=Retry(base=0, **filters))(handler)

    outcomes = {}
    cases: list[tuple[str, Exception, dict[str, Any]]] = [
        ("listed", OSError(), {"retry_on": (OSError,)}),
        ("subclass", ConnectionError(), {"retry_on": (OSError,)}),
        ("not listed", ValueError(), {"retry_on": (OSError,)}),
        ("given up", ValueError(), {"give_up_on": (ValueError,)}),
        ("both", ConnectionError(), {"retry_on": (OSError,), "give_up_on": (ConnectionError,)}),
        ("asked for", RetryAfter(0), {"retry_on": (OSError,)}),
    ]
    for name, error, filters in cases:
        dead = await end_of(world, failing(name, error, **filters))
        outcomes[name] = (dead.attempts, dead.dlq_reason)
    assert outcomes == {
        "listed": (3, "max_attempts"),
        "subclass": (3, "max_attempts"),
        "not listed": (1, "gave_up"),
        "given up": (1, "gave_up"),
        "both": (1, "gave_up"),
        "asked for": (3, "max_attempts"),
    }


@virtual
async def test_a_timeout_cancels_the_handler_and_is_retried() -> None:
    """F5: a failure like others, with its history."""
    world = World(retry=Retry.fixed(1))
    ends: list[float] = []

    @world.harbor.task(timeout=5, max_attempts=2)
    async def slow() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ends.append(time())

    dead = await end_of(world, slow)
    assert [round(end, 3) for end in ends] == [5, 11]
    assert (dead.dlq_reason, dead.attempts) == ("max_attempts", 2)
    assert dead.last_error == "TimeoutError: timed out after 5 s"


@virtual
async def test_a_policy_may_give_up_on_timeouts() -> None:
    """F4, F5: retryable by default, not against the task's own filters."""
    world = World()

    @world.harbor.task(timeout=5, retry=Retry(give_up_on=(TimeoutError,)))
    async def slow() -> None:
        await asyncio.sleep(100)

    dead = await end_of(world, slow)
    assert (dead.attempts, dead.dlq_reason) == (1, "gave_up")


@virtual
async def test_a_handler_that_swallows_its_cancellation_keeps_slot_and_lease_and_ends_as_a_timeout() -> None:
    """F5: no second run starts beside it, and what it returns in the end does not count."""
    world = World(retry=Retry.fixed(1))
    running = most = 0

    @world.harbor.task(timeout=1, max_attempts=2)
    async def stubborn() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        end = time() + 100
        while time() < end:
            try:
                await asyncio.sleep(end - time())
            except asyncio.CancelledError:
                assert current().cancelled
        running -= 1
        return "too late"

    job = await stubborn.aenqueue()
    async with world.worker(concurrency=1) as worker, world.worker(concurrency=1) as other:
        await asyncio.sleep(99)
        assert worker.busy + other.busy == 1
        assert await world.state(job) == "inflight"
        await until(lambda: worker.finished + other.finished == 2)
    dead = await world.record(job)
    assert most == 1
    assert (dead.state, dead.version, dead.result) == ("dlq", 2, None)
    assert [failure.kind for failure in dead.failures] == ["TimeoutError"] * 2


@virtual
async def test_a_timer_that_fires_after_the_end_does_nothing() -> None:
    """F5: a handler that ends at the very moment of its timeout has succeeded or timed out, once."""
    world = World()

    @world.harbor.task(timeout=5, max_attempts=1)
    async def close() -> str:
        await asyncio.sleep(5)
        return "made it"

    @world.harbor.task(timeout=5, max_attempts=1)
    async def quick() -> str:
        await asyncio.sleep(4.999)
        return "made it"

    first, second = await end_of(world, close), await end_of(world, quick)
    assert first.state in ("done", "dlq")
    assert first.version == 1
    assert second.state == "done"


@virtual
async def test_a_job_that_kills_its_workers_is_dead_lettered_as_a_crash_loop() -> None:
    """F6: crashes have their own bound, and the job is not run once more."""
    world = World(max_crashes=3)
    runs = 0

    @world.harbor.task
    async def deadly() -> None:
        nonlocal runs
        runs += 1

    job = await deadly.aenqueue()
    for crash in range(3):
        (claimed,) = await world.memory.reserve(["default"], world.clock(), timedelta(seconds=5), 1, f"victim-{crash}")
        assert claimed.crashes == crash
        await asyncio.sleep(6)
    async with world.worker() as worker:
        await until(lambda: worker.finished == 1)
    dead = await world.record(job)
    assert runs == 0
    assert (dead.state, dead.dlq_reason, dead.attempts, dead.crashes) == ("dlq", "crash_loop", 0, 3)
    assert dead.failures[-1].kind == "CrashLoop"


@pytest.mark.parametrize(
    ("of_harbor", "of_task", "of_job", "expected"),
    [(2, ..., ..., 2), (2, 3, ..., 3), (2, 3, 1, 1), (2, None, 6, 6), (1, None, ..., None), (None, 2, ..., 2)],
)
@virtual
async def test_max_crashes_is_the_jobs_own_then_the_tasks_then_the_harbors(
    of_harbor: int | None, of_task: Any, of_job: Any, expected: int | None
) -> None:
    """F6, R5: resolved when the job is stored; None means unlimited."""
    world = World(max_crashes=of_harbor)

    async def work() -> None: ...

    task: Any = world.harbor.task(**({} if of_task is ... else {"max_crashes": of_task}))(work)
    job = await (task if of_job is ... else task.using(max_crashes=of_job)).aenqueue()
    assert (await world.record(job)).max_crashes == expected


@virtual
async def test_at_most_once_is_one_attempt_and_one_crash() -> None:
    """F6: the worker is lost after the side effect and before the Ack; the job is not run a second time."""
    world = World(Outage)
    effects: list[int] = []

    @world.harbor.task(max_attempts=1, max_crashes=1)
    async def charge(order: int) -> None:
        effects.append(order)
        if order == 1:
            world.store.down = True  # from here on this worker reaches no store: it is as good as killed
        else:
            raise ValueError("refused")

    lost = await charge.aenqueue(1)
    async with world.worker(lease=5, grace=0):
        await until(lambda: effects)
        await asyncio.sleep(60)
    world.store.down = False
    failed = await charge.aenqueue(2)
    async with world.worker() as second:
        await until(lambda: second.finished == 2)
        await asyncio.sleep(300)
    assert effects == [1, 2]
    dead = await world.record(lost)
    assert (dead.state, dead.dlq_reason, dead.attempts, dead.crashes) == ("dlq", "crash_loop", 0, 1)
    assert (await world.record(failed)).dlq_reason == "max_attempts"


@virtual
async def test_at_most_once_is_not_run_again_after_a_stop() -> None:
    """F6, X6: a stop during its only run ends it; one that had not begun is given back and runs."""
    world = World()
    effects: list[int] = []

    @world.harbor.task(max_attempts=1, max_crashes=1)
    async def charge(order: int) -> None:
        effects.append(order)
        await asyncio.sleep(3600 if order == 1 else 0)

    cut = await charge.aenqueue(1)
    async with world.worker(concurrency=1, grace=1):
        await until(lambda: effects)
    waiting = await charge.aenqueue(2)
    async with world.worker() as second:
        await until(lambda: second.finished)
        await asyncio.sleep(300)
    assert effects == [1, 2]
    dead = await world.record(cut)
    assert (dead.state, dead.dlq_reason, dead.attempts) == ("dlq", "interrupted", 1)
    assert await world.state(waiting) == "done"


@virtual
async def test_crashes_count_in_a_row_and_are_forgotten_with_an_outcome() -> None:
    """F6: a recorded outcome, good or bad, ends the row; a release does not begin one."""
    world = World(max_crashes=2, retry=Retry.fixed(0))
    crashes: list[int] = []

    @world.harbor.task(max_attempts=3)
    async def shaky() -> None:
        crashes.append(current().record.crashes)
        raise ValueError

    job = await shaky.aenqueue()
    await world.memory.reserve(["default"], world.clock(), timedelta(seconds=5), 1, "victim")
    await asyncio.sleep(6)
    async with world.worker() as worker:
        await until(lambda: worker.finished == 3)
    assert crashes == [1, 0, 0]
    assert (await world.record(job)).dlq_reason == "max_attempts"


@virtual
async def test_a_poison_job_does_not_block_its_queue() -> None:
    """F7: the others run, with one slot as with many, and retries do not starve fresh work."""
    world = World(retry=Retry.fixed(0.01))
    done: list[int] = []

    @world.harbor.task(max_attempts=None)
    async def poison() -> None:
        raise ValueError

    @world.harbor.task
    async def fine(number: int) -> None:
        done.append(number)
        await asyncio.sleep(0.1)

    await world.harbor.aenqueue_many(poison.step() for _ in range(20))
    jobs = await world.harbor.aenqueue_many(fine.step(number) for number in range(20))
    async with world.worker(concurrency=1):
        await asyncio.gather(*(job.aresult() for job in jobs))
    assert done == list(range(20))
    assert time() < 60


@virtual
async def test_an_unknown_task_is_put_back_with_a_growing_delay_and_runs_once_a_worker_knows_it() -> None:
    """F8: a rolling deploy costs a delay and no attempt."""
    world = World()
    await world.harbor.aenqueue_many([world.harbor.step("shop.later", {"number": 4})])
    (job,) = world.memory._store.jobs
    async with world.worker():
        await asyncio.sleep(20)
    waits = [batch[0].run_at for batch in world.settled()]
    gaps = [(after - before).total_seconds() for before, after in itertools.pairwise(waits)]
    assert gaps == sorted(gaps)
    assert gaps[0] < gaps[-1]
    record = await world.record(job)
    assert (record.state, record.attempts) == ("ready", 0)
    assert record.unknown_put_backs >= 3

    @world.harbor.task(name="shop.later")
    async def later(number: int) -> int:
        return number

    async with world.worker():
        assert await world.harbor.job(job).aresult() == 4
    assert (await world.record(job)).attempts == 0


@virtual
async def test_a_task_that_stays_unknown_ends_in_the_dlq() -> None:
    """F8: after a bound of put-backs in a row."""
    world = World()
    await world.harbor.aenqueue_many([world.harbor.step("shop.never", {})])
    (job,) = world.memory._store.jobs
    for _ in range(MAX_UNKNOWN_PUT_BACKS):
        await world.drain()
        record = await world.record(job)
        assert record.state == "ready"
        await asyncio.sleep((record.due_at - world.clock()).total_seconds())
    await world.drain()
    dead = await world.record(job)
    assert (dead.state, dead.dlq_reason, dead.attempts) == ("dlq", "unknown_task", 0)
    assert "shop.never" in (dead.last_error or "")


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"\x00\xff", "not a job payload"),
        (b"", "not a job payload"),
        (b'{"v": 1}', "args"),
        (b'{"v": 99, "args": {"number": 1}}', "version 99"),
        (b'{"v": 1, "args": {"number": "four"}}', "number"),
        (b'{"v": 1, "args": {}}', "number"),
        (b'{"v": 1, "args": {"number": 1, "gone": 2}}', "gone"),
    ],
)
@virtual
async def test_a_payload_that_does_not_fit_goes_to_the_dlq_with_a_readable_reason(payload: bytes, says: str) -> None:
    """F9: undecodable bytes, another version, a changed signature: one run, no retry storm."""
    world = World()

    @world.harbor.task(name="t")
    async def takes(number: int) -> None:
        raise AssertionError("must not run")

    await world.memory.enqueue(
        [Group(jobs=(NewJob(id="j", type="t", queue="default", payload=payload),))], world.clock()
    )
    assert await world.drain() == 1
    dead = await world.record("j")
    assert (dead.state, dead.dlq_reason, dead.version) == ("dlq", "undecodable", 1)
    assert says in (dead.last_error or "")
    assert dead.payload == payload


class Spiteful(msgspec.Struct):
    """A type whose decoding ends the process, if one lets it."""

    number: int

    def __post_init__(self) -> None:
        if self.number == 13:
            raise SystemExit("bye")


@virtual
async def test_a_type_that_exits_while_it_is_decoded_fails_its_job_only() -> None:
    """F11, F9: decoding runs the user's code as well."""
    world = World()

    @world.harbor.task(max_attempts=1)
    async def takes(what: Spiteful) -> None: ...

    job = await takes.aenqueue(Spiteful(1))
    record = await world.record(job)
    world.memory._store.jobs[job.id] = msgspec.structs.replace(record, payload=record.payload.replace(b"1}", b"13}"))
    async with world.worker() as worker:
        await until(lambda: worker.finished == 1)
        assert worker._keeper._held == {}
    assert await world.state(job) == "dlq"


@virtual
async def test_every_failed_run_is_kept_with_its_error_and_traceback() -> None:
    """F10, R1: the last twenty."""
    world = World(retry=Retry.fixed(1), max_attempts=25)

    @world.harbor.task
    async def bad() -> None:
        raise ValueError(f"number {current().attempt}")

    dead = await end_of(world, bad)
    assert len(dead.failures) == KEPT_FAILURES
    assert [failure.attempt for failure in dead.failures] == list(range(6, 26))
    last = dead.failures[-1]
    assert (last.kind, last.message) == ("ValueError", "number 25")
    assert "test_failing.py" in last.traceback
    assert 'raise ValueError(f"number' in last.traceback
    assert last.worker is not None
    assert last.started_at is not None
    assert last.started_at <= last.failed_at == dead.failed_at


@virtual
async def test_a_success_after_failures_keeps_their_history() -> None:
    """F10."""
    world = World(retry=Retry.fixed(1))

    @world.harbor.task
    async def shaky() -> str:
        if current().attempt < 3:
            raise ValueError("not yet")
        return "now"

    job = await end_of(world, shaky)
    assert job.state == "done"
    assert job.attempts == 2
    assert [failure.message for failure in job.failures] == ["not yet"] * 2


@virtual
async def test_giant_errors_are_cut_and_say_so() -> None:
    """R4."""
    world = World(max_attempts=1)

    @world.harbor.task
    async def bad() -> None:
        raise ValueError("long \ud800 " * 10_000)

    dead = await end_of(world, bad)
    assert len((dead.last_error or "").encode()) <= ERROR_LIMIT
    assert "cut" in (dead.last_error or "")
    assert len(dead.failures[0].traceback.encode()) <= ERROR_LIMIT


class Rude(BaseException):
    """Not even an Exception."""


class Mute(Exception):
    """Cannot say what is wrong."""

    def __str__(self) -> str:
        raise SystemExit("not even that")


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        GeneratorExit(),
        Rude("!"),
        StopIteration(1),
        Mute(),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("kind", ["async", "def"])
@virtual
async def test_whatever_a_handler_raises_is_its_own_failure_and_never_ends_the_worker(
    error: BaseException, kind: str
) -> None:
    """F11."""
    world = World(max_attempts=2, retry=Retry.fixed(1))

    if kind == "async":

        @world.harbor.task
        async def rude() -> None:
            await asyncio.sleep(1)
            raise error

    else:

        @world.harbor.task
        def rude() -> None:
            raise error

    @world.harbor.task
    async def good() -> str:
        return "fine"

    async with world.worker(concurrency=1) as worker:
        dead = await end_of(world, rude)
        assert await (await good.aenqueue()).aresult() == "fine"
        assert worker.busy == 0
    assert (dead.state, dead.attempts) == ("dlq", 2)
    assert len(dead.failures) == 2


@virtual
async def test_a_handler_that_cancels_itself_has_failed() -> None:
    """F11: a cancellation that was not requested is a failure like others."""
    world = World(max_attempts=1)

    @world.harbor.task
    async def suicidal() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(10)

    dead = await end_of(world, suicidal)
    assert dead.state == "dlq"
    assert "CancelledError" in (dead.last_error or "")


@virtual
async def test_an_oversized_result_goes_to_the_dlq_without_a_second_run() -> None:
    """R4: nothing is cut, nothing is retried."""
    world = World(payload_limit=1000)

    @world.harbor.task
    async def big(size: int) -> str:
        return "x" * size

    dead, done = await end_of(world, big, 1000), await end_of(world, big, 998)
    assert (dead.state, dead.dlq_reason, dead.version) == ("dlq", "result_too_large", 1)
    assert "1,002 bytes" in (dead.last_error or "")
    assert done.state == "done"
    assert len(done.result or b"") == 1000


class Circular(list[Any]):
    """Contains itself."""


@pytest.mark.parametrize("what", ["object", "nan", "circular"])
@virtual
async def test_a_result_that_json_cannot_carry_goes_to_the_dlq(what: str) -> None:
    """R4, F11: with its path, without a second run."""
    world = World()
    loop = Circular()
    loop.append(loop)
    results = {"object": {"a": [1, object()]}, "nan": [float("nan")], "circular": loop}

    @world.harbor.task
    async def odd() -> Any:
        return results[what]

    dead = await end_of(world, odd)
    assert (dead.state, dead.dlq_reason, dead.version) == ("dlq", "result_not_encodable", 1)
    if what == "object":
        assert "NotEncodable: the result.a[1] cannot be stored as JSON: object has" in (dead.last_error or "")


class Exits:
    """Cannot even be looked at."""

    @property
    def __dataclass_fields__(self) -> Any:
        raise SystemExit


@virtual
async def test_a_result_that_exits_while_it_is_encoded_fails_its_job_only() -> None:
    """F11: encoding runs the user's code as well."""
    world = World(max_attempts=2)

    @world.harbor.task
    async def odd() -> Any:
        return [Exits()]

    async with world.worker() as worker:
        dead = await end_of(world, odd)
        assert worker._keeper._held == {}
    assert (dead.state, dead.attempts) == ("dlq", 2)


@virtual
async def test_a_def_that_returns_a_coroutine_is_awaited() -> None:
    """A decorator around an `async def` often is a plain function: its coroutine is the call."""
    world = World()

    async def inner(number: int) -> int:
        await asyncio.sleep(1)
        return number + current().attempt

    @world.harbor.task
    def outer(number: int) -> Any:
        return inner(number)

    job = await end_of(world, outer, 1)
    assert job.result == b"2"
