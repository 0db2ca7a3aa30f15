"""Odd requests: more queues than one batch can hold, tokens that nobody was given, workflows named like jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any
from unittest import mock

import pytest

from servers.fixtures import NewNats
from servers.nats import NatsServer
from taskharbor.core.transition import Ack
from taskharbor.drivers import from_url
from taskharbor.drivers.nats import enqueue
from taskharbor.errors import ConfigError, DriverError, InvalidJob, JobNotInflight, LeaseMismatch
from taskharbor.testing.kit.jobs import KEEP, T0, ack, at, group, job

from .stage import Play, Stage, claim, player


@pytest.fixture
def play(nats: NatsServer) -> Generator[Play]:
    namespace = nats.new_namespace()
    yield player(nats, namespace)
    nats.drop_namespace(namespace)


def test_groups_of_more_queues_than_one_batch_can_hold_are_stored(play: Play) -> None:
    """D1: strangers' groups do not fail because they came together."""

    async def act(stage: Stage) -> None:
        driver: Any = await stage.driver()
        groups = [group(job(f"{number}", queue=f"q{number}")) for number in range(2001)]
        answers: list[Any] = list(await driver.enqueue(groups, T0))
        assert [[it.id for it in answer if it.created] for answer in answers] == [[f"{n}"] for n in range(2001)]
        assert sum(it.ready for it in await driver.counts(T0)) == 2001

    play(act)


def test_groups_that_fill_a_batch_together_are_stored(play: Play) -> None:
    """D1: pages are counted, not queues, and a group is not cut."""

    async def act(stage: Stage) -> None:
        driver: Any = await stage.driver()
        with mock.patch.object(enqueue, "MOST_MESSAGES", 4), mock.patch.object(enqueue, "PAGE", 2):
            groups = [group(*(job(f"{it}{n}") for n in range(3))) for it in "abcdef"]
            answers: list[Any] = list(await driver.enqueue([*groups, group(job("z", queue="r"))], T0))
        assert [len(answer) for answer in answers] == [3] * 6 + [1]
        assert [it.id for it in await claim(driver)] == [f"{it}{n}" for it in "abcdef" for n in range(3)]

    play(act)


def test_a_group_of_too_many_queues_is_refused_before_anything_is_stored(play: Play) -> None:
    """D1, X5: it has to be one batch."""

    async def act(stage: Stage) -> None:
        driver: Any = await stage.driver()
        with pytest.raises(InvalidJob, match="enqueue fewer"):
            await driver.enqueue([group(*(job(f"{number}", queue=f"q{number}") for number in range(1001)))], T0)

    play(act)


def test_outcomes_that_store_jobs_in_more_queues_than_one_batch_can_hold_are_written(play: Play) -> None:
    """D9: together they are too many, so each is written with fewer others; one that is too large is refused."""

    async def act(stage: Stage) -> None:
        driver: Any = await stage.driver()
        await driver.enqueue([group(*(job(f"{number}") for number in range(5)))], T0)
        *held, last = await claim(driver)
        outcomes = [
            ack(it, new_jobs=tuple(job(f"{it.id}{n}", queue=f"q{it.id}{n}") for n in range(300))) for it in held
        ]
        assert await driver.settle(outcomes, T0) == ["ok"] * 4
        assert sum(it.ready for it in await driver.counts(T0)) == 1200
        with pytest.raises(DriverError, match="change fewer"):
            await driver.settle([ack(last, new_jobs=tuple(job(f"z{n}", queue=f"z{n}") for n in range(1000)))], T0)

    play(act)


@pytest.mark.parametrize(
    "token", ["a.1.0.-." + "\ud800", f"a.{'9' * 5000}.0.-.p", f"a.1.{'9' * 5000}.-.p", "a.1.0.*.>", "a.1.0..", "a\n"]
)
def test_a_token_that_nobody_was_given_is_refused(play: Play, token: str) -> None:
    """D8, M1: by itself, beside others."""

    async def act(stage: Stage) -> None:
        driver: Any = await stage.driver()
        await driver.enqueue([group(job("a"), job("b"))], T0)
        held = await claim(driver, 1)
        (found, other) = await driver.settle([Ack(id=id, token=token, keep_until=KEEP) for id in (held[0].id, "b")], T0)
        assert isinstance(found, LeaseMismatch)
        assert isinstance(other, JobNotInflight)

    play(act)


def test_a_workflow_that_is_named_like_one_of_its_jobs_has_its_key(play: Play) -> None:
    """D1, I1: its key resolves to it."""

    async def act(stage: Stage) -> None:
        driver: Any = await stage.driver()
        for id in ("a", "b"):
            stored: list[Any] = list(
                await driver.enqueue([group(job(id, workflow_id=id), workflow_id=id, key="k")], T0)
            )
            assert [it.id for it in stored[0]] == ["a"]
        assert await driver.find_key("k", T0) == "a"

    play(act)


def test_a_page_of_many_jobs_with_results_fits_into_a_message(play: Play) -> None:
    """R4, D1: the more jobs share a page, the less of each is kept in it; the rest is stored by itself."""

    async def act(stage: Stage) -> None:
        driver: Any = await stage.driver()
        with mock.patch.object(enqueue, "PAGE", 2000):
            await driver.enqueue([group(*(job(f"j{number}") for number in range(2000)))], T0)
        held = await claim(driver, limit=2000)
        results = {it.id: b"r" * 700 for it in held}
        outcomes = [ack(it, result=results[it.id]) for it in held]
        assert set(await driver.settle(outcomes, at(1))) == {"ok"}
        assert {it.id: it.result for it in await driver.get(list(results))} == results

    play(act)


def test_a_keyed_group_without_jobs_of_its_workflow_has_its_key(play: Play) -> None:
    """D1, I1: as on the other engines."""

    async def act(stage: Stage) -> None:
        driver: Any = await stage.driver()
        for id in ("a", "b"):
            await driver.enqueue([group(job(id), workflow_id="w", key="k")], T0)
        assert [it is not None for it in await driver.get(["a", "b"])] == [True, False]
        assert await driver.find_key("k", T0) == "w"

    play(act)


def test_a_server_for_short_messages_is_refused(new_nats: NewNats) -> None:
    """X5: a page of jobs must always fit, whatever happens to them."""

    async def act() -> None:
        with pytest.raises(ConfigError, match="raise max_payload"):
            await from_url(new_nats(max_payload=64 * 1024).url())

    asyncio.run(act())
