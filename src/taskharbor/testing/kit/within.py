"""D13, `Within`: calls in a transaction commit with everything else in it, or not at all.

Nothing is written outside an open transaction: an engine may have one writer at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar, cast

import pytest
from msgspec.structs import replace

from taskharbor.core.job import NewJob
from taskharbor.core.transition import Transition
from taskharbor.driver import Enqueued, Extended, Group, OwnTransaction, Report, Transaction, at_once
from taskharbor.errors import DriverClosed, InvalidJob
from taskharbor.testing.kit.beside import WAKE, woken
from taskharbor.testing.kit.jobs import AFTER, SETTLES, ack, at, child, each_kind, fail, group, job, put_back, token_of
from taskharbor.testing.kit.records import FULL
from taskharbor.testing.kit.scene import Cases, Hand, Scene, named
from taskharbor.testing.kit.totals import increment

R = TypeVar("R")
MANY = 40
every_way = pytest.mark.parametrize("way", ["awaited", "blocking"])


class Inside:
    """An open transaction, with the helpers that cases use."""

    def __init__(self, s: Scene, tx: Transaction) -> None:
        self.s = s
        self.tx = tx

    async def enqueue(self, *groups: Group) -> list[Any]:
        """`Scene.enqueue` in the transaction."""
        return named(await self._done(self.tx.enqueue(groups, self.s.now)))

    async def add(self, *jobs: NewJob, **options: Any) -> tuple[Enqueued, ...]:
        """`Scene.add` in the transaction."""
        [result] = await self.enqueue(group(*jobs, **options))
        assert isinstance(result, tuple), result
        return cast("tuple[Enqueued, ...]", result)

    async def settle(self, *transitions: Transition) -> list[str]:
        """`Scene.settle` in the transaction."""
        return named(await self._done(self.tx.settle(transitions, self.s.now)))

    async def write(self, text: str) -> None:
        """Insert a row of the application."""
        await self.s.application.write(self.tx.handle, text)

    async def _done(self, work: Coroutine[Any, Any, R]) -> R:
        """Call a blocking function off the loop."""
        return at_once(work) if self.tx.blocks else await work


class Joined(Inside):
    """A transaction of the application."""

    def __init__(self, s: Scene, hand: Hand) -> None:
        super().__init__(s, s.within.within(hand.handle))
        assert self.tx.handle is hand.handle
        self.commit, self.rollback = hand.commit, hand.rollback


class Lent(Inside):
    """A transaction that the driver began."""

    def __init__(self, s: Scene, tx: OwnTransaction) -> None:
        super().__init__(s, tx)
        self._own = tx

    async def commit(self) -> None:
        """Commit."""
        await self._done(self._own.commit())


@asynccontextmanager
async def joined(s: Scene) -> AsyncGenerator[Joined]:
    """The driver in a transaction of the application."""
    async with s.application.begin() as hand:
        yield Joined(s, hand)


@asynccontextmanager
async def lent(s: Scene, way: str) -> AsyncGenerator[Lent]:
    """The application in a transaction of the driver."""
    if way == "awaited":
        async with s.within.transaction() as tx:
            assert not tx.blocks
            yield Lent(s, tx)
    else:
        with s.within.transaction_blocking() as tx:
            assert tx.blocks
            yield Lent(s, tx)


class WithinKit(Cases):
    """`within`: the driver joins the application's own transaction."""

    async def test_D13_a_job_is_there_once_the_transaction_commits(self, s: Scene) -> None:
        """D13, G2: invisible to others before the commit, complete after it with the rest; and it runs."""
        other = await s.another()
        async with joined(s) as tx:
            await tx.write("order 1")
            assert await tx.add(job("a"), job("b")) == (Enqueued("a", True), Enqueued("b", True))
            assert (await s.all(), await other.all(), s.application.rows()) == ([], [], [])
            await tx.commit()
        assert s.application.rows() == ["order 1"]
        assert await other.states("a", "b") == ["ready", "ready"]
        assert await other.order() == ["a", "b"]

    @pytest.mark.parametrize("commits", [False, True])
    async def test_D9_totals_are_part_of_the_transaction(self, s: Scene, commits: bool) -> None:
        """D9, D13: a run is counted if its settle commits, and not otherwise."""
        held = [await s.held("a"), await s.held("b")]
        async with joined(s) as tx:
            runs = zip(held, (None, b"1"), strict=True)
            acks = [ack(it, started_at=s.now, increment=increment(it), result=result) for it, result in runs]
            assert await tx.settle(*acks) == ["ok", "ok"]
            assert await s.counters.tallies(at(-999)) == []
            await (tx.commit if commits else tx.rollback)()
        assert [tally.count for tally in await s.counters.tallies(at(-999))] == ([2] if commits else [])

    async def test_D13_a_rollback_leaves_no_trace(self, s: Scene) -> None:
        """D13, I2, K1: of jobs, edges and keys, a flow's included; everything can be enqueued again afterwards."""
        flow: dict[str, Any] = {"key": "flow", "key_expires_at": at(99), "workflow_id": "w"}
        members = job("p", workflow_id="w"), child("c", "p", workflow_id="w")
        await s.add(job("old"))
        async with s.nothing_changes(), joined(s) as tx:
            await tx.write("order 1")
            await tx.add(job("a", idempotency_key="k", key_expires_at=at(99)))
            await tx.add(*members, **flow)
            await tx.rollback()
        assert s.application.rows() == []
        assert await s.look.find_key("k", s.now) is None
        assert await s.add(job("a", idempotency_key="k")) == (Enqueued("a", True),)
        assert await s.add(*members, **flow) == (Enqueued("p", True), Enqueued("c", True))

    async def test_D13_an_uncommitted_transaction_leaves_no_trace(self, s: Scene) -> None:
        """D13: an exception rolls the jobs back."""
        async with s.nothing_changes():
            with suppress(ZeroDivisionError):
                async with joined(s) as tx:
                    await tx.add(job("a", idempotency_key="k"))
                    raise ZeroDivisionError
        assert await s.look.find_key("k", s.now) is None

    async def test_R1_the_record_is_the_same_as_by_a_plain_enqueue(self, s: Scene) -> None:
        """R1, R3: every option arrives."""
        await s.add(job("plain", **FULL | {"idempotency_key": "1"}))
        async with joined(s) as tx:
            await tx.add(job("joined", **FULL | {"idempotency_key": "2"}))
            await tx.commit()
        plain = await s.get("plain")
        assert await s.get("joined") == replace(plain, id="joined", idempotency_key="2")

    async def test_D11_jobs_of_a_transaction_keep_their_order(self, s: Scene) -> None:
        """D11, D1: over several calls, with enough jobs that a driver may store them in bulk."""
        await s.add(job("first"))
        ids = [f"j{n:04}" for n in range(600)]
        async with joined(s) as tx:
            for id in ids[:3]:
                await tx.add(job(id))
            await tx.add(*(job(id) for id in ids[3:]))
            await tx.commit()
        assert await s.order() == ["first", *ids]

    async def test_I1_a_known_key_resolves_inside_of_a_transaction(self, s: Scene) -> None:
        """I1, I3: one committed before, and one of the same transaction; after the commit it holds for all."""
        await s.add(job("old", idempotency_key="k", payload=b"1"))
        async with joined(s) as tx:
            assert await tx.add(job("a", idempotency_key="k", payload=b"1")) == (Enqueued("old", False),)
            assert await tx.add(job("b", idempotency_key="k", payload=b"2")) == (Enqueued("old", False, False),)
            assert await tx.add(job("c", idempotency_key="new"), job("d")) == (Enqueued("c", True), Enqueued("d", True))
            assert await tx.add(job("e", idempotency_key="new")) == (Enqueued("c", False),)
            await tx.commit()
        assert await s.add(job("f", idempotency_key="new")) == (Enqueued("c", False),)
        assert sorted(record.id for record in await s.all()) == ["c", "d", "old"]

    async def test_I1_a_known_flow_resolves_inside_of_a_transaction(self, s: Scene) -> None:
        """I1, D1: nothing of the second one is stored."""
        flow: dict[str, Any] = {"key": "flow", "key_expires_at": at(99)}
        await s.add(job("p", workflow_id="w"), child("c", "p", workflow_id="w"), workflow_id="w", **flow)
        async with s.nothing_changes(), joined(s) as tx:
            again = job("p2", workflow_id="w2"), child("c2", "p2", workflow_id="w2")
            assert not any(one.created for one in await tx.add(*again, workflow_id="w2", **flow))
            await tx.commit()

    async def test_D1_a_refused_group_leaves_the_transaction_as_it_was(self, s: Scene) -> None:
        """D1, R2: its neighbours, what came before and what comes after are committed, nothing of the group is."""
        await s.add(job("old"))
        async with joined(s) as tx:
            await tx.write("order 1")
            assert await tx.enqueue(
                group(job("a", idempotency_key="k"), job("old")), group(job("b")), group(job("c"), child("d", "nobody"))
            ) == ["JobExists", (Enqueued("b", True),), "UnknownDependency"]
            assert await tx.add(job("e", idempotency_key="k")) == (Enqueued("e", True),)
            await tx.write("order 2")
            await tx.commit()
        assert s.application.rows() == ["order 1", "order 2"]
        assert await s.states("a", "b", "c", "d", "e") == [None, "ready", None, None, "ready"]

    @each_kind
    async def test_D7_a_settle_is_part_of_the_transaction(self, s: Scene, kind: str) -> None:
        """D7, D9, K2: with its new jobs and its effect on dependants; nothing changes before the commit."""
        await s.add(job("a"), child("c", "a", policy="collect"))
        held = await s.claim("a")
        settle = SETTLES[kind](held, new_jobs=(job("new", queue="x"),))
        async with s.nothing_changes(), joined(s) as tx:
            await tx.write("order 1")
            assert await tx.settle(settle) == ["ok"]
            await tx.rollback()
        async with joined(s) as tx:
            await tx.write("order 2")
            assert await tx.settle(settle) == ["ok"]
            assert await s.states("a", "c", "new") == ["inflight", "waiting", None]
            await tx.commit()
        assert s.application.rows() == ["order 2"]
        freed = "waiting" if kind == "put_back" else "ready"
        assert await s.states("a", "c", "new") == [AFTER[kind], freed, "ready"]
        assert await s.settle(settle) == ["replayed"]

    async def test_D8_refusals_are_the_same_inside_of_a_transaction(self, s: Scene) -> None:
        """D8, D7: each item is judged alone, and a refused one changes nothing."""
        done, gone, stolen = await s.held("done"), await s.held("gone", lease=5), await s.held("stolen", lease=5)
        await s.end(ack(done))
        s.tick(5)
        mine = await s.held("mine")
        await s.claim("stolen")
        async with joined(s) as tx:
            refused: list[Transition] = [ack(gone), fail(stolen), put_back(mine, token="?"), ack(mine, id="nobody")]
            verdicts = await tx.settle(ack(done), *refused, ack(mine))
            await tx.commit()
        reasons = ["LeaseExpired", "LeaseMismatch", "LeaseMismatch", "JobNotInflight"]
        assert verdicts == ["replayed", *reasons, "ok"]
        assert await s.states("done", "gone", "stolen", "mine") == ["done", "inflight", "inflight", "done"]

    async def test_D13_a_commit_wakes_waiters_for_work(self, s: Scene) -> None:
        """D13: as by a plain enqueue."""

        async def act(number: int) -> None:
            async with joined(s) as tx:
                await tx.add(job(f"j{number}"))
                await tx.commit()

        await woken(lambda: s.waits.wait_for_work(["q"], 600), act)

    async def test_D13_an_unknown_handle_is_refused(self, s: Scene) -> None:
        """D13, X5: at once, not at the first verb."""
        for wrong in (object(), None, "BEGIN"):
            with pytest.raises(InvalidJob):
                s.within.within(wrong)

    async def test_D10_after_close_nothing_joins_a_transaction(self, s: Scene) -> None:
        """D10: and the transaction stays usable."""
        async with s.application.begin() as hand:
            await s.driver.close()
            with pytest.raises(DriverClosed):
                s.within.within(hand.handle)
            await s.application.write(hand.handle, "order 1")
            await hand.commit()
        assert s.application.rows() == ["order 1"]


class OwnTransactionKit(WithinKit):
    """`transaction` and `transaction_blocking`, too: the application's writes and the end of a job are one commit."""

    @every_way
    async def test_D13_writes_and_a_settle_are_one_commit(self, s: Scene, way: str) -> None:
        """D13, D9: with whatever else was enqueued in it, also through its handle; invisible before."""
        await s.add(job("a"), child("c", "a"))
        held = await s.claim("a")
        async with lent(s, way) as tx:
            await tx.write("paid")
            await tx.add(job("beside"))
            await Inside(s, s.within.within(tx.tx.handle)).add(job("joined"))
            assert await tx.settle(ack(held, result=b"42", new_jobs=(job("new"),))) == ["ok"]
            assert s.application.rows() == []
            assert await s.states("a", "c", "new", "beside", "joined") == ["inflight", "waiting", None, None, None]
            await tx.commit()
            assert s.application.rows() == ["paid"]
            assert await s.states("a", "c", "new", "beside", "joined") == ["done", "ready", "ready", "ready", "ready"]
        assert (await s.get("a")).result == b"42"

    @every_way
    async def test_D13_without_a_commit_nothing_happened(self, s: Scene, way: str) -> None:
        """D13, G1: whether the block ends or raises; the lease is unchanged."""
        held = await s.held()
        for error in (None, ZeroDivisionError):
            async with s.nothing_changes():
                with suppress(ZeroDivisionError):
                    async with lent(s, way) as tx:
                        await tx.write("paid")
                        await tx.add(job("b", idempotency_key="k"))
                        assert await tx.settle(ack(held)) == ["ok"]
                        if error is not None:
                            raise error
        assert s.application.rows() == []
        assert await s.look.find_key("k", s.now) is None
        await s.end(ack(held))

    @every_way
    @pytest.mark.parametrize("stolen", [False, True], ids=["expired", "stolen"])
    async def test_L5_a_lost_lease_is_refused_and_takes_the_writes_with_it(
        self, s: Scene, way: str, stolen: bool
    ) -> None:
        """L5, D7, D8: nothing of the late holder is committed; the new one ends the job."""
        held = await s.held(lease=10)
        s.tick(10)
        thief = await s.claim("a") if stolen else None
        async with s.nothing_changes(), lent(s, way) as tx:
            await tx.write("paid")
            refused = "LeaseMismatch" if stolen else "LeaseExpired"
            assert await tx.settle(ack(held, new_jobs=(job("new"),))) == [refused]
        assert s.application.rows() == []
        await s.end(ack(thief or await s.claim("a")))

    @every_way
    async def test_D8_a_second_settle_of_one_token_is_replayed(self, s: Scene, way: str) -> None:
        """D8, X3: in the same transaction, in the next one, and outside of it: an unknown outcome becomes known."""
        held = await s.held()
        async with lent(s, way) as tx:
            await tx.write("paid")
            assert await tx.settle(ack(held)) == ["ok"]
            assert await tx.settle(ack(held)) == ["replayed"]
            await tx.commit()
        async with s.nothing_changes(), lent(s, way) as tx:
            await tx.write("paid again")
            assert await tx.settle(ack(held)) == ["replayed"]
        assert s.application.rows() == ["paid"]
        assert await s.settle(ack(held)) == ["replayed"]

    async def test_G3_of_two_transactions_under_one_lease_one_commits(self, s: Scene) -> None:
        """G3, D7: the other one waits, and is refused."""
        held = await s.held()

        async def finish(text: str) -> str:
            async with lent(s, "awaited") as tx:
                await tx.write(text)
                [verdict] = await tx.settle(ack(held))
                if verdict == "ok":
                    await tx.commit()
                return verdict

        assert sorted(await asyncio.gather(finish("a"), finish("b"))) == ["ok", "replayed"]
        assert len(s.application.rows()) == 1

    @every_way
    @pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
    async def test_D13_until_the_end_no_other_call_gets_a_settled_job(self, s: Scene, way: str, commits: bool) -> None:
        """D13, L5: a renewal finds the job's new state, and a claim after expiry does not take it away."""
        held = await s.held(lease=10)
        late = await s.another()
        late.tick(60)
        async with lent(s, way) as tx:
            await tx.settle(ack(held))
            renewing = asyncio.ensure_future(s.extend(Report("a", token_of(held))))
            claiming = asyncio.ensure_future(late.reserve()) if commits else None
            await asyncio.sleep(0)
            if commits:
                await tx.commit()
        assert await renewing == ["JobNotInflight" if commits else Extended(at(30), False)]
        assert claiming is None or await claiming == []

    @every_way
    async def test_D13_transactions_come_and_go(self, s: Scene, way: str) -> None:
        """D13: more than could be open at once, and however one ended, the next starts fresh."""
        for number in range(MANY):
            with suppress(ZeroDivisionError):
                async with asyncio.timeout(WAKE), lent(s, way) as tx:
                    await tx.add(job(f"j{number:02}"))
                    if number % 2:
                        raise ZeroDivisionError
                    await tx.commit()
        assert await s.order() == [f"j{number:02}" for number in range(0, MANY, 2)]

    @every_way
    async def test_D10_after_close_there_are_no_transactions(self, s: Scene, way: str) -> None:
        """D10: with an error, before anything is written."""
        await s.driver.close()
        with pytest.raises(DriverClosed):
            async with lent(s, way):
                pass
