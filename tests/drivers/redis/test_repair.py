"""A store that was damaged by hand: the repair mends its indexes, and every job that was there runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from servers.valkey import ValkeyServer
from taskharbor import Harbor, chain, chord, group
from taskharbor.driver import RepairReport
from taskharbor.drivers import from_url
from taskharbor.drivers.redis.repair import totals
from taskharbor.testing.kit.jobs import T0, at, job
from taskharbor.testing.kit.jobs import group as group_of

from . import indexes

LEASE = timedelta(seconds=5)


class Damaged:
    """A namespace with jobs in every state, to be damaged by commands; keys are without their prefix."""

    def __init__(self, server: ValkeyServer) -> None:
        self.server = server
        self.name = server.new_namespace()
        self.url = server.url(namespace=self.name)
        self.harbor = Harbor(self.url)
        self.task = self.harbor.task(name="work", max_attempts=1)(_work)

    def fill(self) -> None:
        """Jobs of all kinds."""
        for number in range(6):
            self.task.using(idempotency_key=f"key {number}").enqueue(number == 3)
            self.task.using(queue="mail", priority=number % 2).enqueue(False)
        self.harbor.drain()
        self.task.using(delay=3600, expires=7200).enqueue(False)
        self.task.using(queue="mail").enqueue(False)
        chain(self.task.step(False), self.task.step(False)).enqueue()
        chord(group(self.task.step(False) for _ in range(3)), self.task).enqueue()
        self.task.enqueue(False).cancel()

    def do(self, command: str, key: str, *words: str | bytes | float) -> Any:
        """A command by hand."""
        return self.server.command(command, f"{{{self.name}}}:{key}", *words)

    def ids(self, key: str) -> list[str]:
        """The members of an index."""
        return [member.decode() for member in self.do("ZRANGE", key, 0, -1)]

    def fits(self) -> None:
        """Every index is what the records say."""
        indexes.check(self.server, self.name)


@pytest.fixture
def store(valkey: ValkeyServer) -> Generator[Damaged]:
    damaged = Damaged(valkey)
    with closing(damaged.harbor):
        damaged.fill()
        yield damaged
    valkey.drop_namespace(damaged.name)


def _work(fails: object) -> None:
    if fails is True:
        raise ValueError


def drop(*keys: str) -> Callable[[Damaged], object]:
    return lambda store: [store.do("DEL", key) for key in keys]


def lose_one(key: str) -> Callable[[Damaged], object]:
    return lambda store: store.do("ZREM", key, store.ids(key)[0])


def add(key: str, member: str = "nobody") -> Callable[[Damaged], object]:
    return lambda store: store.do("ZADD", key, 1, member)


def _every_line(store: Damaged) -> None:
    for key in store.server.keys(store.name):
        if b"line:" in key or b"ranks:" in key:
            store.server.command("DEL", key)


def _no_cold_mark(store: Damaged) -> None:
    for id in store.ids("all"):
        fields = store.do("HGET", "job", id).decode().split(" ", 15)
        store.do("HSET", "job", id, " ".join([*fields[:13], "0", *fields[14:]]))


def _other_sides(store: Damaged) -> None:
    for key in store.server.keys(store.name):
        if b"down:" in key:
            store.server.command("DEL", key)


DAMAGE: dict[str, Callable[[Damaged], object]] = {
    "a line is gone": drop("line:0:default"),
    "all lines and ranks are gone": _every_line,
    "all jobs are missing from the list": drop("all"),
    "the dead are missing": drop("dead"),
    "nothing will be pruned": drop("ended"),
    "nothing will expire": drop("expiring"),
    "workflows are gone": drop("flows"),
    "counts are gone": drop("counts", "flowcounts"),
    "a count is off": lambda store: store.do("HINCRBY", "counts", "ready default", 7),
    "a count of a queue that never was": lambda store: store.do("HSET", "counts", "done nowhere", 3),
    "a workflow's count is off": lambda store: store.do("HINCRBY", "flowcounts", f"open {store.ids('flows')[0]}", -1),
    "counts of a workflow that never was": lambda store: store.do("HSET", "flowcounts", "open nothing", 3),
    "one is missing from a line": lose_one("line:0:mail"),
    "one is in a wrong place": lambda store: store.do("ZADD", "all", 999, store.ids("all")[0]),
    "a line has a job too many": add("line:0:default", "0000000000000099nobody"),
    "a line has an ended job": lambda store: store.do("ZADD", "line:0:mail", 1, f"{1:016d}{store.ids('dead')[0]}"),
    "a line of a queue that never was": add("line:3:nowhere", "0000000000000099nobody"),
    "a priority without a line": add("ranks:nowhere", "1"),
    "leases has a job too many": add("leases"),
    "a lapsed one too many": add("lined"),
    "the list has a job too many": add("all"),
    "a workflow too many": add("flows"),
    "a member of a workflow too many": lambda store: store.do("ZADD", f"flow:{store.ids('flows')[0]}", 1, "nobody"),
    "numbers begin again": drop("seq"),
    "the other sides of dependencies": _other_sides,
    "a dependant too many": lambda store: store.do("SADD", f"down:{store.ids('all')[0]}", "0 nobody"),
    "a dependency of a job that never was": lambda store: store.do("HSET", "up:x", 0, f"hold 0 {store.ids('all')[0]}"),
    "no job is marked as concerning others": _no_cold_mark,
    "a part without its job": lambda store: store.do("HSET", "progress", "nobody", b"\x90"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_it_is_mended(store: Damaged, damage: Callable[[Damaged], object]) -> None:
    """X8, D3, D11, T1: nothing is lost, everything runs."""
    store.fits()
    before = {record.id: record for record in store.harbor.admin.jobs.list("*", limit=1000)}
    assert repair(store, dry=True).misfits == 0
    damage(store)
    found = repair(store, dry=True)
    assert found.misfits > 0
    assert (found.examples != (), found.counted) == (True, True)
    assert store.harbor.admin.queues.list() is not None  # an operator can still look
    mended = repair(store)
    assert mended.misfits > 0
    assert repair(store) == RepairReport(jobs=len(before), misfits=0)
    store.fits()
    assert {record.id: record for record in store.harbor.admin.jobs.list("*", limit=1000)} == before
    store.harbor.drain()
    store.fits()
    left = [it for it in store.harbor.admin.jobs.list("*", limit=1000) if it.state in ("ready", "waiting", "inflight")]
    assert [it.run_at is not None for it in left] == [True]


def repair(store: Damaged, *, dry: bool = False) -> RepairReport:
    """Run it."""
    report = store.harbor.admin.repair(dry=dry)
    assert report is not None
    return report


def test_half_of_a_change(store: Damaged) -> None:
    """G1: what a log kept half of: a job without its card never was, one without its outcome runs again."""
    done = store.harbor.admin.jobs.list("state:done", limit=1)[0].id
    (ready, *_) = [it.id for it in store.harbor.admin.jobs.list("state:ready queue:mail", limit=9)]
    store.do("HDEL", "end", done)
    store.do("HDEL", "card", ready)
    store.do("HSET", "card", "orphan", store.do("HGET", "card", done))
    repair(store)
    store.fits()
    store.harbor.drain()
    store.fits()
    assert store.harbor.job(done).state() == "done"
    assert repair(store, dry=True).misfits == 0
    assert [store.do("HEXISTS", part, id) for part, id in (("job", ready), ("card", "orphan"))] == [0, 0]


def test_a_claim_without_its_worker_lapses(valkey: ValkeyServer) -> None:
    """G1, D5."""
    store = Damaged(valkey)

    async def act() -> None:
        driver: Any = await from_url(store.url)
        await driver.enqueue([group_of(job("a"))], T0)
        await driver.reserve(["q"], T0, LEASE, 1, "w")
        store.do("HDEL", "claim", "a")
        assert (await driver.repair(dry=False)).misfits == 1
        (again,) = await driver.reserve(["q"], at(6), LEASE, 1, "w")
        assert (again.id, again.version, again.crashes) == ("a", 2, 1)
        await driver.close()

    asyncio.run(act())
    store.fits()
    valkey.drop_namespace(store.name)


@pytest.mark.parametrize("state", ["dlq", "ready"])
def test_a_record_that_cannot_be_read_is_reported_and_left(store: Damaged, state: str) -> None:
    """X5: also one that was never claimed, which gets no claim by that."""
    id = store.harbor.admin.jobs.list(f"state:{state}")[0].id
    claim = store.do("HGET", "claim", id)
    store.do("HSET", "card", id, b"\xc1")
    for dry in (True, False, True):
        (example,) = repair(store, dry=dry).examples
        assert f"job {id} cannot be read" in example
    assert store.do("HGET", "card", id) == b"\xc1"
    assert store.do("HGET", "claim", id) == claim


@pytest.mark.parametrize("most", [1, 5, 10_000])
def test_totals_are_right_beside_a_busy_worker(
    valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """T2: however many heads fit in one reading; if too many jobs move, nothing is subtracted."""
    monkeypatch.setattr(totals, "MOST", most)
    store = Damaged(valkey)

    async def act() -> None:
        worker: Any = await from_url(store.url)
        operator: Any = await from_url(store.url)
        is_over = False

        async def work() -> None:
            nonlocal is_over
            for number in range(60):
                await worker.enqueue([group_of(*(job(f"{number}-{n}") for n in range(5)))], T0)
                claimed = await worker.reserve(["q"], T0, LEASE, 3, "w")
                await worker.cancel([it.id for it in claimed], T0, at(9))
                await worker.delete(await _ended(worker))
            is_over = True

        async def mend() -> None:
            while not is_over:
                store.do("HINCRBY", "counts", "ready q", 1)
                await operator.repair(dry=False)

        await asyncio.gather(work(), mend())
        await operator.repair(dry=False)
        assert (await operator.repair(dry=True)).misfits == 0
        await worker.close()
        await operator.close()

    asyncio.run(act())
    monkeypatch.setattr(totals, "MOST", 10_000)
    repair(store)
    store.fits()
    store.harbor.close()
    valkey.drop_namespace(store.name)


async def _ended(driver: Any) -> list[str]:
    return [id.decode() for id in await driver._server.command("ZRANGE", f"{driver._server.prefix}ended", 0, 1)]


def test_two_repairs_at_once_subtract_once(store: Damaged) -> None:
    """T2."""

    async def act() -> None:
        drivers: list[Any] = [await from_url(store.url) for _ in range(3)]
        store.do("HINCRBY", "counts", "ready default", 7)
        store.do("HINCRBY", "flowcounts", f"open {store.ids('flows')[0]}", 7)
        await asyncio.gather(*(driver.repair(dry=False) for driver in drivers))
        for driver in drivers:
            await driver.close()

    asyncio.run(act())
    store.fits()
