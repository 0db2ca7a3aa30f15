"""The thread that owns the connection: shared commits, one guilty request, cancelled callers, the end (D1, D10)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from apsw import Connection

from taskharbor.core.job import NewJob
from taskharbor.core.transition import Ack
from taskharbor.driver import Enqueued, Group
from taskharbor.drivers.shared.claims import ClaimTerms, claim
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.errors import ConfigError, DriverClosed, LeaseMismatch

T = datetime(2026, 3, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
FAR_TOO_LONG = 60.0


def group(*ids: str) -> Group:
    return Group(jobs=tuple(NewJob(id=id, type="t", queue="q", payload=b"{}") for id in ids))


def play(path: Path, scene: Callable[[SqliteDriver], Awaitable[None]]) -> None:
    async def played() -> None:
        driver = await SqliteDriver.open(path / "jobs.db")
        try:
            await scene(driver)
        finally:
            await driver.close()

    asyncio.run(played())


@asynccontextmanager
async def busy(driver: SqliteDriver) -> AsyncIterator[None]:
    """Keep the thread busy, so that what is asked meanwhile becomes one batch."""
    taken, release = threading.Event(), threading.Event()

    def hold(db: Connection) -> None:
        taken.set()
        assert release.wait(FAR_TOO_LONG)

    holding = asyncio.ensure_future(driver._read(hold))
    while not taken.is_set():  # noqa: ASYNC110
        await asyncio.sleep(0)
    try:
        yield
        await asyncio.sleep(0)
    finally:
        release.set()
        await holding


async def commits_of(driver: SqliteDriver) -> list[None]:
    """A list that grows by one entry with every commit that writes."""
    commits: list[None] = []

    def counted() -> bool:
        commits.append(None)
        return False

    await driver._read(lambda db: db.set_commit_hook(counted))
    return commits


class TestBatches:
    def test_concurrent_requests_share_one_commit_and_one_wake_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """D1: strangers' enqueues, settles and the next reserve are one transaction, and one hop back to the loop."""

        async def scene(driver: SqliteDriver) -> None:
            await driver.enqueue([group("a", "b")], T)
            [claimed] = await driver.reserve(["q"], T, MINUTE, 1, "w")
            assert claimed.lease is not None
            ack = Ack(id="a", token=claimed.lease.token, keep_until=T)
            commits, wakes = await commits_of(driver), list[Any]()
            async with busy(driver):
                tasks = [asyncio.ensure_future(driver.enqueue([group(f"n{n}")], T)) for n in range(50)]
                settled = asyncio.ensure_future(driver.settle([ack], T))
                reserved = asyncio.ensure_future(driver.reserve(["q"], T, MINUTE, 100, "w"))
                loop = asyncio.get_running_loop()
                soon = loop.call_soon_threadsafe

                def woken(*call: Any) -> Any:
                    wakes.append(call)
                    return soon(*call)

                monkeypatch.setattr(loop, "call_soon_threadsafe", woken)
            results = await asyncio.gather(*tasks)
            assert results == [[(Enqueued(f"n{n}", True),)] for n in range(50)]
            assert await settled == ["ok"]
            assert [job.id for job in await reserved] == ["b", *(f"n{n}" for n in range(50))]
            assert len(commits) == 1
            assert len(wakes) == 2, "one for the request that kept the thread busy, one for all others"

        play(tmp_path, scene)

    def test_reading_takes_no_write_lock(self, tmp_path: Path) -> None:
        """D13: looking, and reserving when nothing is due, commit nothing."""

        async def scene(driver: SqliteDriver) -> None:
            await driver.enqueue([group("a")], T)
            commits = await commits_of(driver)
            await asyncio.gather(
                driver.get(["a"]),
                driver.counts(T),
                driver.next_due(["q"]),
                driver.reserve(["q"], T - MINUTE, MINUTE, 9, "w"),
                driver.reserve(["other"], T, MINUTE, 9, "w"),
            )
            assert commits == []

        play(tmp_path, scene)

    def test_an_unexpected_error_fails_the_guilty_request_alone(self, tmp_path: Path) -> None:
        """X5: its writes are gone, its neighbours' are kept."""

        def guilty(db: Connection) -> None:
            db.execute("INSERT INTO paused (queue) VALUES ('q')")
            raise ZeroDivisionError("a bug")

        async def scene(driver: SqliteDriver) -> None:
            async with busy(driver):
                before = asyncio.ensure_future(driver.enqueue([group("a")], T))
                wrong = asyncio.ensure_future(driver._write(guilty))
                after = asyncio.ensure_future(driver.enqueue([group("b"), group("a")], T))
            with pytest.raises(ZeroDivisionError, match="a bug"):
                await wrong
            assert await before == [(Enqueued("a", True),)]
            assert (await after)[0] == (Enqueued("b", True),)
            assert [job.id for job in await driver.reserve(["q"], T, MINUTE, 9, "w")] == ["a", "b"]

        play(tmp_path, scene)

    def test_a_caller_cancelled_before_its_turn_leaves_nothing(self, tmp_path: Path) -> None:
        async def scene(driver: SqliteDriver) -> None:
            async with busy(driver):
                given_up = asyncio.ensure_future(driver.enqueue([group("a")], T))
                kept = asyncio.ensure_future(driver.enqueue([group("b")], T))
                await asyncio.sleep(0)
                given_up.cancel()
            assert await kept == [(Enqueued("b", True),)]
            assert [it is not None for it in await driver.get(["a", "b"])] == [False, True]

        play(tmp_path, scene)

    def test_threads_and_loops_may_share_a_driver(self, tmp_path: Path) -> None:
        """P1: each caller gets its own answers on its own loop."""

        async def scene(driver: SqliteDriver) -> None:
            def elsewhere(name: str) -> list[Any]:
                async def calls() -> list[Any]:
                    return await asyncio.gather(*(driver.enqueue([group(f"{name}{n}")], T) for n in range(20)))

                return asyncio.run(calls())

            names = ["x", "y", "z"]
            found = await asyncio.gather(*(asyncio.to_thread(elsewhere, name) for name in names))
            assert found == [[[(Enqueued(f"{name}{n}", True),)] for n in range(20)] for name in names]

        play(tmp_path, scene)

    def test_a_closed_loop_does_no_harm(self, tmp_path: Path) -> None:
        async def scene(driver: SqliteDriver) -> None:
            async def leave() -> None:
                request = asyncio.ensure_future(driver.enqueue([group("a")], T))
                await asyncio.sleep(0)
                request.cancel()

            async with busy(driver):
                await asyncio.to_thread(asyncio.run, leave())
            assert await driver.enqueue([group("b")], T) == [(Enqueued("b", True),)]

        play(tmp_path, scene)


class TestEnd:
    """D10."""

    def test_what_is_pending_is_done_before_the_end(self, tmp_path: Path) -> None:
        async def scene(driver: SqliteDriver) -> None:
            async with busy(driver):
                tasks = [asyncio.ensure_future(driver.enqueue([group(f"{n}")], T)) for n in range(5)]
                await asyncio.sleep(0)
                closing = [asyncio.ensure_future(driver.close()) for _ in range(2)]
            await asyncio.gather(*closing)
            assert [task.result() for task in tasks] == [[(Enqueued(f"{n}", True),)] for n in range(5)]
            with pytest.raises(DriverClosed):
                await driver.get(["0"])
            with pytest.raises(DriverClosed):
                await driver.wait_for_work(["q"], FAR_TOO_LONG)
            await driver.close()

        before = threading.active_count()
        play(tmp_path, scene)
        assert threading.active_count() == before

    def test_the_end_wakes_waiters(self, tmp_path: Path) -> None:
        async def scene(driver: SqliteDriver) -> None:
            waiting = [
                asyncio.ensure_future(driver.wait_for_work(["q"], FAR_TOO_LONG)),
                asyncio.ensure_future(driver.wait_for_end("a", FAR_TOO_LONG)),
            ]
            await asyncio.sleep(0)
            await driver.close()
            async with asyncio.timeout(FAR_TOO_LONG / 2):
                await asyncio.gather(*waiting)

        play(tmp_path, scene)

    def test_a_refused_file_leaves_no_thread(self, tmp_path: Path) -> None:
        before = set(threading.enumerate())
        with pytest.raises(ConfigError):
            asyncio.run(SqliteDriver.open(tmp_path / "missing" / "jobs.db"))
        for thread in set(threading.enumerate()) - before:
            thread.join(FAR_TOO_LONG)
        assert set(threading.enumerate()) <= before

    def test_own_commits_are_noticed_at_once(self, tmp_path: Path) -> None:
        """D13: `data_version` is silent about a connection's own commits, so these wake up waiters directly."""

        async def scene(driver: SqliteDriver) -> None:
            waiting = asyncio.ensure_future(driver.wait_for_work(["q"], FAR_TOO_LONG))
            await asyncio.sleep(0)
            await driver.enqueue([group("a")], T)
            async with asyncio.timeout(FAR_TOO_LONG / 2):
                await waiting

        play(tmp_path, scene)


@pytest.mark.parametrize("change", ["zero", "digit", "space", "id"])
def test_a_token_is_compared_as_it_is(change: str, tmp_path: Path) -> None:
    """D8: one that only reads like the right one settles nothing, alone or in a batch with right ones."""

    async def scene(driver: SqliteDriver) -> None:
        await driver.enqueue([group("a", "b")], T)
        tokens = {job.id: job.lease.token for job in await driver.reserve(["q"], T, MINUTE, 2, "w") if job.lease}
        claim, _, id = tokens["a"].partition(" ")
        prefix, _, seq = claim.rpartition(".")
        wrong = {
            "zero": f"{prefix}.0{seq} {id}",
            "digit": f"{prefix}.\u0661 {id}",
            "space": f"{claim}  {id}",
            "id": f"{claim} b",
        }[change]
        acks = [Ack(id="a", token=wrong, keep_until=T + MINUTE), Ack(id="b", token=tokens["b"], keep_until=T + MINUTE)]
        refused, settled = await driver.settle(acks, T)
        assert (type(refused), settled) == (LeaseMismatch, "ok")
        [record] = await driver.get(["a"])
        assert record is not None
        assert record.state == "inflight"

    play(tmp_path, scene)


def test_a_claim_is_made_in_the_thread_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random bytes let other threads go on: read on the loop, they would part the outcomes of a batch from the next
    claim, and each would have a commit of its own."""
    threads = list[int]()

    def noted(*terms: Any) -> ClaimTerms:
        threads.append(threading.get_ident())
        return claim(*terms)

    monkeypatch.setattr("taskharbor.drivers.sqlite.driver.claim", noted)

    async def scene(driver: SqliteDriver) -> None:
        await driver.enqueue([group("a")], T)
        assert len(await driver.reserve(["q"], T, MINUTE, 1, "w")) == 1

    play(tmp_path, scene)
    assert threads
    assert threading.get_ident() not in threads
