"""D12, I1, K2, D1 under real parallelism: threads with their own loops, and processes where the store has a URL."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier
from typing import Any

from taskharbor.core.filter import Filter
from taskharbor.drivers import from_url
from taskharbor.testing.kit.jobs import ALL, ack, at, child, fail, group, job, put_back
from taskharbor.testing.kit.scene import Cases, Harness, Scene
from taskharbor.testing.process import EPOCH, KEEP

THREADS = 8
PROCESSES = 8
ROUNDS = 400


Play = Callable[[Scene, int], Coroutine[Any, Any, Any]]
SceneAct = Callable[[Scene], Coroutine[Any, Any, Any]]


async def _nothing(s: Scene) -> None: ...


def together(harness: Harness, play: Play, before: SceneAct = _nothing, after: SceneAct = _nothing) -> list[Any]:
    """Use one driver from several threads at once, each with an event loop of its own."""
    driver = asyncio.run(harness.opened())
    barrier = Barrier(THREADS)

    def perform(number: int) -> Any:
        barrier.wait()
        return asyncio.run(play(Scene(harness, driver), number))

    try:
        asyncio.run(before(Scene(harness, driver)))
        with ThreadPoolExecutor(THREADS) as threads:
            got = list(threads.map(perform, range(THREADS)))
        asyncio.run(after(Scene(harness, driver)))
        return got
    finally:
        asyncio.run(driver.close())


def apart(harness: Harness, role: str, asked: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """Play a role of `testing.process` in several processes at once; return the result of each."""
    assert harness.url is not None
    command = [sys.executable, "-m", "taskharbor.testing.process", harness.url, role, *map(json.dumps, asked)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as players:
        try:
            assert players.stdout is not None
            assert players.stdout.readline() == "ready\n"
            printed, _ = players.communicate("!" * len(asked), timeout=120)
        finally:
            players.kill()
    assert players.returncode == 0
    return [json.loads(line) for line in printed.splitlines()]


def in_store(harness: Harness, act: SceneAct) -> Any:
    """Run alone, before or after the parallel part."""

    async def perform() -> Any:
        assert harness.url is not None
        driver = await from_url(harness.url)
        try:
            scene = Scene(harness, driver)
            scene.now = EPOCH
            return await act(scene)
        finally:
            await driver.close()

    return asyncio.run(perform())


def check_claims(claims: list[Any]) -> None:
    """H2, H3: tokens are unique, versions grow by one, and no claim begins before the lease before it has ended."""
    assert len({token for _, _, token, _, _ in claims}) == len(claims)
    by_job: dict[str, list[Any]] = {}
    for claim in claims:
        by_job.setdefault(claim[0], []).append(claim)
    for mine in by_job.values():
        mine.sort(key=lambda claim: claim[1])
        assert [claim[1] for claim in mine] == list(range(1, len(mine) + 1))
        for before, after in pairwise(mine):
            assert after[3] >= before[4], f"overlapping leases: {before} and {after}"


class ThreadCases(Cases):
    """Threads and processes at once."""

    def test_D12_threads_never_obtain_the_same_job(self, harness: Harness) -> None:
        """D12: 8 loops in 8 threads on one driver empty a queue; every job is claimed exactly once."""

        async def play(s: Scene, number: int) -> list[str]:
            await s.add(*(job(f"{number}-{n}") for n in range(40)))
            got: list[str] = []
            for _ in range(ROUNDS):
                held = await s.reserve(3, worker=f"w{number}")
                got += [each.id for each in held]
                if not held:
                    break
            return got

        got = [id for each in together(harness, play) for id in each]
        assert Counter(got) == Counter({f"{number}-{n}": 1 for number in range(THREADS) for n in range(40)})

    def test_D7_one_of_many_concurrent_settles_counts(self, harness: Harness) -> None:
        """D7, D8: the same token from 8 threads: one ok, the rest replayed, one result."""

        async def play(s: Scene, number: int) -> Any:
            record = (await s.look.get(["a"]))[0]
            if record is None or record.lease is None:
                return "late"
            return (await s.settle(ack(record, result=b"%d" % number, new_jobs=(job(f"n{number}"),))))[0]

        verdicts = Counter(together(harness, play, before=lambda s: s.held("a")))
        assert verdicts["ok"] == 1
        assert set(verdicts) <= {"ok", "replayed", "late"}

    async def test_D12_concurrent_claims_of_one_loop_never_meet(self, s: Scene) -> None:
        """D12: interleaved calls on one loop choose and claim in one step, deterministically."""
        await s.add(*(job(f"j{n:02}") for n in range(20)))
        got = await asyncio.gather(*(s.reserve(3, worker=f"w{number}") for number in range(8)))
        assert sorted(each.id for held in got for each in held) == [f"j{n:02}" for n in range(20)]
        assert {record.version for record in await s.all()} == {1}

    async def test_D7_concurrent_settles_of_one_loop_count_once(self, s: Scene) -> None:
        """D7, D8: checking the lease and writing are one atomic step."""
        held = await s.held()
        calls = [s.settle(ack(held, new_jobs=(job(f"n{number}"),))) for number in range(8)]
        verdicts = Counter([verdict for each in await asyncio.gather(*calls) for verdict in each])
        assert verdicts == {"ok": 1, "replayed": 7}
        assert len(await s.all()) == 2

    async def test_I1_concurrent_enqueues_of_one_loop_create_one_job(self, s: Scene) -> None:
        """I1: looking up the key and taking it are one atomic step."""
        answers = await asyncio.gather(*(s.add(job(f"j{n}", idempotency_key="k")) for n in range(8)))
        assert sum(answer.created for (answer,) in answers) == 1
        assert len({answer.id for (answer,) in answers}) == 1

    def test_I1_threads_create_one_job_per_key(self, harness: Harness) -> None:
        """I1: 64 submitters of one key on 8 threads: one creation, one id for all."""

        async def play(s: Scene, number: int) -> list[Any]:
            calls = (s.add(job(f"{number}-{n}", idempotency_key="k")) for n in range(8))
            return [(answer.id, answer.created) for (answer,) in await asyncio.gather(*calls)]

        answers = [answer for each in together(harness, play) for answer in each]
        assert sum(created for _, created in answers) == 1
        assert len({id for id, _ in answers}) == 1

    def test_I2_the_end_of_the_owner_against_enqueues_makes_one_new_owner(self, harness: Harness) -> None:
        """I2: past the ttl, each enqueue finds the job that has not ended or the one new owner, from 8 threads."""

        async def play(s: Scene, number: int) -> list[tuple[str, bool]]:
            s.tick(5)
            answers: list[tuple[str, bool]] = []
            for n in range(12):
                if n == number == 5:
                    [held] = await s.look.get(["old"])
                    assert held is not None
                    assert await s.settle(ack(held)) == ["ok"]
                [answer] = await s.add(job(f"{number}-{n}", idempotency_key="k", key_expires_at=at(4)))
                answers.append((answer.id, answer.created))
            return answers

        got = together(harness, play, before=lambda s: s.held("old", idempotency_key="k", key_expires_at=at(1)))
        [new] = [id for each in got for id, created in each if created]
        for each in got:
            assert [id for id, _ in each] == sorted((id for id, _ in each), key=["old", new].index)
        assert got[5][-1][0] == new

    def test_I2_a_replay_against_enqueues_of_its_key_leaves_one_owner(self, harness: Harness) -> None:
        """I2, Q2: past the ttl a dead job that runs again keeps its key, or a new job has it, from 8 threads.

        The replay writes the job and only reads the key; an enqueue reads the job and writes the key.
        """
        keys = [f"k{n}" for n in range(40)]

        async def die(s: Scene) -> None:
            for key in keys:
                await s.end(fail(await s.held(key, idempotency_key=key, key_expires_at=at(1))))

        async def play(s: Scene, number: int) -> list[bool]:
            s.tick(5)
            took: list[bool] = []
            for key in keys:
                if number == 0:
                    took.append(await s.replay(key) == "replayed")
                else:
                    [answer] = await s.add(job(f"{number}-{key}", idempotency_key=key, key_expires_at=at(4)))
                    took.append(answer.created)
            return took

        got = together(harness, play, before=die)
        assert [sum(each) for each in zip(*got, strict=True)] == [1] * len(keys)

    def test_K2_threads_release_a_child_exactly_once(self, harness: Harness) -> None:
        """K2: 160 parents acked and retried from 8 threads, then one claim of the finalizer."""
        parents = [f"p{n}" for n in range(160)]

        async def play(s: Scene, number: int) -> None:
            for _ in range(ROUNDS):
                held = await s.reserve(4)
                again = [put_back(each) for each in held if each.version == 1 and each.id.endswith("7")]
                ids = {each.id for each in again}
                await s.settle(*again, *(ack(each) for each in held if each.id not in ids))
                if not held:
                    break

        async def final(s: Scene) -> None:
            [record] = await s.reserve(9, queues=["after"])
            assert (record.id, record.version, record.unmet) == ("z", 1, 0)
            assert await s.reserve(9, queues=["q", "after"]) == []

        family = [*(job(id) for id in parents), child("z", *parents, queue="after")]
        together(harness, play, before=lambda s: s.add(*family), after=final)

    def test_D1_threads_store_a_group_once_and_whole(self, harness: Harness) -> None:
        """D1, R2: the same 20 groups from 8 threads: each stored by exactly one."""

        async def play(s: Scene, number: int) -> list[bool]:
            groups = [group(*(job(f"g{g}-{n}") for n in range(5))) for g in range(20)]
            return [isinstance((await s.enqueue(each))[0], tuple) for each in groups]

        stored = together(harness, play)
        assert [sum(each) for each in zip(*stored, strict=True)] == [1] * 20


class ProcessCases(Cases):
    """D12, I1, K2, D1 over several processes, for stores that another process can open."""

    async def test_G2_a_shared_store_is_not_ephemeral(self, s: Scene) -> None:
        """G2: a store that other processes can open is durable, and the driver says so."""
        assert not s.driver.ephemeral

    async def test_D10_closing_one_handle_leaves_the_others_open(self, s: Scene) -> None:
        """D10: and loses nothing."""
        other = await s.another()
        await s.add(job("a"))
        await s.driver.close()
        assert await other.order() == ["a"]

    def test_D12_processes_never_obtain_the_same_job(self, harness: Harness) -> None:
        """D12: 8 processes reserve at once under one `now`: no job twice."""
        in_store(harness, lambda s: s.add(*(job(f"j{n}") for n in range(400))))
        got = apart(harness, "reserve", [{"rounds": 15, "step": 0, "lease": 60, "limit": 5}] * PROCESSES)
        claims = [claim for each in got for claim in each]
        check_claims(claims)
        assert len(claims) == 400
        assert {claim[1] for claim in claims} == {1}

    def test_D12_processes_take_over_only_what_has_lapsed(self, harness: Harness) -> None:
        """D12, D5: leases run out while 8 processes with their own clocks reserve: none overlap."""
        in_store(harness, lambda s: s.add(*(job(f"j{n}") for n in range(30))))
        got = apart(harness, "reserve", [{"rounds": 40, "step": 0.4, "lease": 1, "limit": 4}] * PROCESSES)
        claims = [claim for each in got for claim in each]
        check_claims(claims)
        assert max(claim[1] for claim in claims) > 2

    def test_I1_processes_create_one_job_per_key(self, harness: Harness) -> None:
        """I1, H8: 64 submitters of each key over 8 processes: one creation, one id for all."""
        keys = ["k1", "k2", "k3"]
        asked = [{"name": f"p{number}", "keys": keys, "each": 8} for number in range(PROCESSES)]
        answers = [answer for each in apart(harness, "submit", asked) for answer in each]
        assert Counter(key for key, _, _ in answers) == Counter(dict.fromkeys(keys, 64))
        assert Counter(key for key, _, created in answers if created) == Counter(keys)
        assert len({(key, id) for key, id, _ in answers}) == 3
        assert len(in_store(harness, lambda s: s.all())) == 3

    def test_K2_processes_release_a_child_exactly_once(self, harness: Harness) -> None:
        """K2, H10: the parents of one finalizer acked by 8 processes: it is released and run once."""
        parents = [f"p{n}" for n in range(200)]
        in_store(harness, lambda s: s.add(*(job(id) for id in parents), child("z", *parents, queue="after")))
        done = [id for each in apart(harness, "finish", [{"limit": 3, "rounds": 70}] * PROCESSES) for id in each]
        assert sorted(done) == sorted(parents)
        [final] = in_store(harness, lambda s: s.reserve(9, queues=["after"]))
        assert (final.id, final.version, final.unmet) == ("z", 1, 0)

    def test_D1_processes_store_a_group_once_and_whole(self, harness: Harness) -> None:
        """D1, R2: the same groups from 8 processes: each stored by exactly one, none by halves."""
        got = apart(harness, "groups", [{"groups": 20, "size": 5}] * PROCESSES)
        stored = Counter(number for each in got for number, ok in each if ok)
        assert stored == Counter(range(20))
        records = in_store(harness, lambda s: s.look.query(Filter(), KEEP, ALL))
        assert Counter(record.id.partition("-")[0] for record in records) == {f"g{n}": 5 for n in range(20)}
