"""Lines to PostgreSQL that break at any byte, fall silent, or lose what was answered (X2, X3)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from servers.postgres import PostgresServer
from taskharbor import Harbor
from taskharbor.core.backoff import STORE_BACKOFF
from taskharbor.core.job import JobRecord
from taskharbor.core.transition import Ack, Fail, PutBack
from taskharbor.driver import Enqueued, Extended, Report
from taskharbor.drivers import from_url
from taskharbor.drivers.postgres import listen, login, pool
from taskharbor.drivers.postgres.db import OwnDb
from taskharbor.drivers.postgres.driver import PostgresDriver
from taskharbor.drivers.postgres.enqueue import COPY_FROM
from taskharbor.errors import DriverUnavailable, JobExists
from taskharbor.testing import Direction, Proxy
from taskharbor.testing.kit.jobs import KEEP, T0, at, group, job, token_of

PLACES = 8
LEASE = timedelta(seconds=10)
PATIENCE = 60.0
DIRECTIONS: tuple[Direction, Direction] = ("to_server", "to_client")
BUSY = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND (state <> 'idle' OR pid = ANY ($1))
"""
BLOCKED = """
    SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""
numbers = count()


class World:
    """A driver by way of a proxy, one that goes straight, and a look at what the server is doing."""

    def __init__(self, proxy: Proxy, far: PostgresDriver, near: PostgresDriver, watch: Any) -> None:
        self.proxy, self.far, self.near, self._watch = proxy, far, near, watch
        self._names = count()
        self._sessions = set[int]()
        self.now = T0

    def name(self) -> str:
        """One that was never used."""
        return f"n{next(self._names):06}"

    async def quiet(self) -> None:
        """Wait until the server has noticed what was cut off, and ended it: also what it has not yet begun to read."""
        while await self._watch.fetchval(BUSY, self._sessions - self.sessions()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    def sessions(self) -> set[int]:
        """Those of the lines that are open and idle."""
        connections = [it.connection for lot in self.far._pool._loop_pools.values() for it in lot.idle]
        open_now = {it.get_server_pid() for it in connections if not it.is_closed()}
        self._sessions |= open_now
        return open_now

    @asynccontextmanager
    async def locked(self) -> AsyncGenerator[None]:
        """Settling is impossible."""
        async with self._watch.transaction():
            await self._watch.execute(f'LOCK TABLE "{self.near._login.schema}".live IN EXCLUSIVE MODE')
            yield

    async def blocked(self) -> None:
        """Wait until a statement waits for the lock."""
        while not await self._watch.fetchval(BLOCKED):  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def noticed(self) -> None:
        """Wait until the driver knows that its idle lines were cut."""
        lots = list(self.far._pool._loop_pools.values())
        while any(not it.connection.is_closed() for lot in lots for it in lot.idle):  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def claimed(self, *ids: str, queue: str, **options: Any) -> list[JobRecord]:
        """Jobs of a queue of their own, enqueued and reserved without trouble."""
        await self.near.enqueue([group(job(id, queue=queue, **options)) for id in ids], T0)
        jobs = await self.near.reserve([queue], T0, LEASE, len(ids), "w")
        assert [it.id for it in jobs] == list(ids)
        return jobs

    async def states(self, *ids: str) -> list[str | None]:
        """Their states as the store has them."""
        return [None if it is None else it.state.value for it in await self.near.get(ids)]


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    """One for all tests here; each has a schema of its own."""
    return postgres.new_database()


@pytest.fixture
def url(postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new store. Every commit notifies at once: bytes that come a moment later would be counted elsewhere."""
    monkeypatch.setattr(listen, "MOMENT", 0.0)
    monkeypatch.setattr(listen.Notifier, "defer", lambda *_: None)
    return postgres.url(database, namespace=f"lines_{next(numbers)}", migrate="true")


@asynccontextmanager
async def world(url: str) -> AsyncGenerator[World]:
    """Everything that a test needs of a store."""
    near = await from_url(url)
    watch = await asyncpg.connect(url.partition("?")[0])
    async with proxied(url) as proxy:
        far = await from_url(proxy.url(url))
        assert isinstance(near, PostgresDriver)
        assert isinstance(far, PostgresDriver)
        try:
            yield World(proxy, far, near, watch)
        finally:
            proxy.heal()
            await far.close()
            await near.close()
            await watch.close()


def proxied(url: str) -> Proxy:
    """A proxy before the server."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    return Proxy(parts.hostname, parts.port)


def places(total: int) -> list[int]:
    """Where to cut so many bytes: the ends, and evenly between; more of them with TORTURE=1."""
    step = max(1, total // (10 * PLACES if os.environ.get("TORTURE") else PLACES))
    return sorted({0, 1, total - 1, total, *range(0, total, step)})


# A trial prepares something undisturbed and returns the act to be cut, and a check of what holds afterwards. The check
# gets the answer of the act, or None if it was cut off, and repeats the act as the runtime does.
Act = Callable[[], Awaitable[Any]]
Trial = Callable[[World], Coroutine[Any, Any, tuple[Act, Callable[[Any], Awaitable[None]]]]]


async def enqueue_one(w: World) -> tuple[Act, Callable[[Any], Awaitable[None]]]:
    id = w.name()

    def act() -> Awaitable[Any]:
        return w.far.enqueue([group(job(id))], T0)

    async def afterwards(answer: Any) -> None:
        assert answer in (None, [(Enqueued(id, True),)])
        [again] = await act()
        assert isinstance(again, JobExists) or (answer is None and again == (Enqueued(id, True),))
        assert await w.states(id) == ["ready"]

    return act, afterwards


async def enqueue_keyed(w: World) -> tuple[Act, Callable[[Any], Awaitable[None]]]:
    id, key = w.name(), w.name()

    def act(id: str = id) -> Awaitable[Any]:
        return w.far.enqueue([group(job(id, idempotency_key=key))], T0)

    async def afterwards(answer: Any) -> None:
        assert answer in (None, [(Enqueued(id, True),)])
        [[again]] = await act(f"{id} again")
        assert again.created == (await w.states(id) == [None])
        assert again.id == (f"{id} again" if again.created else id)
        assert answer is None or not again.created

    return act, afterwards


def enqueue_many(number: int) -> Trial:
    async def trial(w: World) -> tuple[Act, Callable[[Any], Awaitable[None]]]:
        ids = [w.name() for _ in range(number)]

        def act() -> Awaitable[Any]:
            return w.far.enqueue([group(*(job(id) for id in ids))], T0)

        async def afterwards(answer: Any) -> None:
            await w.quiet()
            found = set(await w.states(*ids))
            assert found in ({"ready"}, {None}), "all or none"
            assert answer is None or found == {"ready"}
            [again] = await act()
            assert isinstance(again, JobExists) == (found == {"ready"})
            assert set(await w.states(*ids)) == {"ready"}

        return act, afterwards

    return trial


async def reserve(w: World) -> tuple[Act, Callable[[Any], Awaitable[None]]]:
    ids, queue = [w.name(), w.name()], w.name()
    await w.near.enqueue([group(job(id, queue=queue, tags=("rare",))) for id in ids], T0)

    def act() -> Awaitable[Any]:
        return w.far.reserve([queue], T0, LEASE, 5, "w")

    async def afterwards(answer: Any) -> None:
        await w.quiet()
        again = await act()
        lapsed = await w.far.reserve([queue], T0 + LEASE, LEASE, 5, "w")
        assert sorted(it.id for it in lapsed) == ids
        if answer is not None:
            assert ([it.id for it in answer], again) == (ids, [])
        versions = {(it.version, it.crashes) for it in lapsed}
        assert versions == {(2, 1)}, "claimed once, whether anybody heard of it or not"
        tokens = [token_of(it) for it in (*(answer or again), *lapsed)]
        assert len(set(tokens)) == len(tokens)

    return act, afterwards


async def extend(w: World) -> tuple[Act, Callable[[Any], Awaitable[None]]]:
    ids, queue = [w.name(), w.name()], w.name()
    jobs = await w.claimed(*ids, queue=queue)

    def act() -> Awaitable[Any]:
        return w.far.extend_lease([Report(it.id, token_of(it)) for it in jobs], at(5), LEASE)

    async def afterwards(answer: Any) -> None:
        renewed = [Extended(at(15), False)] * 2
        assert answer in (None, renewed)
        assert await act() == renewed
        assert await w.near.reserve([queue], at(12), LEASE, 5, "w") == []

    return act, afterwards


async def settle_plainly(w: World) -> tuple[Act, Callable[[Any], Awaitable[None]]]:
    ids, queue = [w.name(), w.name()], w.name()
    jobs = await w.claimed(*ids, queue=queue)
    acks = [Ack(id=it.id, token=token_of(it), keep_until=KEEP) for it in jobs]
    return _settle(w, acks, ids, ["done", "done"])


async def settle_anyhow(w: World) -> tuple[Act, Callable[[Any], Awaitable[None]]]:
    ids, queue, new = [w.name() for _ in range(3)], w.name(), w.name()
    done, back, dead = await w.claimed(*ids, queue=queue)
    outcomes = [
        Ack(id=done.id, token=token_of(done), keep_until=KEEP, result=b"1", new_jobs=(job(new, queue=queue),)),
        PutBack(id=back.id, token=token_of(back), keep_until=KEEP, run_at=at(100), attempts=1),
        Fail(id=dead.id, token=token_of(dead), keep_until=KEEP, reason="unrecoverable", attempts=1),
    ]
    return _settle(w, outcomes, [*ids, new], ["done", "ready", "dlq", "ready"])


def _settle(
    w: World, outcomes: Sequence[Any], ids: list[str], states: list[str]
) -> tuple[Act, Callable[[Any], Awaitable[None]]]:
    def act() -> Awaitable[Any]:
        return w.far.settle(outcomes, at(1))

    async def afterwards(answer: Any) -> None:
        await w.quiet()
        found = await w.states(*ids)
        is_written = found == states
        assert is_written or found[: len(outcomes)] == ["inflight"] * len(outcomes)
        if answer is not None:
            assert (answer, is_written) == (["ok"] * len(outcomes), True)
        assert await act() == ["replayed" if is_written else "ok"] * len(outcomes)
        assert await w.states(*ids) == states

    return act, afterwards


TRIALS: dict[str, Trial] = {
    "enqueue": enqueue_one,
    "enqueue with a key": enqueue_keyed,
    "enqueue a group": enqueue_many(3),
    "enqueue by COPY": enqueue_many(COPY_FROM),
    "reserve": reserve,
    "extend": extend,
    "settle plainly": settle_plainly,
    "settle anyhow": settle_anyhow,
}
each_trial = pytest.mark.parametrize("trial", TRIALS.values(), ids=TRIALS.keys())


async def attempted(act: Act) -> Any:
    """The answer; None if the store was found to be away, and nothing but that."""
    try:
        return await act()
    except DriverUnavailable:
        return None


@each_trial
def test_a_line_may_break_at_any_byte_of_a_call(url: str, trial: Trial) -> None:
    """X3, D1, D7, D8: what was asked has happened or not, repeating it is safe, and the line is never used again."""

    async def main() -> None:
        async with world(url) as w:
            await undisturbed(w, trial)  # from now on the statements are prepared
            for direction, total in (await undisturbed(w, trial)).items():
                for place in places(total):
                    await cut(w, trial, place, direction)

    asyncio.run(main())


async def undisturbed(w: World, trial: Trial) -> dict[Direction, int]:
    """How many bytes a trial's act takes."""
    act, afterwards = await trial(w)
    [link] = w.proxy.links
    before = dict(link.forwarded)
    answer = await act()
    taken = {direction: link.forwarded[direction] - before[direction] for direction in DIRECTIONS}
    await afterwards(answer)
    return taken


async def cut(w: World, trial: Trial, place: int, direction: Direction) -> None:
    """One call, cut there."""
    act, afterwards = await trial(w)
    [link] = w.proxy.links
    w.sessions()
    accepted = w.proxy.accepted
    order = link.cut_after(place, direction)
    answer = await attempted(act)
    await w.proxy.until(lambda: order.done)
    await w.noticed()
    await afterwards(answer)
    assert link not in w.proxy.links
    assert w.proxy.accepted == accepted + 1, "the next call has made one new line"


@pytest.mark.parametrize("verb", ["settle anyhow", "reserve"])
def test_a_line_may_break_while_it_is_made(url: str, verb: str) -> None:
    """X3: cut at any byte of the login, or of the first use of every statement."""

    async def main() -> None:
        async with world(url) as w:
            act, afterwards = await TRIALS[verb](w)
            await drop_lines(w)
            answer = await act()
            [link] = w.proxy.links
            totals = dict(link.forwarded)
            await afterwards(answer)
            for direction in DIRECTIONS:
                for place in places(totals[direction]):
                    await cut_new(w, TRIALS[verb], place, direction)

    asyncio.run(main())


async def cut_new(w: World, trial: Trial, place: int, direction: Direction) -> None:
    """One call that needs a new line, which is cut there."""
    act, afterwards = await trial(w)
    await drop_lines(w)
    w.proxy.on_next(lambda link: link.cut_after(place, direction))
    answer = await attempted(act)
    w.proxy.heal()
    await w.proxy.until(lambda: answer is not None or not w.proxy.links)
    await afterwards(answer)


async def drop_lines(w: World) -> None:
    """The driver has no line left, and knows it."""
    w.proxy.reset()
    await w.proxy.until(lambda: not w.proxy.links)
    await w.noticed()


@each_trial
def test_a_silent_server_blocks_no_caller_beyond_its_timeout(url: str, trial: Trial) -> None:
    """X2, X3: a caller that gives up returns at once, whatever was under way; its connection is closed, and a late
    answer reaches no other caller."""

    async def main() -> None:
        async with world(url) as w, asyncio.timeout(PATIENCE):
            await undisturbed(w, trial)
            for direction in (*DIRECTIONS, None):
                act, afterwards = await trial(w)
                [link] = w.proxy.links
                w.proxy.stall(direction)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(act(), 0.05)
                w.proxy.resume()
                await w.proxy.until(lambda: link not in w.proxy.links)  # noqa: B023
                await afterwards(None)

    asyncio.run(main())


def test_a_server_that_falls_silent_inside_of_a_transaction(url: str) -> None:
    """X2: a caller that gives up does not wait for a rollback either."""

    async def main() -> None:
        async with world(url) as w, asyncio.timeout(PATIENCE):
            act, afterwards = await settle_anyhow(w)
            async with w.locked():
                acting = asyncio.ensure_future(act())
                await w.blocked()
                w.proxy.stall()
                acting.cancel()
                await asyncio.wait([acting], timeout=PATIENCE / 2)
                assert acting.cancelled()
            w.proxy.resume()
            await afterwards(None)

    asyncio.run(main())


def test_a_silent_server_blocks_no_caller_without_a_timeout_for_ever(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """X2: every operation has a hard limit, outside of the client library."""

    async def main() -> None:
        async with world(url) as w, asyncio.timeout(PATIENCE):
            w.proxy.stall()
            with pytest.raises(DriverUnavailable, match="may still take effect"):
                await w.far.enqueue([group(job(w.name()))], T0)
            monkeypatch.setattr(pool, "ANSWER_WITHIN", PATIENCE)
            w.proxy.resume()
            await w.far.enqueue([group(job(w.name()))], T0)

    monkeypatch.setattr(pool, "ANSWER_WITHIN", 0.5)
    asyncio.run(main())


def test_callers_that_wait_for_each_other_keep_no_worker_waiting(url: str) -> None:
    """L6, X2: handlers enqueue on their worker's loop; however many of them hang, it reserves, settles and extends."""

    async def main() -> None:
        async with world(url) as w, asyncio.timeout(PATIENCE):
            [mine] = await w.claimed(w.name(), queue="mine")
            schema = w.near._login.schema
            async with w._watch.transaction():
                await w._watch.execute(f"INSERT INTO \"{schema}\".keys (key, owner, digest) VALUES ('k', 'x', '')")
                jobs = [group(job(w.name(), idempotency_key="k")) for _ in range(2 * pool.PER_LOOP)]
                stuck = [asyncio.ensure_future(w.near.enqueue([each], T0)) for each in jobs]
                waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
                while await w._watch.fetchval(waiting) < pool.PER_LOOP:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                assert await w.near.reserve(["mine"], T0, LEASE, 1, "w") == []
                assert mine.lease is not None
                assert len(await w.near.extend_lease([Report(mine.id, mine.lease.token)], T0, LEASE)) == 1
                assert await w.near.settle([Ack(id=mine.id, token=mine.lease.token, keep_until=T0)], T0) == ["ok"]
                assert not any(each.done() for each in stuck)
            await asyncio.gather(*stuck)

    asyncio.run(main())


def test_a_server_that_takes_connections_and_says_nothing(url: str) -> None:
    """X2: the same while a connection is made, and nothing of it stays open."""

    async def main() -> None:
        async with world(url) as w, asyncio.timeout(PATIENCE):
            await drop_lines(w)
            w.proxy.stall()
            for _ in range(pool.PER_LOOP + 1):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(w.far.get(["x"]), 0.05)
            w.proxy.resume()
            await w.proxy.until(lambda: not w.proxy.links)
            assert await w.far.get(["x"]) == [None]

    asyncio.run(main())


def test_a_host_that_says_nothing_is_given_up_soon(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """X2: by the attempt itself, for all waiters; nothing was sent yet, and the next attempt opens a new one."""

    async def main() -> None:
        async with world(url) as w, asyncio.timeout(PATIENCE):
            await drop_lines(w)
            w.proxy.on_next(lambda link: link.stall(), times=pool.PER_LOOP + 1)
            with monkeypatch.context() as impatient:
                impatient.setattr(login, "CONNECT_WITHIN", 0.05)
                for _ in range(pool.PER_LOOP + 1):
                    with pytest.raises(DriverUnavailable) as caught:
                        await w.far.get(["x"])
                    assert "may still take effect" not in str(caught.value)
            assert await w.far.get(["x"]) == [None]

    asyncio.run(main())


def test_a_worker_is_back_soon_after_a_silent_host(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """X2: every attempt to connect is lost until the host is back, and the worker gets no signal of it."""
    monkeypatch.setattr(login, "CONNECT_WITHIN", 0.2)

    async def main() -> None:
        async with proxied(url) as proxy:
            near, harbor = Harbor(url), Harbor(proxy.url(url))

            @harbor.task(name="work")
            async def work() -> int:
                return 1

            async with asyncio.timeout(PATIENCE), near.open(), harbor.worker(threads=False):
                assert await until_taken((await work.aenqueue()).aresult) == 1
                proxy.on_next(lambda link: link.stall(), times=5)
                lost = proxy.accepted + 5
                proxy.reset()
                [job] = await near.aenqueue_many([near.step("work", {})])
                await proxy.until(lambda: proxy.accepted >= lost)
                assert await job.aresult(timeout=PATIENCE) == 1
            await harbor.aclose()

    asyncio.run(main())


def test_five_seconds_are_enough_for_a_worker_to_come_back() -> None:
    """X2: for an attempt that began when the host was still away, the longest pause behind it, and the next attempt."""
    assert login.CONNECT_WITHIN + 1.25 * STORE_BACKOFF.cap < 5


@pytest.mark.parametrize("verb", ["settle plainly", "settle anyhow", "enqueue", "enqueue by COPY", "extend"])
def test_a_reply_that_is_lost_after_the_commit_leaves_the_outcome_unknown(url: str, verb: str) -> None:
    """X2, X3: `DriverUnavailable` does not claim that nothing happened; the repeat finds out."""

    async def main() -> None:
        async with world(url) as w:
            await undisturbed(w, TRIALS[verb])
            taken = await undisturbed(w, TRIALS[verb])
            act, _ = await TRIALS[verb](w)
            [link] = w.proxy.links
            link.cut_after(taken["to_client"] - 1, "to_client")
            with pytest.raises(DriverUnavailable, match="may still take effect"):
                await act()
            await w.quiet()
            again = await act()
            assert set(map(str, again)) <= {"replayed"} or isinstance(again[0], JobExists | Extended)

    asyncio.run(main())


def test_a_worker_behind_a_silent_line_goes_on_when_it_speaks_again(url: str) -> None:
    """X2: stalls longer than the store's timeout end in `DriverUnavailable` for clients and in patience for workers."""

    async def main() -> None:
        async with proxied(url) as proxy:
            harbor = Harbor(proxy.url(url), store_timeout=1)
            runs: list[int] = []

            @harbor.task(name="work")
            async def work(number: int) -> int:
                runs.append(number)
                return number

            async with asyncio.timeout(PATIENCE), harbor.worker(lease=30, threads=False):
                job = await until_taken(lambda: work.aenqueue(1))
                assert await until_taken(job.aresult) == 1
                for number in (2, 3):
                    proxy.stall("to_client" if number == 2 else None)
                    with pytest.raises(DriverUnavailable, match="may still take effect"):
                        await work.aenqueue(-number)
                    proxy.resume()
                    job = await until_taken(lambda: work.aenqueue(number))  # noqa: B023
                    assert await until_taken(job.aresult) == number
            await harbor.aclose()
            assert [number for number in runs if number > 0] == [1, 2, 3]

    asyncio.run(main())


def test_enqueues_that_cross_return_a_result_for_each_job(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """D1: strangers share a call; what was stored before a deadlock is not refused as known when it is repeated."""
    trouble = ["enqueue_keyed"]
    true_rows = OwnDb.rows

    async def rows(self: OwnDb, name: str, *values: object) -> Any:
        if name in trouble:
            trouble.remove(name)
            raise asyncpg.DeadlockDetectedError("deadlock detected")
        return await true_rows(self, name, *values)

    async def main() -> None:
        async with world(url) as w:
            monkeypatch.setattr(OwnDb, "rows", rows)
            groups = [group(job("a")), group(job("b"), job("c")), group(job("d", idempotency_key="k"))]
            answers = await w.far.enqueue(groups, T0)
            assert answers == [tuple(Enqueued(it.id, True) for it in each.jobs) for each in groups]
            assert trouble == []

    asyncio.run(main())


def test_a_loop_that_ends_takes_its_connections_along(url: str) -> None:
    """X3: nor is the loop itself kept. A script may call `asyncio.run` for every job."""

    async def open_and_leave() -> PostgresDriver:
        driver = await from_url(url)
        assert isinstance(driver, PostgresDriver)
        assert await driver.get(["a"]) == [None]
        return driver

    async def again(driver: PostgresDriver) -> None:
        assert await driver.get(["a"]) == [None]
        await driver.close()

    driver = asyncio.run(open_and_leave())
    assert not driver._pool._loop_pools
    asyncio.run(again(driver))


async def until_taken(act: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat while the store is away."""
    while True:
        try:
            return await act()
        except DriverUnavailable:
            await asyncio.sleep(0.01)
