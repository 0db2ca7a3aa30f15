"""What others do between two operations of a verb; each ends as if one had come after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest

from servers.nats import NatsServer
from taskharbor.core.evolve import Replay
from taskharbor.core.filter import Filter
from taskharbor.core.lease import Report
from taskharbor.core.transition import Increment
from taskharbor.drivers.nats import commit, pages, upkeep, watch
from taskharbor.drivers.nats.connection import NatsMessage
from taskharbor.drivers.nats.line import ALL
from taskharbor.errors import DriverUnavailable, HarborError, JobExists, LeaseError, LeaseMismatch
from taskharbor.testing.kit.jobs import KEEP, T0, ack, at, child, fail, group, job, put_back, token_of

from .stage import LEASE, Play, Stage, Step, Tap, claim, player
from .tidied import HandDriver


@pytest.fixture
def play(nats: NatsServer) -> Generator[Play]:
    namespace = nats.new_namespace()
    yield player(nats, namespace)
    nats.drop_namespace(namespace)


ENDED, PAGE, LARGE = ".e.", ".l.s.", b"x" * 3000
RUN = Increment(queue="q", task="t", outcome="done", due_at=T0)


# Tidying


async def with_dead_job(stage: Stage, number: int) -> list[Any]:
    """Drivers, whose store has a dead job."""
    drivers = await stage.drivers(number)
    await drivers[0].enqueue([group(job("a"))], T0)
    (held,) = await claim(drivers[0])
    await drivers[0].settle([fail(held)], T0)
    return drivers


def test_a_late_tidy_does_not_bring_an_old_version_back(play: Play) -> None:
    """Q2, T1: the job was replayed and has run, and both times its page was tidied, before the late one goes on."""

    async def act(stage: Stage) -> None:
        late, other = await with_dead_job(stage, 2)
        await late.counts(T0)

        async def meanwhile() -> None:
            await other.tidy()
            await other.replay([Replay(id="a")], at(1))
            (held,) = await claim(other, now=at(1))
            await other.settle([ack(held, result=b"1")], at(1))
            await other.tidy()

        Step(late).at("before write", ENDED, meanwhile)
        await late.tidy()
        (found,) = await other.get(["a"])
        assert (found.state, found.result) == ("done", b"1")

    play(act)


def test_a_late_tidy_of_a_page_that_came_back_does_not_bring_an_old_version_back(play: Play) -> None:
    """Q2, T1: the same for a page that was among the ended before."""

    async def act(stage: Stage) -> None:
        late, other = await with_dead_job(stage, 2)
        await late.tidy()
        await other.replay([Replay(id="a")], at(1))
        (held,) = await claim(other, now=at(1))
        await other.settle([fail(held)], at(1))
        await late.counts(T0)

        async def meanwhile() -> None:
            await other.tidy()
            await other.replay([Replay(id="a")], at(2))
            (held,) = await claim(other, now=at(2))
            await other.settle([ack(held, result=b"1")], at(2))
            await other.tidy()

        Step(late).at("before write", ENDED, meanwhile)
        await late.tidy()
        (found,) = await other.get(["a"])
        assert (found.state, found.result) == ("done", b"1")

    play(act)


def test_a_job_that_is_replayed_while_its_page_is_tidied_stays_in_line(play: Play) -> None:
    """Q2, D2: the page changes before it is stored among the ended, and the watch shows it at once."""

    async def act(stage: Stage) -> None:
        stage.leaves = True
        late, other = await with_dead_job(stage, 2)
        await other.enqueue([group(job("b"))], T0)
        (held,) = await claim(other)
        await other.settle([fail(held)], T0)
        await late.counts(T0)

        async def meanwhile() -> None:
            await other.replay([Replay(id="a"), Replay(id="b")], at(1))
            await late._watch.barrier()

        Step(late).at("before write", ENDED, meanwhile)
        await late.tidy()
        assert {it.id for it in await claim(other, now=at(1))} == {"a", "b"}

    play(act)


def test_a_page_that_another_thread_changes_while_it_is_looked_at_is_not_tidied(play: Play) -> None:
    """Q2, P1: the watch may run in another thread, and show the replay of a job between two looks at its page."""

    async def act(stage: Stage) -> None:
        stage.leaves = True
        _, other, late = await with_dead_job(stage, 3)
        tap = Tap(late)
        await late.counts(T0)
        tap.shut()
        await other.replay([Replay(id="a")], at(1))
        await tap.has_kept.wait()

        def meanwhile(entry: Any) -> bool:
            tap.open()
            return pages.is_ended(entry)

        with mock.patch.object(upkeep, "is_ended", meanwhile), mock.patch.object(late._watch, "rank", return_value=ALL):
            await late._upkeep.tidy(asyncio.get_running_loop().time())
        assert [it.id for it in await claim(other, now=at(1))] == ["a"]

    play(act)


@pytest.mark.parametrize("is_late", [False, True], ids=["stored", "not stored yet"])
@pytest.mark.parametrize("workflow", [None, "flow"])
def test_a_job_that_is_deleted_while_its_page_is_tidied_is_gone(
    play: Play, is_late: bool, workflow: str | None
) -> None:
    """Q2, X8: its page is not left among the ended, whether it had been stored there or was about to be."""

    async def act(stage: Stage) -> None:
        late, other = await stage.drivers(2)
        await other.enqueue([group(job("a", workflow_id=workflow))], T0)
        (held,) = await claim(other)
        await other.settle([fail(held)], T0)
        await late.counts(T0)

        async def meanwhile() -> None:
            assert await other.delete(["a"]) == ["deleted"]
            await other.tidy()

        Step(late).at("before write" if is_late else "after write", ENDED, meanwhile)
        await late.tidy()
        await late.tidy()
        assert await other.get(["a"]) == [None]
        assert await other.query(Filter(), T0, 9) == []
        assert await other.workflows(9) == []

    play(act)


# The watch


def asking(driver: Any, wanted: str, hook: Any) -> None:
    """Call this after the first request to JetStream that begins so."""
    plain = driver._server.api
    pending = [hook]

    async def api(subject: str, *rest: Any, **options: Any) -> Any:
        found = await plain(subject, *rest, **options)
        if subject.startswith(wanted) and pending:
            await pending.pop()()
        return found

    driver._server.api = api


def test_counts_have_what_was_stored_before_though_the_watch_is_behind(play: Play) -> None:
    """G2, D13: they wait until all of it has been seen."""

    async def act(stage: Stage) -> None:
        reader, other = await stage.drivers(2)
        tap = Tap(reader)
        await reader.counts(T0)
        tap.shut()
        await other.enqueue([group(job("a"))], T0)

        async def catch_up() -> None:
            asyncio.get_running_loop().call_soon(tap.open)

        asking(reader, "CONSUMER.INFO", catch_up)
        assert [it.ready for it in await reader.counts(T0)] == [1]

    play(act)


def test_counts_have_what_was_stored_before_though_the_watch_begins_again(play: Play) -> None:
    """G2, D13, X2: a new consumer that goes on where the old one was has to catch up as well."""

    async def act(stage: Stage) -> None:
        reader, other = await stage.drivers(2)
        tap = Tap(reader)
        await reader.counts(T0)
        tap.shut()
        await other.enqueue([group(job("a"))], T0)

        async def catch_up() -> None:
            asyncio.get_running_loop().call_soon(tap.open)

        async def begin_again() -> None:
            reader._watch._break("a test wants it")
            asking(reader, "CONSUMER.INFO", catch_up)

        asking(reader, "CONSUMER.INFO", begin_again)
        assert [it.ready for it in await reader.counts(T0)] == [1]

    play(act)


def test_a_reserve_finds_what_was_stored_before_though_the_watch_is_behind(play: Play) -> None:
    """G2, D2: it does not say that there is nothing before it has seen everything."""

    async def act(stage: Stage) -> None:
        reader, other = await stage.drivers(2)
        tap = Tap(reader)
        await reader.counts(T0)
        tap.shut()
        await other.enqueue([group(job("a"))], T0)

        async def catch_up() -> None:
            asyncio.get_running_loop().call_soon(tap.open)

        asking(reader, "CONSUMER.INFO", catch_up)
        assert [it.id for it in await claim(reader)] == ["a"]

    play(act)


# Claims and outcomes


async def two_with_jobs(stage: Stage, *ids: str) -> tuple[Any, Any, Tap, list[Any]]:
    """Two drivers, the watch of the first, and jobs of one page that the first has claimed."""
    one, other = await stage.drivers(2)
    tap = Tap(one)
    await one.enqueue([group(*(job(id) for id in ids))], T0)
    held = await claim(one, limit=1)
    await one._watch.barrier()
    return one, other, tap, held


def opens(tap: Tap) -> Any:
    """Catches up soon."""

    async def catch_up() -> None:
        asyncio.get_running_loop().call_soon(tap.open)

    return catch_up


def test_what_another_has_claimed_is_not_claimed_by_a_page_that_is_out_of_date(play: Play) -> None:
    """D12: the server compares the page, and the claim is repeated with the present one."""

    async def act(stage: Stage) -> None:
        one, other, tap, _ = await two_with_jobs(stage, "a", "b", "c")
        tap.shut()
        (second,) = await claim(other, limit=1)
        asking(one, "CONSUMER.INFO", opens(tap))
        assert [it.id for it in await claim(one)] == ["c"]
        assert await other.settle([ack(second)], at(1)) == ["ok"]

    play(act)


def test_a_claim_of_a_page_that_changes_before_it_is_sent_is_refused(play: Play) -> None:
    """D12: though the watch knows the later revision by then, what was computed from the earlier one is not sent."""

    async def act(stage: Stage) -> None:
        one, other, _, _ = await two_with_jobs(stage, "a", "b", "c")
        plain, claims = one._server.wire, list[Any]()

        async def wire() -> Any:
            if not claims:
                claims.append(None)
                claims[:] = await claim(other, limit=1)
                await one._watch.barrier()
            return await plain()

        one._server.wire = wire
        assert [it.id for it in await claim(one)] == ["c"]
        assert await other.settle([ack(it) for it in claims], at(1)) == ["ok"]

    play(act)


@pytest.mark.parametrize("result", [b"1", LARGE], ids=["small", "large"])
def test_an_outcome_in_a_page_that_is_out_of_date_leaves_the_claims_of_others(play: Play, result: bytes) -> None:
    """D7, D12: the page is compared, and the outcome is written into the present one, and counts once."""

    async def act(stage: Stage) -> None:
        stage.leaves = True  # the large result, under the name of the first attempt
        one, other, tap, (held,) = await two_with_jobs(stage, "a", "b")
        tap.shut()
        (second,) = await claim(other)
        assert await one.settle([ack(held, result=result, increment=RUN)], at(1)) == ["ok"]
        assert await other.settle([ack(second, result=result, increment=RUN)], at(1)) == ["ok"]
        tap.open()
        assert [it.result for it in await one.get(["a", "b"])] == [result, result]
        assert sum(it.count for it in await one.tallies(at(-100))) == 2

    play(act)


def test_an_outcome_in_a_page_that_changes_before_it_is_sent_leaves_the_claims_of_others(play: Play) -> None:
    """D7, D12: though the watch knows the later revision by then."""

    async def act(stage: Stage) -> None:
        stage.leaves = True
        one, other, _, (held,) = await two_with_jobs(stage, "a", "b")
        claims: list[Any] = []

        async def meanwhile() -> None:
            claims.extend(await claim(other))
            await one._watch.barrier()

        Step(one).at("before write", ".o.", meanwhile)
        assert await one.settle([ack(held, result=LARGE)], at(1)) == ["ok"]
        assert await other.settle([ack(it) for it in claims], at(1)) == ["ok"]

    play(act)


def test_nothing_is_refused_by_what_is_in_memory(play: Play) -> None:
    """D6, D7, X2: a claim that the watch has not seen yet can be extended and settled."""

    async def act(stage: Stage) -> None:
        one, other, tap, _ = await two_with_jobs(stage, "a", "b")
        tap.shut()
        (held,) = await claim(other)
        (extended,) = await one.extend_lease([Report(id=held.id, token=token_of(held))], at(1), LEASE)
        assert not isinstance(extended, LeaseError)
        tap.shut()
        assert await one.settle([ack(held)], at(2)) == ["ok"]
        tap.open()

    play(act)


def test_a_late_outcome_does_not_touch_the_result_of_a_later_claim(play: Play) -> None:
    """L5, D7: large results are stored before the page, each under a name of its own."""

    async def act(stage: Stage) -> None:
        stage.leaves = True
        one, other, tap, (held,) = await two_with_jobs(stage, "a")
        tap.shut()
        (again,) = await claim(other, now=at(60))
        assert await other.settle([ack(again, result=LARGE)], at(61)) == ["ok"]
        (late,) = await one.settle([ack(held, result=LARGE + b"late")], at(1))
        assert late != "ok"
        assert [it.result for it in await other.get(["a"])] == [LARGE]
        tap.open()

    play(act)


@pytest.mark.parametrize("part", range(5))
def test_a_token_that_differs_in_any_part_is_another(play: Play, part: int) -> None:
    """D8: whatever of it is changed, for outcomes and heartbeats."""

    async def act(stage: Stage) -> None:
        one, _, _, (held,) = await two_with_jobs(stage, "a", "b")
        parts = token_of(held).split(".")
        parts[part] = {1: "7", 2: "1"}.get(part, parts[part] + "x")
        wrong = ".".join(parts)
        (verdict,) = await one.settle([ack(held, token=wrong)], at(1))
        assert isinstance(verdict, LeaseMismatch)
        (extended,) = await one.extend_lease([Report(id="a", token=wrong)], at(1), LEASE)
        assert isinstance(extended, LeaseMismatch)

    play(act)


def test_a_cancel_of_a_job_that_is_claimed_meanwhile_is_a_request(play: Play) -> None:
    """T3, D12: what a step has read is compared, also the neighbours in the page."""

    async def act(stage: Stage) -> None:
        one, other, _, _ = await two_with_jobs(stage, "a", "b", "c")
        claims: list[Any] = []

        async def meanwhile() -> None:
            claims.extend(await claim(other, limit=1))

        Step(one).at("before write", PAGE, meanwhile)
        assert await one.cancel(["b"], at(1), KEEP) == ["requested"]
        assert await other.settle([ack(it) for it in claims], at(1)) == ["ok"]

    play(act)


# Keys and ids


def test_an_enqueue_that_is_late_with_its_page_does_not_take_the_key_back(play: Play) -> None:
    """I1: another one has waited for its page, and has the key now."""

    async def act(stage: Stage) -> None:
        one, other = await stage.drivers(2)

        async def meanwhile() -> None:
            await other.enqueue([group(job("b", idempotency_key="k"))], T0)

        Step(one).at("before write", PAGE, meanwhile)
        (answers,) = await one.enqueue([group(job("a", idempotency_key="k"))], T0)
        assert not isinstance(answers, HarborError)
        assert [(it.id, it.created) for it in answers] == [("b", False)]
        assert [it and it.id for it in await one.get(["a", "b"])] == [None, "b"]
        assert await one.find_key("k", T0) == "b"

    play(act)


def test_a_flow_that_is_late_with_its_page_does_not_take_the_key_back(play: Play) -> None:
    """I1, D1: the same for the key of a workflow."""

    async def act(stage: Stage) -> None:
        one, other = await stage.drivers(2)

        def flow(name: str) -> Any:
            return group(job(f"{name}1", workflow_id=name), workflow_id=name, key="k")

        async def meanwhile() -> None:
            await other.enqueue([flow("v")], T0)

        Step(one).at("before write", PAGE, meanwhile)
        await one.enqueue([flow("w")], T0)
        assert [it.id for it in await one.workflows(9)] == ["v"]
        assert await one.find_key("k", T0) == "v"

    play(act)


def test_an_enqueue_that_is_late_with_its_page_does_not_store_an_id_twice(play: Play) -> None:
    """R2, D1: another one has found its card without a page, and has the id now."""

    async def act(stage: Stage) -> None:
        one, other = await stage.drivers(2)

        async def meanwhile() -> None:
            assert not isinstance((await other.enqueue([group(job("a", payload=b"2"))], T0))[0], JobExists)

        Step(one).at("before write", PAGE, meanwhile)
        (answer,) = await one.enqueue([group(job("a", payload=b"1"))], T0)
        assert isinstance(answer, JobExists)
        assert [it.payload for it in await claim(one)] == [b"2"]

    play(act)


def test_an_enqueue_whose_cards_were_removed_as_leftovers_stores_no_page_without_them(play: Play) -> None:
    """X1, D1: it was held up for so long that it was taken for dead."""

    async def act(stage: Stage) -> None:
        one, other = await stage.drivers(2)

        async def meanwhile() -> None:
            await other.prune(await other.server_now() + timedelta(minutes=11), 9)

        Step(one).at("before write", PAGE, meanwhile)
        await one.enqueue([group(job("a", payload=b"1", idempotency_key="k"))], T0)
        assert [(it.id, it.payload) for it in await claim(other)] == [("a", b"1")]
        assert await other.find_key("k", T0) == "a"

    play(act)


def test_a_key_that_is_taken_between_look_and_commit_has_one_owner(play: Play) -> None:
    """I1: the note of a key is compared when it is replaced."""

    async def act(stage: Stage) -> None:
        one, other = await stage.drivers(2)
        await one.enqueue([group(job("old", idempotency_key="k", key_expires_at=at(1)))], T0)
        (held,) = await claim(one)
        await one.settle([ack(held)], T0)

        async def meanwhile() -> None:
            await other.enqueue([group(job("b", idempotency_key="k"))], at(5))

        Step(one).at("before write", ".k.", meanwhile)
        (answers,) = await one.enqueue([group(job("a", idempotency_key="k"))], at(5))
        assert not isinstance(answers, HarborError)
        assert [(it.id, it.created) for it in answers] == [("b", False)]
        assert await one.get(["a"]) == [None]

    play(act)


def test_a_key_that_is_taken_by_another_flow_meanwhile_has_one_owner(play: Play) -> None:
    """I1, D1: the note of a key that was not there is compared too."""

    async def act(stage: Stage) -> None:
        one, other = await stage.drivers(2)

        def flow(name: str) -> Any:
            return group(job(f"{name}1", workflow_id=name), workflow_id=name, key="k")

        async def meanwhile() -> None:
            await other.enqueue([flow("v")], T0)

        Step(one).at("before write", ".k.", meanwhile)
        await one.enqueue([flow("w")], T0)
        assert [it.id for it in await one.workflows(9)] == ["v"]

    play(act)


def test_a_new_job_of_an_outcome_may_wait_for_a_known_one(play: Play) -> None:
    """D9, K1: the known one has been stored before, and is told of the new one."""

    async def act(stage: Stage) -> None:
        one, other, _, (held,) = await two_with_jobs(stage, "a", "p")
        assert await one.settle([ack(held, new_jobs=(job("p"), child("z", "p")))], at(1)) == ["ok"]
        (parent,) = await claim(other, now=at(2))
        assert parent.id == "p"
        assert await other.settle([ack(parent)], at(2)) == ["ok"]
        assert [it.id for it in await claim(other, now=at(3))] == ["z"]

    play(act)


# Numbers and totals


@pytest.mark.parametrize(("later", "run"), [(0, None), (1200, RUN)], ids=["same bucket", "another bucket"])
def test_pages_that_two_tidy_at_once_count_once_each(play: Play, later: float, run: Increment | None) -> None:
    """D13: the numbers of the ended and the totals of a minute are compared too."""

    async def act(stage: Stage) -> None:
        one, other = await stage.drivers(2)
        await one.enqueue([group(job("a"))], at(-later))
        (held,) = await claim(one)
        await one.settle([ack(held, increment=run)], at(1))
        await one.counts(T0)

        async def meanwhile() -> None:
            await other.enqueue([group(job("b"))], T0)
            (held,) = await claim(other)
            await other.settle([ack(held, increment=run)], at(1))
            with mock.patch.object(other._store.line, "ended", return_value=[_held(other, "b")]):
                await other.tidy()

        Step(one).at("before write", f"{one._server.prefix}.l.", meanwhile)
        await one.tidy()
        await one.tidy()
        assert [it.done for it in await one.counts(at(2))] == [2]
        assert sum(it.count for it in await one.tallies(at(-100))) == (0 if run is None else 2)
        assert not one._store.line.pages

    play(act)


def _held(driver: Any, id: str) -> Any:
    """The page of a job."""
    return next(
        held
        for held in driver._store.line.pages.values()
        if any(entry is not None and entry.id == id for entry in held.page.entries)
    )


# What the watch misses


def test_what_was_stored_together_is_seen_together(play: Play) -> None:
    """D13: a page that has left the line and the numbers of the ended, though they come in two pieces."""

    async def act(stage: Stage) -> None:
        one, other = await stage.drivers(2)
        tap = Tap(one)
        await one.enqueue([group(job("a"))], T0)
        (held,) = await claim(one)
        await one.settle([ack(held)], at(1))
        assert [it.done for it in await one.counts(T0)] == [1]
        tap.shuts_after = PAGE.encode()
        await other.tidy()
        await tap.has_shut.wait()
        with mock.patch.object(one._watch, "barrier"):
            assert [it.done for it in await one.counts(T0)] == [1]
            assert [it.id for it in await one.query(Filter(), T0, 9)] == ["a"]
            tap.open()
            assert [it.done for it in await one.counts(T0)] == [1]

    play(act)


def test_what_is_left_of_a_batch_is_seen_though_its_end_was_replaced(play: Play) -> None:
    """D2: a later value has taken the place of the last message of the batch before the watch began."""

    async def act(stage: Stage) -> None:
        one, other = await stage.drivers(2)
        await one.enqueue([group(job("a"), job("b", queue="r"))], T0)
        ((await claim(one)), await other.reserve(["r"], T0, LEASE, 1, "w"))
        await one.enqueue([group(job("c"), job("d", queue="r"))], T0)
        await one.reserve(["r"], T0, LEASE, 1, "w")
        third = await stage.driver()
        assert [(it.queue, it.ready, it.claimed) for it in await third.counts(T0)] == [("q", 1, 1), ("r", 0, 2)]

    play(act)


def test_a_message_that_is_lost_is_noticed_at_the_next_one(play: Play) -> None:
    """D2, X2: the watch begins again where it was."""

    async def act(stage: Stage) -> None:
        one, other = await stage.drivers(2)
        tap = Tap(one)
        await one.counts(T0)
        tap.loses = True
        await other.enqueue([group(job("a"))], T0)
        await other.enqueue([group(job("b"))], T0)
        assert [it.ready for it in await one.counts(T0)] == [2]

    play(act)


def test_a_last_message_that_is_lost_is_noticed_by_the_heartbeat(play: Play) -> None:
    """D2, X2: which says how many there were."""

    async def act(stage: Stage) -> None:
        one, other = await stage.drivers(2)
        tap = Tap(one)
        await one.counts(T0)
        tap.loses = True
        await other.enqueue([group(job("a"))], T0)
        before, count = one._watch._consumer, one._watch._count
        await tap.lost.wait()
        headers = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\n\r\n" % (count + 1)
        one._watch._take(NatsMessage(b"inbox", b"", headers, b""))
        broken = one._watch._broken
        assert broken is None or broken.done() or await _soon(broken)
        assert [it.id for it in await claim(one)] == ["a"]
        assert one._watch._consumer != before

    play(act)


def cut_off(driver: HandDriver) -> None:
    """Cut the connection of a driver's watch."""
    wire = driver._watch._wire
    assert wire is not None
    wire.abort()


async def _soon(future: Any) -> bool:
    """Whether a future is done after the callbacks that are due."""
    for _ in range(5):
        await asyncio.sleep(0)
    return bool(future.done())


def test_what_was_stored_while_the_connection_was_lost_is_seen(play: Play) -> None:
    """D2, X2: the watch goes on after the last message that it has seen, not after the last one stored."""

    async def act(stage: Stage) -> None:
        one, other = await stage.drivers(2)
        await one.enqueue([group(job("a"))], T0)
        await one.counts(T0)
        cut_off(one)
        await other.enqueue([group(job("b"))], T0)
        assert [it.ready for it in await one.counts(T0)] == [2]

    play(act)


def test_what_was_removed_while_the_watch_was_away_for_long_is_gone(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D13, D2: marks of removals do not stay for ever, so everything is read again."""

    async def act(stage: Stage) -> None:
        one, other = await stage.drivers(2)
        await one.enqueue([group(job("a"))], T0)
        await one.counts(T0)
        monkeypatch.setattr(watch, "RESUMES_WITHIN", -1.0)
        plain, is_purged = one._server.wire, asyncio.Event()

        async def wire() -> Any:
            await is_purged.wait()
            return await plain()

        one._server.wire = wire  # type: ignore[method-assign]
        cut_off(one)
        await other.cancel(["a"], T0, T0)
        assert await other.delete(["a"]) == ["deleted"]
        await other._server.api(f"STREAM.PURGE.{other._server.line}", {"filter": other._subjects.pages + ">"})
        is_purged.set()
        assert await one.counts(T0) == []

    play(act)


def test_a_waiter_is_woken_by_what_another_has_stored(play: Play) -> None:
    """D13: as soon as the watch has seen it."""

    async def act(stage: Stage) -> None:
        one, other = await stage.drivers(2)
        await one.counts(T0)
        waiter = asyncio.create_task(one.wait_for_work(["q"], 600))
        await _soon(waiter)
        await other.enqueue([group(job("a"))], T0)
        await one._watch.barrier()
        assert await _soon(waiter), "it sleeps on"

    play(act)


# Edges that do not fit a card


def fan_in(number: int) -> list[Any]:
    """A job `z` behind some others."""
    parents = [f"p{it}" for it in range(number)]
    return [*(job(id) for id in parents), child("z", *parents)]


def test_a_late_delete_leaves_the_edges_of_a_new_job_with_the_same_id(play: Play) -> None:
    """R2, K2: the job is enqueued again before what the old one had stored is removed."""

    async def act(stage: Stage) -> None:
        late, other = await stage.drivers(2)
        ids = [it.id for it in fan_in(4)]
        with mock.patch.object(commit, "EDGES", 2):
            await other.enqueue([group(*fan_in(4))], T0)
            await other.cancel(ids, T0, KEEP)

            async def meanwhile() -> None:
                await other.enqueue([group(*fan_in(4))], T0)

            Step(late).at("before write", ".x.", meanwhile)
            assert set(await late.delete(ids[::-1])) == {"deleted"}
        (parents,) = await other.parents(["z"], 10**6)
        assert [it.id for it in parents] == ids[:-1]
        await other.tidy()  # the enqueue has compared the page that the delete emptied

    play(act)


# Reading


def test_a_record_that_changes_while_it_is_read_is_read_as_it_was_or_is(play: Play) -> None:
    """D13: with what its page refers to, which is stored by itself and replaced with it."""

    async def act(stage: Stage) -> None:
        drivers: list[Any] = list(await stage.drivers(2))
        reader, other = drivers
        await other.enqueue([group(job("a"))], T0)
        (held,) = await claim(other)
        await other.settle([put_back(held, last_error="x" * 3000)], T0)

        async def meanwhile() -> None:
            (held,) = await claim(other)
            await other.settle([ack(held, result=b"y" * 3000, last_error="x" * 3000)], T0)

        Step(reader).at("before read", ".o.", meanwhile)
        (found,) = await reader.get(["a"])
        assert (found.state, found.result, found.last_error) == ("done", b"y" * 3000, "x" * 3000)

    play(act)


def test_a_verb_whose_connection_ends_after_its_commit_has_succeeded(play: Play) -> None:
    """X3: what remains is to tell others and to tidy up; its answer is known."""

    async def act(stage: Stage) -> None:
        drivers: list[Any] = list(await stage.drivers(2))
        driver, other = drivers
        await driver.enqueue([group(job("a"), job("b"))], T0)
        held = {it.id: it for it in await claim(driver)}

        async def unreachable() -> None:
            driver._server.wire = mock.AsyncMock(side_effect=DriverUnavailable("gone"))

        wire = driver._server.wire
        Step(driver).at("after write", ".l.s.", unreachable)
        assert await driver.settle([ack(held["a"])], T0) == ["ok"]
        driver._server.wire = wire
        Step(driver).at("after write", ".l.s.", unreachable)
        assert await driver.settle([ack(held["b"], new_jobs=(job("c"),))], T0) == ["ok"]
        assert [it.state for it in await other.get(["a", "b", "c"])] == ["done", "done", "ready"]

    play(act)


# Processes that are stopped for minutes, until the marks of removals have gone


def test_a_replay_that_was_stopped_for_minutes_does_not_bring_an_old_version_back(
    play: Play, nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1, X7: meanwhile the job was replayed, has run and was tidied, and nothing tells that it was in LINE."""

    async def act(stage: Stage) -> None:
        late, other = await with_dead_job(stage, 2)
        await other.tidy()

        def forget() -> None:
            nats.api(f"STREAM.PURGE.{other._server.line}", {"filter": f"{other._server.prefix}.l.s.>"})

        async def restart() -> None:
            monkeypatch.setattr(commit, "FRESH_FOR", 60.0, raising=False)

        async def meanwhile() -> None:
            await other.replay([Replay(id="a")], at(1))
            (held,) = await claim(other, now=at(1))
            await other.settle([ack(held, result=b"1")], at(1))
            await other.tidy()
            forget()
            monkeypatch.setattr(commit, "FRESH_FOR", -1.0, raising=False)  # so late is it
            step.at("before read", ".e.", restart)

        forget()
        step = Step(late)
        step.at("after read", ".e.", meanwhile)
        assert await late.replay([Replay(id="a")], at(2)) == ["not_dead"]
        (found,) = await other.get(["a"])
        assert found is not None
        assert (found.state, found.result) == ("done", b"1")

    play(act)


def test_a_tidy_that_was_stopped_for_minutes_moves_nothing(play: Play) -> None:
    """Q2, X7: what it knows of the line may be of no use any more."""

    async def act(stage: Stage) -> None:
        (driver,) = await with_dead_job(stage, 1)
        await driver.counts(T0)
        begun = asyncio.get_running_loop().time()
        assert await driver._upkeep.tidy(begun - 61) == 0
        assert await driver._upkeep.tidy(begun) == 1

    play(act)
