"""What goes on for ever does not grow for ever: totals of jobs that never end, and memory of who only lists."""

from __future__ import annotations

from collections.abc import Generator
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest

from servers.nats import NatsServer
from taskharbor.core.transition import Increment
from taskharbor.drivers.nats import store, upkeep
from taskharbor.drivers.nats.line import LineInMemory
from taskharbor.drivers.nats.pages import IS_READY, JobPage, PagedJob
from taskharbor.testing.kit.jobs import T0, ack, at, group, job, put_back

from .stage import Play, Stage, claim, player
from .tidied import HandDriver


@pytest.fixture
def play(nats: NatsServer) -> Generator[Play]:
    namespace = nats.new_namespace()
    yield player(nats, namespace)
    nats.drop_namespace(namespace)


async def run_every_minute(driver: HandDriver, number: int) -> None:
    """Let the due jobs put themselves back as often, each time in another minute."""
    for minute in range(number):
        now = at(60 * minute)
        add = Increment(queue="q", task="t", outcome="released", due_at=now)
        for held in await claim(driver, now=now):
            outcome = put_back(held, run_at=now + timedelta(minutes=1), increment=add, started_at=now)
            assert await driver.settle([outcome], now) == ["ok"]


def counted(driver: HandDriver) -> int:
    return sum(len(held.page.sums) for held in driver._store.line.snapshot())


def test_totals_of_a_job_that_never_ends_leave_its_page(play: Play) -> None:
    """D13: a page does not grow until no message can hold it, and nothing is counted twice or lost."""

    async def act(stage: Stage) -> None:
        driver, other = await stage.drivers(2)
        await driver.enqueue([group(job("a"))], T0)
        await run_every_minute(driver, 40)
        before = await driver.tallies(at(-60))
        assert counted(driver) == len(before) == 40
        await driver.tidy()
        assert counted(driver) == 0
        assert await driver.tallies(at(-60)) == await other.tallies(at(-60)) == before

    play(act)


def test_an_ended_page_with_totals_of_many_minutes_leaves_the_line(play: Play) -> None:
    """D13, X8: it is tidied though its totals do not fit into one batch, and does not stop the upkeep of others."""

    async def act(stage: Stage) -> None:
        driver: Any = await stage.driver()
        await driver.enqueue([group(job("a"))], T0)
        await run_every_minute(driver, 40)
        (held,) = await claim(driver, now=at(9999))
        await driver.settle([ack(held)], at(9999))
        before = await driver.tallies(at(-60))
        with mock.patch.object(store, "MOST_MESSAGES", 30), mock.patch.object(upkeep, "MOST_SUMS", 20, create=True):
            for _ in range(3):
                await driver.tidy()
        assert driver._store.line.snapshot() == []
        assert await driver.tallies(at(-60)) == before
        assert (await driver.get(["a"]))[0].state == "done"

    play(act)


def test_a_process_that_only_lists_forgets_old_versions() -> None:
    """D13: its memory is that of the pages, however often they change and however many queues there were."""
    line = LineInMemory()
    entry = PagedJob("a", IS_READY, 5, keep_until=9)
    for rev in range(1, 20_001):
        line.put("-", "0_page", rev, JobPage("q", [entry]))
    for rev in range(20_001, 40_001):
        line.put("-", "0_other", rev, JobPage(f"q{rev}", [entry]))
        line.remove("0_other", rev)
    heaps = [heap for queue in line._queues.values() for heap in (queue.due, queue.later, queue.unwanted)]
    assert sum(map(len, heaps)) + len(line._sweeps) + len(line._prunes) + len(line._queues) < 5000
    assert [picked.rev for picked in line.pick("q", 5, 1, mock.Mock(among=1, has=lambda _: True), 0.0)] == [20_000]
