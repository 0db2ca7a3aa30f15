"""A store that is away, slow, or loses requests and replies: the worker recovers by itself, and every job ends once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest

from taskharbor import Harbor, current
from taskharbor.core.backoff import SETTLE_BACKOFF, STORE_BACKOFF
from taskharbor.core.transition import Ack
from taskharbor.driver import Driver, Inspect, WaitForWork
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import ConfigError, DriverClosed, DriverUnavailable, SchemaMismatch, StoreCorrupt
from taskharbor.testing import Flaky, LostReply, LostRequest, Outage, Slow, Wrapper, sometimes
from taskharbor.testing.clock import EPOCH
from taskharbor.testing.faults import verbs
from taskharbor.worker.launcher import on_wait
from world import World, time, until, virtual

RESUME_WITHIN = 5.0
EVERY_VERB = [
    "enqueue",
    "reserve",
    "extend_lease",
    "settle",
    *verbs(WaitForWork),
    "sweep",
    "prune",
    "beat",
    "forget_tallies",
]


@virtual
async def test_a_worker_rides_out_an_outage_and_resumes_by_itself() -> None:
    """X2: no worker exits because the store is away, for a minute or for an hour."""
    world = World(Outage)

    @world.harbor.task
    async def work(number: int) -> int:
        return number

    async with world.worker() as worker:
        for length in (1, 60, 600):
            await (await work.aenqueue(length)).aresult()
            world.store.down = True
            await asyncio.sleep(length)
            with pytest.raises(DriverUnavailable):
                await work.aenqueue(0)
            world.store.down = False
            back = time()
            assert await (await work.aenqueue(length)).aresult() == length
            assert time() - back <= RESUME_WITHIN
        assert worker.finished == 6


@pytest.mark.parametrize("verb", ["wait_for_work", "next_due"])
@virtual
async def test_an_idle_worker_is_not_late_after_a_failed_look_for_work(verb: str) -> None:
    """X2: the poll of a long idle worker is longer than it may take to resume, and it gets no hint meanwhile."""
    looks, failing = list[float](), list[str]()

    def fails(asked: str) -> bool:
        if asked == verb:
            looks.append(time())
        if found := asked in failing:
            failing.remove(asked)
        return found

    world = World(lambda inner: LostRequest(inner, fails))

    @world.harbor.task
    async def work() -> None: ...

    async with world.worker():
        for _ in range(10):  # the poll has jitter
            await asyncio.sleep(60)
            failing.append(verb)
            seen = len(looks)
            await until(lambda seen=seen: len(looks) > seen, 0.01)  # type: ignore[misc]
            assert not failing
            back = time()
            await (await work.aenqueue()).aresult()
            assert time() - back <= RESUME_WITHIN


class Deaf(Wrapper):
    """Gets no answer to the verb named, once."""

    verb: str | None = None

    async def _perform(self, verb: str, arguments: dict[str, Any], call: Any) -> Any:
        if verb == self.verb:
            self.verb = None
            await asyncio.sleep(3600)
        return await call()


@virtual
async def test_an_idle_worker_does_not_wait_for_ever_for_a_look_for_work() -> None:
    """X2: a half-dead connection gives no answer; the worker gives up after `store_timeout`, as with other calls."""
    world = World(Deaf, store_timeout=5)

    @world.harbor.task
    async def work() -> None: ...

    async with world.worker():
        await asyncio.sleep(60)
        world.store.verb = "next_due"
        await until(lambda: world.store.verb is None)
        asked = time()
        await (await work.aenqueue()).aresult()
        assert time() - asked <= 5 + RESUME_WITHIN


@virtual
async def test_an_enqueue_does_not_wait_for_ever_for_a_store_that_hangs() -> None:
    """X2: `DriverUnavailable` within a bounded time, saying that the job may have been stored."""
    world = World(lambda inner: Slow(inner, 100), store_timeout=5)

    @world.harbor.task
    async def work() -> None: ...

    with pytest.raises(DriverUnavailable, match="may still take effect"):
        await work.aenqueue()
    assert time() == 5


@virtual
async def test_handlers_go_on_through_a_short_outage_and_their_outcomes_are_kept() -> None:
    """X2, X3: an outage shorter than the lease costs nothing: one run, one settle."""
    world = World(Outage)

    @world.harbor.task
    async def work() -> str:
        await asyncio.sleep(15)
        return "done"

    jobs = await world.harbor.aenqueue_many(work.step() for _ in range(5))
    async with world.worker() as worker:
        await asyncio.sleep(5)
        world.store.down = True
        await asyncio.sleep(20)
        assert worker.busy == 0
        world.store.down = False
        await until(lambda: worker.finished == 5)
    for job in jobs:
        record = await world.record(job)
        assert (record.state, record.version, record.attempts, record.crashes) == ("done", 1, 0, 0)


@pytest.mark.parametrize("verb", EVERY_VERB)
@pytest.mark.parametrize("wrap", [LostRequest, LostReply])
@virtual
async def test_with_any_verb_losing_half_its_calls_every_job_finishes_once(
    verb: str, wrap: type[LostRequest] | type[LostReply]
) -> None:
    """X3, D8: counts are exact, nothing is lost, nothing is settled twice."""
    world = World(seed=7, max_crashes=None)  # a claim whose reply was lost lapses, which is counted as a crash
    wrapped = wrap(world.log, sometimes(Random(3), 0.5, only=[verb]))
    faulty = World.over(world, wrapped)
    accepted: Counter[str] = Counter()

    @faulty.harbor.task
    async def work(number: int) -> int:
        await asyncio.sleep(number % 7)
        return number

    @world.harbor.task
    async def outside() -> None: ...

    jobs = await world.harbor.aenqueue_many(world.harbor.step(work.name, {"number": number}) for number in range(40))
    async with faulty.worker(concurrency=8, lease=15) as worker:
        await until(lambda: all(world.memory._store.jobs[job.id].completed_at for job in jobs), 0.1, 600)
        await asyncio.sleep(5)
        assert worker.busy == 0
        assert worker._keeper._held == {}
        assert worker.finished == 40
    for operation in world.log.log:
        if operation.verb == "settle" and operation.phase == "returned":
            pairs = zip(operation.arguments["transitions"], operation.value, strict=True)
            accepted.update(to.id for to, verdict in pairs if verdict == "ok" and isinstance(to, Ack))
    assert accepted == Counter({job.id: 1 for job in jobs})
    for number, job in enumerate(jobs):
        record = await world.record(job)
        assert (record.state, record.attempts, record.result) == ("done", 0, str(number).encode())


@pytest.mark.parametrize("seed", range(8))
@virtual
async def test_a_flaky_store_loses_no_job_and_finishes_each_once(seed: int) -> None:
    """X2, X3, G1, G3: two workers, every verb failing now and then."""
    world = World(seed=seed)
    faulty = World.over(world, Flaky(world.log, Random(seed), 0.2))

    @faulty.harbor.task
    async def work(number: int) -> int:
        await asyncio.sleep(number % 11)
        return number

    jobs = await world.harbor.aenqueue_many(world.harbor.step(work.name, {"number": n}) for n in range(50))
    async with faulty.worker(concurrency=6, lease=10), faulty.worker(concurrency=3, lease=10):
        await until(lambda: all(world.memory._store.jobs[job.id].completed_at for job in jobs), 0.5, 1200)
    records = [await world.record(job) for job in jobs]
    assert {record.state.value for record in records} <= {"done", "dlq"}
    assert all(record.dlq_reason in (None, "crash_loop") for record in records)
    assert [int(record.result) for record in records if record.result] == [
        number for number, record in enumerate(records) if record.state == "done"
    ]


class Picky(Wrapper):
    """Cannot take the outcomes of some jobs."""

    def __init__(self, inner: Driver, error: Exception, bad: Callable[[Any], bool]) -> None:
        super().__init__(inner)
        self.error = error
        self.bad = bad

    async def _perform(self, verb: str, arguments: dict[str, Any], call: Callable[[], Any]) -> Any:
        if verb == "settle" and any(self.bad(transition) for transition in arguments["transitions"]):
            raise self.error
        return await call()


class Forgetful(Wrapper):
    """Answers with too few words, once per verb."""

    def __init__(self, inner: Driver, *verbs: str) -> None:
        super().__init__(inner)
        self.left = list(verbs)

    async def _perform(self, verb: str, arguments: dict[str, Any], call: Callable[[], Any]) -> Any:
        result = await call()
        if verb in self.left:
            self.left.remove(verb)
            return result[:-1]
        return result


@virtual
async def test_a_driver_that_forgets_an_answer_ends_neither_keeper_nor_settler() -> None:
    """X2: strangers write drivers too; what they get wrong costs a repeat."""
    world = World(lambda inner: Forgetful(inner, "settle", "extend_lease"))

    @world.harbor.task
    async def work(seconds: int) -> int:
        await asyncio.sleep(seconds)
        return seconds

    jobs = await world.harbor.aenqueue_many(work.step(seconds) for seconds in (1, 40, 60))
    async with world.worker() as worker:
        assert [await job.aresult() for job in jobs] == [1, 40, 60]
        assert worker._keeper._held == {}
    assert [(await world.record(job)).version for job in jobs] == [1, 1, 1]


@pytest.mark.parametrize("error", [ValueError("odd"), StoreCorrupt("a damaged record")])
@virtual
async def test_one_outcome_that_the_store_cannot_take_does_not_hold_up_the_others(error: Exception) -> None:
    """F7: its own job is left to run again, its neighbours are settled."""
    world = World(lambda inner: Picky(inner, error, lambda to: isinstance(to, Ack) and to.result == b"13"))

    @world.harbor.task
    async def work(number: int) -> int:
        return number

    jobs = await world.harbor.aenqueue_many(work.step(number) for number in range(20))
    async with world.worker(concurrency=20) as worker:
        await asyncio.sleep(20)
        assert worker.finished == 19
        assert worker._keeper._held == {}
    states = [await world.state(job) for job in jobs]
    assert Counter(states) == {"done": 19, "inflight": 1}


@virtual
async def test_a_settle_that_fails_for_many_leases_is_still_tried() -> None:
    """X2: the settler's patience has no end, as long as the lease is renewed."""
    broken = True

    def strikes(verb: str) -> bool:
        return verb == "settle" and broken

    world = World(lambda inner: LostRequest(inner, strikes))

    @world.harbor.task
    async def work() -> str:
        return "done"

    job = await work.aenqueue()
    async with world.worker() as worker:
        worker._settler._rng = Random(1)
        await asyncio.sleep(400)
        assert await world.state(job) == "inflight"
        broken = False
        assert await job.aresult() == "done"
    assert (await world.record(job)).version == 1


def test_the_settlers_pause_stays_finite() -> None:
    """X2: two to the thousandth power is not a float."""
    pause = SETTLE_BACKOFF.ceiling
    assert pause(1) <= pause(5) <= pause(10_000) == SETTLE_BACKOFF.cap


@virtual
async def test_a_worker_whose_driver_was_closed_ends_with_an_error() -> None:
    """D10: closing is not an outage; there is nothing to wait for."""
    world = World()
    async with world.worker() as worker:
        await asyncio.sleep(1)
        await world.memory.close()
        with pytest.raises(DriverClosed):
            await worker.wait()


class Forbidding(Wrapper):
    """Refuses every reserve."""

    forbids = True

    async def _perform(self, verb: str, arguments: dict[str, Any], call: Callable[[], Any]) -> Any:
        if verb == "reserve" and self.forbids:
            raise ConfigError("jobs_producer may not do this")
        return await call()


@virtual
async def test_a_worker_without_rights_ends_with_an_error() -> None:
    """X5: it was never let in. One that was may have lost its place by mistake, and gets it back."""
    world = World(Forbidding)

    @world.harbor.task
    async def work() -> None: ...

    async with world.worker() as worker:
        with pytest.raises(ConfigError, match="may not do this"):
            await worker.wait()
    world.store.forbids = False
    async with world.worker():
        await (await work.aenqueue()).aresult()
        world.store.forbids = True
        await asyncio.sleep(60)
        world.store.forbids = False
        await (await work.aenqueue()).aresult()


@virtual
async def test_stopping_during_an_outage_is_not_an_error() -> None:
    """X2, X6: a worker can be stopped while the store is away; what it could not write runs again."""
    world = World(Outage)

    @world.harbor.task
    async def work() -> int:
        await asyncio.sleep(2)
        return current().lease_version

    job = await work.aenqueue()
    async with world.worker(grace=5):
        await asyncio.sleep(1)
        world.store.down = True
    assert time() < 60
    assert await world.state(job) == "inflight"
    world.store.down = False
    async with world.worker():
        assert await job.aresult() == 2


@virtual
async def test_an_outage_is_logged_and_not_with_every_breath(caplog: pytest.LogCaptureFixture) -> None:
    """X2: retries back off, with jitter."""
    world = World(Outage)
    async with world.worker():
        await asyncio.sleep(1)
        world.store.down = True
        caplog.clear()
        with caplog.at_level(logging.WARNING, "taskharbor"):
            await asyncio.sleep(600)
        world.store.down = False
        await asyncio.sleep(20)
        world.store.down = True
        await asyncio.sleep(20)
        world.store.down = False
    lines = [record.getMessage() for record in caplog.records]
    about_reserve = [line for line in lines if "cannot reserve" in line]
    longest = STORE_BACKOFF.cap
    assert 600 / (1.25 * longest) < len(about_reserve) < 640 / (0.75 * longest) + 20
    assert len([line for line in lines if line.startswith("upkeep.failed: sweep, trying again")]) == 2


def test_the_longest_pause_lets_a_worker_resume_in_time() -> None:
    """X2: whatever the number of failures and the jitter, a second is left of the five to connect and to reserve."""
    rng = Random(1)
    pauses = [STORE_BACKOFF.delay(failures, rng) for failures in range(2000)]
    assert max(pauses) <= RESUME_WITHIN - 1
    assert min(pauses[10:]) >= 0.75 * STORE_BACKOFF.cap


class Opening(Wrapper):
    """An engine with a clock, which is asked when the store is opened; `trouble` is what it says then."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self.trouble: Exception | None = None

    async def server_now(self) -> datetime:
        if self.trouble is not None:
            raise self.trouble
        return EPOCH + timedelta(seconds=time())


@pytest.mark.parametrize("away", [DriverUnavailable("away"), ConnectionRefusedError("away"), TimeoutError()])
@virtual
async def test_a_worker_waits_for_a_store_that_is_away_at_its_start(
    away: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """X2: no worker ends because of that, and it begins soon after the store is there; a supervisor gets a report."""
    waits: list[float] = []
    on_wait.set(lambda: waits.append(time()))
    store = Opening(MemoryDriver(Random(1)))
    harbor = Harbor(driver=store, rng=Random(1))
    store.trouble = away

    @harbor.task
    async def work() -> int:
        return 7

    async def live() -> int:
        async with harbor.worker(threads=False):
            return await (await work.aenqueue()).aresult()

    working = asyncio.ensure_future(live())
    await asyncio.sleep(600)
    assert not working.done()
    store.trouble = None
    back = time()
    assert await working == 7
    assert time() - back <= RESUME_WITHIN
    about = [record for record in caplog.records if "cannot open the store" in record.getMessage()]
    assert 600 / (1.25 * STORE_BACKOFF.cap) < len(about) < 600 / (0.75 * STORE_BACKOFF.cap) + 10
    assert len(waits) == len(about)


@pytest.mark.parametrize("error", [ConfigError("wrong password"), SchemaMismatch("run `taskharbor migrate`")])
@virtual
async def test_what_waiting_does_not_mend_ends_a_worker_at_once(error: Exception) -> None:
    """X5: a mistake in the set-up raises and is not waited for; and `drain` waits for nothing."""
    store = Opening(MemoryDriver(Random(1)))
    harbor = Harbor(driver=store)
    store.trouble = error
    with pytest.raises(type(error), match=str(error)):
        async with harbor.worker(threads=False):
            pass
    store.trouble = DriverUnavailable("away")
    with pytest.raises(DriverUnavailable, match="away"):
        await harbor.adrain(threads=False)
    assert time() == 0


def down(verb: str) -> bool:
    return verb == "settle" and time() < 20


@virtual
async def test_tallies_of_an_outage_are_added_up_afterwards() -> None:
    """D9, X3: each run once, by a settle that was lost, or whose reply was."""
    world = World(lambda inner: LostReply(LostRequest(inner, down), down))

    @world.harbor.task
    async def work() -> None: ...

    await world.harbor.aenqueue_many(work.step() for _ in range(5))
    async with world.worker():
        await asyncio.sleep(90)
        assert [tally.count for tally in (await world.harbor.admin.astats()).tallies] == [5]


@virtual
async def test_a_driver_that_can_inspect_nothing_still_works() -> None:
    """D13: the five verbs are enough to work."""
    inner = World()

    class FiveVerbs:
        name, ephemeral = "bare", True
        max_payload: int | None = None
        enqueue, reserve = inner.memory.enqueue, inner.memory.reserve
        extend_lease, settle, close = inner.memory.extend_lease, inner.memory.settle, inner.memory.close

    assert not isinstance(FiveVerbs(), Inspect)
    world = World.over(inner, FiveVerbs())

    @world.harbor.task
    async def work(number: int) -> None: ...

    jobs = await world.harbor.aenqueue_many(work.step(number) for number in range(3))
    async with world.worker():
        await until(lambda: all(inner.memory._store.jobs[job.id].completed_at for job in jobs))
    await work.aenqueue(4)
    assert await world.drain() == 1
