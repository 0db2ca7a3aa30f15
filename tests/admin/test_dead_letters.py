"""Dead letters through the harbor: looking, replaying, purging, and the hook `on_dead`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor import Harbor, Job, Retry, Unrecoverable, chord, current, group
from taskharbor.admin import bulk
from taskharbor.core.decide import MAX_UNKNOWN_PUT_BACKS
from taskharbor.core.job import JobRecord
from taskharbor.core.wiring import wiring_of
from taskharbor.errors import ConfigError, IllegalMove, InvalidJob, JobNotFound, PayloadTooLarge
from taskharbor.testing import LostReply, script
from taskharbor.worker import dead_hooks
from world import World, time, until, virtual

DIED_OF = "taskharbor.errors.Unrecoverable: "


class Ward(World):
    """A world with a task that dies of whatever it is given."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{"retry": Retry.fixed(0), **settings})
        self.dlq = self.harbor.admin.dlq

        @self.harbor.task(name="die")
        async def die(of: str) -> str:
            if of == "nothing":
                return "alive"
            raise Unrecoverable(of)

        self.die = die

    async def dead(self, *causes: str, **options: Any) -> list[Job[str]]:
        """Jobs that died of these causes, one after the other."""
        jobs: list[Job[str]] = []
        for cause in causes:
            jobs.append(await self.die.using(**options).aenqueue(cause))
            await self.drain()
            await asyncio.sleep(1)
        return jobs


def ids(jobs: list[Any]) -> list[str]:
    return [job.id for job in jobs]


# looking


@virtual
async def test_dead_jobs_are_found_by_the_words_of_all_jobs() -> None:
    """Q1: state, task, error, queue, tag, age and group; other states are refused instead of overlooked."""
    world = Ward()
    timeout, refused = await world.dead("Timeout after 5 s", "refused by mail.example", queue="mail", tags=["vip"])
    await world.dead("nothing")
    for words, found in {
        "": [refused, timeout],
        "state:dlq": [refused, timeout],
        "task:d* queue:mail tag:vip": [refused, timeout],
        "error:Timeout": [timeout],
        "since:1s": [],
        f"group:{(await world.record(refused)).fingerprint}": [refused],
    }.items():
        assert ids(await world.dlq.alist(words)) == ids(found), words
        assert sum(group.count for group in await world.dlq.agroups(words)) == len(found)
    for refusing in (world.dlq.alist, world.dlq.agroups, world.dlq.areplay_all, world.dlq.apurge):
        with pytest.raises(ConfigError, match="dead jobs only"):
            await refusing("state:done,dlq")


@virtual
async def test_one_dead_job_is_shown_with_its_reason_and_history() -> None:
    """Q1, F10: a job that is not dead or does not exist is not a dead letter."""
    world = Ward()
    dead, alive = await world.dead("boom", "nothing")
    found = await world.dlq.aget(dead.id)
    assert (found.dlq_reason, found.last_error) == ("unrecoverable", f"{DIED_OF}boom")
    assert [failure.message for failure in found.failures] == ["boom"]
    with pytest.raises(JobNotFound, match=f"{alive.id} is done, not dead"):
        await world.dlq.aget(alive.id)
    with pytest.raises(JobNotFound, match="there is no job nobody"):
        await world.dlq.aget("nobody")


@virtual
async def test_groups_are_causes_with_counts_and_times() -> None:
    """Q1: numbers that differ do not make another cause; the most frequent comes first."""
    world = Ward()
    start = world.clock()
    first, odd, *_, last = await world.dead("no user 1", "disk full", "no user 22", "no user 333")
    common, rare = await world.dlq.agroups()
    assert (common.task, common.count, common.last_id) == ("die", 3, last.id)
    assert (common.first_at, common.last_at) == (start, start + timedelta(seconds=3))
    assert common.error == f"{DIED_OF}no user 333"
    assert (rare.count, rare.last_id) == (1, odd.id)
    assert [group.count for group in await world.dlq.agroups(limit=1)] == [3]
    assert [group.last_id for group in await world.dlq.agroups("error:disk")] == [odd.id]
    assert first.id in ids(await world.dlq.alist(f"group:{common.fingerprint}"))


# replaying


@virtual
async def test_a_replay_may_edit_arguments_and_take_a_key() -> None:
    """Q2: counts at zero, version and lineage go on, the key lives as long as given."""
    world = Ward()
    plain, keyed, lasting = await world.dead("a", "b", "c")
    assert await world.dlq.areplay(plain.id, arguments={"of": "nothing"}) == "replayed"
    assert await world.dlq.areplay(keyed.id, idempotency_key="k", idempotency_ttl=60) == "replayed"
    assert await world.dlq.areplay(lasting.id, idempotency_key="for ever", idempotency_ttl=None) == "replayed"
    record = await world.record(plain)
    assert (record.state, record.attempts, record.crashes, record.version) == ("ready", 0, 0, 1)
    assert (record.original_id, record.replays, len(record.failures)) == (plain.id, 1, 1)
    assert (await world.record(keyed)).key_expires_at == world.clock() + timedelta(seconds=60)
    assert (await world.record(lasting)).key_expires_at is None
    await world.drain()
    assert await plain.aresult() == "alive"
    assert (await world.record(plain)).version == 2
    await world.dlq.areplay(keyed.id, idempotency_key="day")
    assert (await world.record(keyed)).key_expires_at == world.clock() + timedelta(hours=24)


@virtual
async def test_what_is_not_dead_cannot_be_replayed() -> None:
    """Q2, T1, X5: a clear error that names the state, and nothing is stored."""
    world = Ward()
    dead, done = await world.dead("boom", "nothing")
    waiting = await world.die.using(delay=60).aenqueue("x")
    for job, state in ((done, "done"), (waiting, "scheduled")):
        before = await world.record(job)
        for edit in ({}, {"arguments": {"of": "y"}}, {"idempotency_key": "k"}):
            with pytest.raises(IllegalMove, match=f"job {job.id} is {state}: only a dead or cancelled job"):
                await world.dlq.areplay(job.id, **edit)
        assert await world.record(job) == before
    assert await world.harbor.admin.jobs.afind("k") is None
    assert await world.dlq.areplay("nobody") == "missing"
    assert await world.dlq.areplay("nobody", arguments={}) == "missing"
    assert (await world.dlq.areplay_ids([done.id, "nobody", dead.id, dead.id])).replayed == [dead.id]


@virtual
async def test_a_bad_edit_is_refused_and_changes_nothing() -> None:
    """Q2, X5, R4."""
    world = Ward(payload_limit=200)
    [job] = await world.dead("boom")
    before = await world.record(job)
    edits: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"arguments": ["boom"]}, InvalidJob, "by the names of parameters"),
        ({"arguments": {"of": object()}}, InvalidJob, "of"),
        ({"arguments": {"of": "x" * 200}}, PayloadTooLarge, "limit is 200"),
        ({"idempotency_key": ""}, InvalidJob, "1 to 512"),
        ({"idempotency_key": "k", "idempotency_ttl": -1}, InvalidJob, "more than zero"),
        ({"idempotency_ttl": 5}, InvalidJob, "needs an idempotency_key"),
    ]
    for edit, kind, says in edits:
        with pytest.raises(kind, match=says):
            await world.dlq.areplay(job.id, **edit)
    assert await world.record(job) == before


@virtual
async def test_a_step_of_a_workflow_keeps_its_place_when_its_arguments_are_edited() -> None:
    """Q2, Q3, K3: what it takes from the step before, and where its own result goes."""
    world = Ward()

    @world.harbor.task
    async def double(number: int) -> int:
        return 2 * number

    @world.harbor.task
    async def divide(number: int, by: int) -> float:
        return number / by

    run = await double.step(21).then(divide, by=0).aenqueue()
    await world.drain()
    [dead] = await world.dlq.alist()
    assert await run.astate() == "failed"
    assert await world.dlq.areplay(dead.id, arguments={"by": 4}) == "replayed"
    assert wiring_of((await world.record(dead.id)).payload) == wiring_of(dead.payload)
    await world.drain()
    assert await run.aresult() == 10.5
    with pytest.raises(InvalidJob, match="step of a workflow"):
        await world.dlq.areplay(dead.id, idempotency_key="k")


@virtual
async def test_edited_arguments_must_fit_the_task_that_is_registered() -> None:
    """Q2, K3, X5: none missing, none unknown, and not those that the steps before give; nothing is changed."""
    world = Ward()

    @world.harbor.task(name="double")
    async def double(number: int) -> int:
        return 2 * number

    @world.harbor.task(name="divide")
    async def divide(number: int, by: int) -> float:
        return number / by

    await double.step(21).then(divide, by=0).aenqueue()
    [alone] = await world.dead("boom")
    await world.drain()
    [step] = await world.dlq.alist("task:divide")
    edits: list[tuple[str, dict[str, Any], str]] = [
        (step.id, {}, "task divide needs 'by'"),
        (step.id, {"by": "two"}, "task divide: .*by"),
        (step.id, {"by": 2, "colour": "red"}, "task divide has no parameter 'colour'"),
        (step.id, {"number": 1, "by": 2}, "task divide: number is the result of the steps before it: leave it out"),
        (step.id, {"number": 1}, "task divide: number is the result of the steps before it: leave it out"),
        (alone.id, {}, "task die: the arguments do not fit the signature: parameter 'of' is missing"),
        (alone.id, {"of": 1}, "task die: .*of"),
        (alone.id, {"of": "x", "colour": "red"}, "task die: .*colour"),
    ]
    before = await world.dlq.alist()
    for id, arguments, says in edits:
        with pytest.raises(InvalidJob, match=says):
            await world.dlq.areplay(id, arguments=arguments)
    assert await world.dlq.alist() == before
    assert await world.dlq.areplay(step.id, arguments={"by": 2}) == "replayed"


@virtual
async def test_arguments_are_edited_as_they_are_stored() -> None:
    """Q2: by the names of parameters, whatever their kind."""
    world = Ward()

    @world.harbor.task(max_attempts=1)
    async def add(first: int, /, *others: int, **named: int) -> int:
        if first == 0:
            raise ValueError("nothing")
        return first + sum(others) + sum(named.values())

    job = await add.aenqueue(0, 2, x=3)
    await world.drain()
    await world.dlq.areplay(job.id, arguments={"first": 1, "others": [2, 4], "named": {"x": 8}})
    await world.drain()
    assert await job.aresult() == 15


@virtual
async def test_a_task_that_is_not_registered_here_takes_what_it_is_given() -> None:
    """Q2: a program without the code cannot check."""
    world = Ward()
    [job] = await world.dead("boom")
    assert await World.over(world, world.memory).harbor.admin.dlq.areplay(job.id, arguments={}) == "replayed"
    await world.drain()
    assert (await world.record(job)).dlq_reason == "undecodable"


@virtual
async def test_one_id_may_come_alone() -> None:
    """Q2, X5: a text is one id, not its letters."""
    world = Ward()
    first, second = await world.dead("a", "b")
    waiting = await world.die.using(delay=60).aenqueue("x")
    jobs = world.harbor.admin.jobs
    assert (await world.dlq.areplay_ids(first.id)).replayed == [first.id]
    assert (await world.dlq.apurge_ids(second.id)).deleted == [second.id]
    assert await jobs.adelete(waiting.id) == ["live"]
    assert await jobs.acancel(waiting.id) == ["cancelled"]
    assert await jobs.adelete(waiting.id) == ["deleted"]
    assert await jobs.adelete("nobody") == ["missing"]


@virtual
async def test_all_that_match_are_replayed_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q2: previewed, bounded, in bites; a group by its fingerprint."""
    monkeypatch.setattr("taskharbor.client.client.PAGE", 4)
    monkeypatch.setattr(bulk, "BITE", 3)
    world = Ward()
    await world.harbor.aenqueue_many(world.die.step(f"cause {number}") for number in range(10))
    await world.drain()
    [odd] = await world.dead("something else")
    assert len((await world.dlq.areplay_all(dry_run=True)).replayed) == 11
    assert not world.log.calls("replay")
    [group, _] = await world.dlq.agroups()
    words = f"group:{group.fingerprint}"
    assert len((await world.dlq.areplay_all(words, limit=5)).replayed) == 5
    assert [len(call["replays"]) for call in world.log.calls("replay")] == [3, 2]
    assert len((await world.dlq.areplay_all(words)).replayed) == 5
    assert ids(await world.dlq.alist()) == [odd.id]
    for limit in (0, -1, 10_001):
        with pytest.raises(InvalidJob, match="from 1 to 10,000"):
            await world.dlq.areplay_all(limit=limit)
    for by_ids in (world.dlq.areplay_ids, world.dlq.apurge_ids):
        with pytest.raises(InvalidJob, match="at most 10,000"):
            await by_ids(["x"] * 10_001)


@virtual
async def test_a_dry_run_refuses_what_the_act_refuses() -> None:
    """Q2, X5: more ids than one call takes, and a wrong limit, also for named jobs."""
    world = Ward()
    many = [str(number) for number in range(10_001)]
    acts: list[Any] = [world.dlq.areplay_all, world.dlq.apurge]
    for act in acts:
        for dry_run in (True, False):
            with pytest.raises(InvalidJob, match="10,001 jobs are too many for one call: at most 10,000"):
                await act(among=many, dry_run=dry_run)
            for limit in (0, 10_001):
                with pytest.raises(InvalidJob, match="limit must be from 1 to 10,000"):
                    await act(among="x", limit=limit, dry_run=dry_run)


@virtual
async def test_what_is_not_dead_any_more_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q2: jobs that a dry run found are looked at again right before they are replayed or purged."""
    monkeypatch.setattr(bulk, "BITE", 2)
    world = Ward()
    jobs = await world.dead(*"abcde")
    found = (await world.dlq.areplay_all(dry_run=True)).replayed
    assert await world.dlq.areplay(jobs[0].id) == "replayed"
    assert await jobs[0].acancel()
    await world.dlq.apurge_ids(jobs[1].id)
    assert (await world.dlq.areplay_all(dry_run=True, among=found)).replayed == ids(jobs)[:1:-1]
    replayed = await world.dlq.areplay_all(["error:: c"], among=found)
    assert (replayed.replayed, len(replayed.changed)) == ([jobs[2].id], 4)
    purged = await world.dlq.apurge(older_than=0, among=found)
    assert (purged.deleted, purged.needed) == ([jobs[4].id, jobs[3].id], [])
    assert purged.changed == [jobs[2].id, jobs[1].id, jobs[0].id]
    assert [await world.state(job) for job in (jobs[0], jobs[2])] == ["cancelled", "ready"]
    assert (await world.dlq.apurge_ids([jobs[2].id, "nobody"])).changed == [jobs[2].id, "nobody"]
    assert (await world.dlq.areplay_ids([jobs[2].id, "nobody"])).changed == [jobs[2].id, "nobody"]


# purging


@virtual
async def test_a_purge_deletes_by_age_and_words() -> None:
    """Q2: the age is that of the death; the limit bounds it, and a dry run only looks."""
    world = Ward()
    start = world.clock()
    late = await world.die.using(delay=50).aenqueue("late, though created first")
    early, middle = await world.dead("early", "middle")
    async with world.worker():
        await asyncio.sleep(60)
    assert (await world.record(late)).failed_at == start + timedelta(seconds=50)
    assert (await world.dlq.apurge(older_than=61)).deleted == [middle.id, early.id]
    assert await world.memory.get([early.id, middle.id]) == [None, None]
    assert (await world.dlq.apurge(older_than=timedelta(seconds=13))).deleted == []
    preview = await world.dlq.apurge("error:late", older_than=12, dry_run=True)
    assert (preview.deleted, preview.needed) == ([late.id], [])
    assert (await world.dlq.apurge("error:early", older_than=12)).deleted == []
    assert (await world.dlq.apurge("error:late", older_than=12)).deleted == [late.id]
    for age in (-1, float("nan"), float("inf"), 1e30, "7d"):
        with pytest.raises(InvalidJob, match="older_than must be"):
            await world.dlq.apurge(older_than=age)  # type: ignore[arg-type]


@virtual
async def test_a_purge_is_bounded_and_frees_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q2, I2: in bites, the newest first; only dead jobs."""
    monkeypatch.setattr("taskharbor.client.client.PAGE", 2)
    monkeypatch.setattr(bulk, "BITE", 2)
    world = Ward()
    jobs = await world.dead(*"abcde")
    [keyed] = await world.dead("f", idempotency_key="k")
    await world.dead("nothing")
    purged = await world.dlq.apurge(limit=3)
    assert purged.deleted == [keyed.id, jobs[4].id, jobs[3].id]
    assert [len(call["ids"]) for call in world.log.calls("delete")] == [2, 1]
    assert await world.harbor.admin.jobs.afind("k") is None
    assert len((await world.dlq.apurge()).deleted) == 3
    assert [job.state for job in await world.harbor.admin.jobs.alist()] == ["done"]


@virtual
async def test_what_waiting_jobs_need_is_not_purged() -> None:
    """Q2, K3: the answer names it; once the workflow is cancelled, it goes, and what was cancelled with it."""
    world = Ward()
    run = await chord(group([world.die.step("boom"), world.die.step("nothing")]), _merge(world)).aenqueue()
    [alone] = await world.dead("alone")
    [needed] = [job.id for job in await world.dlq.alist() if job.workflow_id == run.id]
    purged = await world.dlq.apurge()
    assert (purged.deleted, purged.needed) == ([alone.id], [needed])
    assert await run.acancel() == 1
    purged = await world.dlq.apurge()
    assert (purged.deleted, purged.needed) == ([needed], [])
    assert [job.state for job in await world.harbor.admin.jobs.alist(f"workflow:{run.id}")] == ["done"]


def _merge(world: World) -> Any:
    @world.harbor.task
    async def merge(results: list[str]) -> str:
        return " ".join(results)

    return merge


def test_the_blocking_twins_do_the_same() -> None:
    """P1, Q1, Q2."""
    harbor = Harbor("memory://")

    @harbor.task(max_attempts=1)
    def fail(number: int) -> int:
        return 1 // number

    jobs = [fail.enqueue(0) for _ in range(3)]
    asyncio.run(harbor.adrain())
    dlq = harbor.admin.dlq
    assert len(dlq.list()) == 3
    assert dlq.get(jobs[0].id).dlq_reason == "max_attempts"
    assert [group.count for group in dlq.groups()] == [3]
    assert dlq.replay(jobs[0].id, arguments={"number": 1}) == "replayed"
    assert len(dlq.replay_all(dry_run=True).replayed) == 2
    assert dlq.replay_ids([jobs[1].id]).replayed == [jobs[1].id]
    assert dlq.purge().deleted == [jobs[2].id]
    assert dlq.purge_ids([jobs[1].id]).deleted == []
    asyncio.run(harbor.adrain())
    assert jobs[0].result() == 1
    harbor.close()


# the hook


def heard(world: World) -> list[JobRecord]:
    """The record that a hook receives."""
    told: list[JobRecord] = []

    @world.harbor.on_dead
    async def listen(job: JobRecord) -> None:
        told.append(job)

    return told


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "hook.failed"]


@virtual
async def test_a_hook_is_called_once_per_death_with_the_final_record() -> None:
    """Q1: after the settle is durable; not of retries and successes."""
    world = Ward()
    told = heard(world)

    @world.harbor.task(max_attempts=3)
    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError(current().attempt)

    job = await fail.aenqueue()
    fine = await world.die.aenqueue("nothing")
    async with world.worker():
        await until(lambda: told)
        record = await world.record(job)
        assert told == [replace(record, started_at=record.created_at + timedelta(seconds=2))]
        assert (told[0].state, told[0].attempts, told[0].last_error) == ("dlq", 3, "ValueError: 3")
        await asyncio.sleep(100)
        await world.dlq.areplay(job.id)
        await until(lambda: len(told) == 2)
    assert told[1] == replace(await world.record(job), started_at=told[1].started_at)
    assert told[1].replays == 1
    assert await world.state(fine) == "done"


@virtual
async def test_a_hook_is_called_for_crash_loops_and_unknown_tasks() -> None:
    """F6, F8: deaths in which no handler ran."""
    world = Ward(max_crashes=2)
    told = heard(world)
    crashing = await world.die.aenqueue("nothing")
    unknown = (await world.harbor.aenqueue_many([world.harbor.step("nobody.knows", {})]))[0]
    for _ in range(2):
        assert await world.memory.reserve([], world.clock(), timedelta(seconds=1), 9, "gone", [crashing.id])
        await asyncio.sleep(1)
    async with world.worker():
        assert MAX_UNKNOWN_PUT_BACKS == 30
        await until(lambda: len(told) == 2, step=1, limit=1700)
    assert {job.id: job.dlq_reason for job in told} == {crashing.id: "crash_loop", unknown.id: "unknown_task"}


@virtual
async def test_a_death_written_at_the_second_try_is_reported_once() -> None:
    """X3: the first answer was lost, the second says that it had happened."""
    world = Ward(lambda inner: LostReply(inner, script("settle")))
    told = heard(world)
    job = await world.die.aenqueue("boom")
    async with world.worker():
        await asyncio.sleep(20)
    assert len(world.settled()) == 2
    assert ids(told) == [job.id]


@virtual
async def test_a_death_is_reported_once_whatever_the_logging_does() -> None:
    """X3: a log filter of the application that raises."""
    world = Ward()
    told = heard(world)

    def broken(record: logging.LogRecord) -> bool:
        raise KeyError("no such field")

    logger = logging.getLogger("taskharbor.worker")
    job = await world.die.aenqueue("boom")
    async with world.worker():
        logger.addFilter(broken)
        try:
            await asyncio.sleep(20)
        finally:
            logger.removeFilter(broken)
    assert ids(told) == [job.id]
    assert len(world.settled()) == 1


BAD: list[BaseException] = [
    ValueError("bad hook"),
    SystemExit(3),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
    GeneratorExit(),
    BaseException("whatever"),
]


@pytest.mark.parametrize("plain", [False, True], ids=["async", "def"])
@pytest.mark.parametrize("error", BAD, ids=lambda error: type(error).__name__)
def test_whatever_a_hook_raises_is_logged_once_and_changes_nothing(
    error: BaseException, plain: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """F11: the job is dead, the other hook is called, the worker goes on."""

    @virtual
    async def scene() -> None:
        world = Ward()

        def fail(job: JobRecord) -> None:
            raise error

        async def fail_async(job: JobRecord) -> None:
            await asyncio.sleep(0)
            raise error

        world.harbor.on_dead(fail if plain else fail_async)
        told = heard(world)
        async with world.worker():
            job = await world.die.aenqueue("boom")
            await until(lambda: told)
            await asyncio.sleep(1)
            assert await (await world.die.aenqueue("nothing")).aresult() == "alive"
        assert await world.state(job) == "dlq"
        assert ids(told) == [job.id]
        [complaint] = complaints(caplog)
        assert job.id in complaint

    scene()


@virtual
async def test_a_hook_that_hangs_delays_no_job(caplog: pytest.LogCaptureFixture) -> None:
    """Q1, X6: it is cancelled after its time; neither slots nor settles wait for it."""
    world = Ward()
    ends: list[float] = []

    @world.harbor.on_dead
    async def hang(job: JobRecord) -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            ends.append(time())

    told = heard(world)
    async with world.worker(concurrency=1):
        jobs = [await world.die.aenqueue("boom") for _ in range(50)]
        fine = await world.die.aenqueue("nothing")
        assert await fine.aresult() == "alive"
        assert time() < 1
        assert {await world.state(job) for job in jobs} == {"dlq"}
        await until(lambda: len(told) == 50)
        assert min(ends) == pytest.approx(dead_hooks.LONGEST, abs=0.1)
        await until(lambda: len(ends) == 50)
    assert len(complaints(caplog)) == 50
    assert all("took longer than 30 s" in complaint for complaint in complaints(caplog))


@virtual
async def test_a_stop_lets_hooks_end_for_a_moment_and_leaves_none_behind(caplog: pytest.LogCaptureFixture) -> None:
    """X6."""
    world = Ward()
    before = asyncio.all_tasks()
    ended: list[str] = []

    @world.harbor.on_dead
    async def short(job: JobRecord) -> None:
        await asyncio.sleep(1)
        ended.append("short")

    @world.harbor.on_dead
    async def long(job: JobRecord) -> None:
        await asyncio.sleep(1000)
        ended.append("long")

    job = await world.die.aenqueue("boom")
    async with world.worker():
        await asyncio.sleep(0.5)
    assert time() == pytest.approx(2.5)
    assert ended == ["short"]
    [complaint] = complaints(caplog)
    assert "long was stopped" in complaint
    assert job.id in complaint
    assert asyncio.all_tasks() == before


@virtual
async def test_a_hurried_stop_waits_for_no_hook() -> None:
    """X6: a second signal stops at once."""
    world = Ward()

    @world.harbor.on_dead
    async def long(job: JobRecord) -> None:
        await asyncio.sleep(1000)

    await world.die.aenqueue("boom")
    async with world.worker() as worker:
        await asyncio.sleep(1)
        worker.begin_stop()
        worker.begin_stop()
    assert time() == pytest.approx(1)


@virtual
async def test_a_hook_that_ignores_its_cancellation_does_not_keep_the_worker_from_stopping() -> None:
    """X6: a second or so later it is left to itself."""
    world = Ward()
    gate = asyncio.Event()

    @world.harbor.on_dead
    async def stubborn(job: JobRecord) -> None:
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()

    await world.die.aenqueue("boom")
    async with world.worker():
        await asyncio.sleep(1)
    assert time() <= 1 + 2 + dead_hooks.LAST_WORDS
    gate.set()
    await asyncio.sleep(1)


@virtual
async def test_a_hook_may_enqueue_and_drain_runs_that_too() -> None:
    """Q1: jobs of a hook are jobs like others; drain waits for the hooks."""
    world = Ward()
    alarms: list[str] = []

    @world.harbor.task
    async def alarm(of: str) -> None:
        alarms.append(of)

    @world.harbor.on_dead
    async def call_for_help(job: JobRecord) -> None:
        await asyncio.sleep(5)
        await alarm.aenqueue(job.last_error or "")

    await world.die.aenqueue("boom")
    assert await world.drain() == 2
    assert alarms == [f"{DIED_OF}boom"]


@virtual
async def test_more_deaths_than_can_be_reported_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Q1: what waits for hooks is bounded."""
    monkeypatch.setattr(dead_hooks, "AT_A_TIME", 2)
    monkeypatch.setattr(dead_hooks, "MOST_WAITING", 5)
    world = Ward()
    beside = most = told = 0

    @world.harbor.on_dead
    async def slow(job: JobRecord) -> None:
        nonlocal beside, most, told
        beside, told = beside + 1, told + 1
        most = max(most, beside)
        await asyncio.sleep(10)
        beside -= 1

    await world.harbor.aenqueue_many(world.die.step("boom") for _ in range(20))
    async with world.worker(concurrency=20):
        await asyncio.sleep(100)
    assert (most, told + len(complaints(caplog))) == (2, 20)
    assert 5 <= told <= 7
    assert all("too many dead jobs" in complaint for complaint in complaints(caplog))


def test_def_hooks_run_in_threads_and_may_block_for_ever() -> None:
    """Q1, X6: real time, real threads; the loop and the stop do not wait for them."""
    harbor = Harbor("memory://")
    gate = threading.Event()
    told: list[tuple[str, bool]] = []

    @harbor.task(max_attempts=1)
    async def fail() -> None:
        raise ValueError

    @harbor.task
    async def fine() -> int:
        return 1

    @harbor.on_dead
    def block(job: JobRecord) -> None:
        told.append((job.id, threading.current_thread() is threading.main_thread()))
        fine.using(idempotency_key="from the hook").enqueue()
        gate.wait()

    async def main() -> Job[None]:
        async with harbor.worker():
            job = await fail.aenqueue()
            await until(lambda: told, step=0.01, limit=10)
            assert await (await fine.aenqueue()).aresult(timeout=10) == 1
            assert await (await fine.using(idempotency_key="from the hook").aenqueue()).aresult(timeout=10) == 1
        return job

    try:
        job = asyncio.run(main())
        assert told == [(job.id, False)]
    finally:
        gate.set()
        harbor.close()


def test_a_call_that_finds_no_thread_in_its_time_is_not_made_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Q1: it is logged as too slow, and skipped."""
    monkeypatch.setattr(dead_hooks, "AT_A_TIME", 1)
    monkeypatch.setattr(dead_hooks, "LONGEST", 0.1)
    harbor = Harbor("memory://")
    gate, told = threading.Event(), threading.Semaphore(0)
    calls = 0

    @harbor.task(max_attempts=1)
    async def fail() -> None:
        raise ValueError

    @harbor.on_dead
    def block(job: JobRecord) -> None:
        nonlocal calls
        calls += 1
        gate.wait()
        told.release()

    async def main() -> None:
        await harbor.aenqueue_many(fail.step() for _ in range(3))
        await harbor.adrain()

    asyncio.run(main())
    gate.set()
    assert told.acquire(timeout=10)
    harbor.close()
    assert len(complaints(caplog)) == 3
    assert calls == 1


@pytest.mark.parametrize("wrong", [None, 3, Harbor, lambda: (yield)], ids=["none", "number", "class", "generator"])
def test_a_hook_must_be_a_function(wrong: Any) -> None:
    """X5."""
    with pytest.raises(ConfigError, match="on_dead takes a def or an async def"):
        Harbor("memory://").on_dead(wrong)
