"""Damaged rows of the SQLite driver: one never stops its queue, and it ends where people look for it (X5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import pytest

from taskharbor.core.filter import Filter
from taskharbor.core.job import Dependency, JobRecord, NewJob
from taskharbor.core.states import Shown, State
from taskharbor.core.transition import Ack, Fail
from taskharbor.driver import Group
from taskharbor.drivers.sqlite import SqliteDriver, reserve
from taskharbor.errors import StoreCorrupt

T = datetime(2026, 3, 1, tzinfo=UTC)
LATER = T + timedelta(seconds=10)
LEASE = timedelta(seconds=5)
NO_TEXT = "CAST(x'41ff' AS TEXT)"

READY = {
    "broken headers": "headers = '{bad'",
    "headers of another shape": "headers = '[1]'",
    "broken tags": "tags = '[1'",
    "broken failures": "failures = '[{'",
    "failures without their fields": "failures = '[{}]'",
    "broken progress": "progress = 'half'",
    "type is no text": f"type = {NO_TEXT}",
    "last_error is no text": f"last_error = {NO_TEXT}",
    "idempotency_key is no text": f"idempotency_key = {NO_TEXT}",
    "workflow_id is no text": f"workflow_id = {NO_TEXT}",
    "original_id is no text": f"original_id = {NO_TEXT}",
    "settled_token is no text": f"settled_token = {NO_TEXT}",
    "headers are no text": f"headers = {NO_TEXT}",
    "failures are no text": f"failures = {NO_TEXT}",
    "created_at too late": "created_at = 9223372036854775807",
    "created_at too early": "created_at = -9223372036854775808",
    "due_at too early": "due_at = -9223372036854775808, place = -9223372036854775808",
    "run_at too late": "run_at = 1000000000000000000",
    "expires_at too late": "expires_at = 1000000000000000000",
    "key_expires_at too late": "key_expires_at = 1000000000000000000",
    "failed_at too late": "failed_at = 1000000000000000000",
    "several": f"headers = '{{bad', type = {NO_TEXT}, created_at = 1000000000000000000",
}
LAPSED = {
    "worker is no text": f"worker = {NO_TEXT}",
    "token is no text": f"token = {NO_TEXT}",
    "lease expired too early": "lease_expires_at = -9223372036854775808",
    "claimed_at too late": "claimed_at = 1000000000000000000",
    "started_at too late": "started_at = 1000000000000000000",
    "broken progress": "progress = '{'",
}


def job(id: str, *parents: Dependency, key: str | None = None) -> NewJob:
    return NewJob(id=id, type="t", queue="q", payload=b"{}", depends_on=parents, idempotency_key=key)


def on(path: Path, act: Callable[[SqliteDriver], Awaitable[None]]) -> None:
    async def scene() -> None:
        driver = await SqliteDriver.open(path)
        try:
            await act(driver)
        finally:
            await driver.close()

    asyncio.run(scene())


def damage(path: Path, id: str, change: str) -> None:
    db = apsw.Connection(str(path))
    db.execute(f"UPDATE job SET {change} WHERE id = ?", (id,))
    assert db.changes() == 1
    db.close()


async def take(driver: SqliteDriver, now: datetime = T, limit: int = 9) -> list[str]:
    return [it.id for it in await driver.reserve(["q"], now, LEASE, limit, "w")]


async def add(driver: SqliteDriver, *jobs: NewJob) -> None:
    await driver.enqueue([Group(jobs=jobs)], T)


async def is_dead(driver: SqliteDriver, id: str, change: str, now: datetime) -> JobRecord:
    (record,) = await driver.get([id])
    assert record is not None
    assert (record.state, record.dlq_reason, record.lease) == (State.DLQ, "undecodable", None)
    assert record.completed_at == record.failed_at == now
    assert record.keep_until == now + timedelta(days=30)
    assert record.settled_token is None
    assert change.split()[0] in (record.last_error or "")
    assert await driver.query(Filter(states=(Shown.DLQ,)), now, 9) == [record]
    (group,) = await driver.dead_groups(Filter(), now, 9)
    assert (group.last_id, group.error, group.first_at) == (id, record.last_error, now)
    assert record.fingerprint == group.fingerprint != ""
    assert record in await driver.query(Filter(), now, 9)
    (counts,) = await driver.counts(now)
    assert counts.dlq == 1
    return record


class TestReserve:
    """One damaged row is dead-lettered; its neighbours are handed out."""

    @pytest.mark.parametrize("by_id", [False, True])
    @pytest.mark.parametrize("change", READY.values(), ids=list(READY))
    def test_a_ready_job(self, change: str, by_id: bool, tmp_path: Path) -> None:
        async def act(driver: SqliteDriver) -> None:
            await add(driver, job("a"), job("bad"), job("c"))
            damage(tmp_path / "jobs.db", "bad", change)
            ids = ["a", "bad", "c"] if by_id else None
            taken = await driver.reserve(["q"], T, LEASE, 9, "w", ids)
            assert [(it.id, it.version, it.state) for it in taken] == [
                ("a", 1, State.INFLIGHT),
                ("c", 1, State.INFLIGHT),
            ]
            assert taken == await driver.get(["a", "c"])
            assert await take(driver) == []
            await is_dead(driver, "bad", change, T)

        on(tmp_path / "jobs.db", act)

    @pytest.mark.parametrize("change", LAPSED.values(), ids=list(LAPSED))
    def test_a_job_whose_lease_lapsed(self, change: str, tmp_path: Path) -> None:
        async def act(driver: SqliteDriver) -> None:
            await add(driver, job("a"), job("bad"), job("c"))
            assert await take(driver) == ["a", "bad", "c"]
            damage(tmp_path / "jobs.db", "bad", change)
            assert sorted(await take(driver, LATER)) == ["a", "c"]
            assert await take(driver, LATER) == []
            await is_dead(driver, "bad", change, LATER)

        on(tmp_path / "jobs.db", act)

    def test_an_id_that_is_not_text_becomes_text(self, tmp_path: Path) -> None:
        async def act(driver: SqliteDriver) -> None:
            await add(driver, job("a"), job("bad"), job("c"))
            damage(tmp_path / "jobs.db", "bad", f"id = {NO_TEXT}")
            with pytest.raises(StoreCorrupt, match="job number 2 is damaged"):
                await driver.query(Filter(), T, 9)
            assert await take(driver) == ["a", "c"]
            await is_dead(driver, "41FF", "id", T)

        on(tmp_path / "jobs.db", act)

    @pytest.mark.parametrize("change", ["tags = '[1'", f"type = {NO_TEXT}"])
    def test_others_take_the_place_of_damaged_ones(self, change: str, tmp_path: Path) -> None:
        async def act(driver: SqliteDriver) -> None:
            await add(driver, *(job(f"{n}") for n in range(6)))
            for id in ("0", "1", "3"):
                damage(tmp_path / "jobs.db", id, change)
            assert await take(driver, limit=2) == ["2", "4"]
            assert await take(driver, limit=2) == ["5"]

        on(tmp_path / "jobs.db", act)

    def test_one_step_dead_letters_a_bounded_number(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reserve, "MOST_DAMAGED", 2)

        async def act(driver: SqliteDriver) -> None:
            await add(driver, *(job(f"{n}") for n in range(4)))
            for id in ("0", "1", "2"):
                damage(tmp_path / "jobs.db", id, "tags = '[1'")
            assert await take(driver, limit=1) == []
            assert await take(driver, limit=1) == ["3"]

        on(tmp_path / "jobs.db", act)

    def test_what_is_whole_is_kept(self, tmp_path: Path) -> None:
        async def act(driver: SqliteDriver) -> None:
            whole = NewJob(id="bad", type="t", queue="q", payload=b"{}", headers={"a": "b"}, tags=("x",))
            await add(driver, whole)
            damage(tmp_path / "jobs.db", "bad", "failures = '[{', created_at = 1000000000000000000")
            assert await take(driver) == []
            record = await is_dead(driver, "bad", "failures", T)
            assert (record.headers, record.tags, record.failures, record.type) == ({"a": "b"}, ("x",), (), "t")
            assert (record.created_at, record.due_at) == (T, T)

        on(tmp_path / "jobs.db", act)

    def test_its_key_stays_and_its_dependants_are_affected(self, tmp_path: Path) -> None:
        async def act(driver: SqliteDriver) -> None:
            await add(
                driver,
                job("bad", key="k"),
                *(job(policy, Dependency("bad", policy)) for policy in ("hold", "cancel", "collect")),
            )
            damage(tmp_path / "jobs.db", "bad", "headers = '{bad'")
            ended = asyncio.create_task(driver.wait_for_end("bad", 60))
            await asyncio.sleep(0)  # it listens from its first step on
            # The one that collects is released by the burial, and taken in its place.
            assert await take(driver) == ["collect"]
            await asyncio.wait_for(ended, 5)
            assert await driver.find_key("k", T) == "bad"
            states = [it and it.state for it in await driver.get(["hold", "cancel", "collect"])]
            assert states == [State.WAITING, State.CANCELLED, State.INFLIGHT]

        on(tmp_path / "jobs.db", act)


class TestLook:
    """A call that meets a damaged, unclaimed row raises an error that names it and the fix."""

    @pytest.mark.parametrize("change", READY.values(), ids=list(READY))
    def test_get_and_query_name_it(self, change: str, tmp_path: Path) -> None:
        async def act(driver: SqliteDriver) -> None:
            await add(driver, job("a"), job("bad"), job("c"))
            damage(tmp_path / "jobs.db", "bad", change)
            with pytest.raises(StoreCorrupt, match=r"job bad is damaged.*dead-letter queue"):
                await driver.get(["bad"])
            with pytest.raises(StoreCorrupt, match=r"job bad is damaged.*dead-letter queue"):
                await driver.query(Filter(), T, 9)
            assert [it and it.id for it in await driver.get(["a", "c"])] == ["a", "c"]
            assert [it.id for it in await driver.query(Filter(), T, 1)] == ["c"]

        on(tmp_path / "jobs.db", act)

    def test_a_query_by_tag_names_it(self, tmp_path: Path) -> None:
        async def act(driver: SqliteDriver) -> None:
            await add(driver, job("a"), job("bad"))
            damage(tmp_path / "jobs.db", "bad", "tags = '[1'")
            with pytest.raises(StoreCorrupt, match="job bad is damaged"):
                await driver.query(Filter(tag="x"), T, 9)

        on(tmp_path / "jobs.db", act)

    @pytest.mark.parametrize("change", [f"queue = {NO_TEXT}", "place = -9223372036854775808"])
    def test_counts_name_it(self, change: str, tmp_path: Path) -> None:
        async def act(driver: SqliteDriver) -> None:
            await add(driver, job("a"), job("bad"))
            damage(tmp_path / "jobs.db", "bad", change)
            with pytest.raises(StoreCorrupt, match="job bad is damaged"):
                await driver.counts(T)

        on(tmp_path / "jobs.db", act)

    @pytest.mark.parametrize(
        "change", [f"fingerprint = {NO_TEXT}", f"last_error = {NO_TEXT}", "completed_at = 1000000000000000000"]
    )
    def test_a_look_at_the_dead_raises(self, change: str, tmp_path: Path) -> None:
        async def act(driver: SqliteDriver) -> None:
            await add(driver, job("a"), job("bad"))
            for held in await driver.reserve(["q"], T, LEASE, 9, "w"):
                assert held.lease is not None
                fail = Fail(id=held.id, token=held.lease.token, keep_until=LATER, reason="failed", fingerprint="f")
                await driver.settle([fail], T)
            damage(tmp_path / "jobs.db", "bad", change)
            for look in (driver.get(["bad"]), driver.query(Filter(), T, 9), driver.dead_groups(Filter(), T, 9)):
                with pytest.raises(StoreCorrupt, match="job bad is damaged"):
                    await look

        on(tmp_path / "jobs.db", act)

    @pytest.mark.parametrize("change", [f"workflow_id = {NO_TEXT}", "created_at = 9223372036854775807"])
    def test_workflows_name_it(self, change: str, tmp_path: Path) -> None:
        async def act(driver: SqliteDriver) -> None:
            await add(driver, NewJob(id="bad", type="t", queue="q", payload=b"{}", workflow_id="w"))
            damage(tmp_path / "jobs.db", "bad", change)
            with pytest.raises(StoreCorrupt, match="job bad is damaged"):
                await driver.workflows(9)

        on(tmp_path / "jobs.db", act)

    def test_the_next_due_time_is_not_one_that_no_calendar_has(self, tmp_path: Path) -> None:
        async def act(driver: SqliteDriver) -> None:
            await add(driver, job("bad"))
            damage(tmp_path / "jobs.db", "bad", "place = 9223372036854775807, due_at = 9223372036854775807")
            assert await driver.next_due(["q"]) is None

        on(tmp_path / "jobs.db", act)


STEPPED = {
    "type is no text": f"type = {NO_TEXT}",
    "original_id is no text": f"original_id = {NO_TEXT}",
    "idempotency_key is no text": f"idempotency_key = {NO_TEXT}",
    "due_at too early": "due_at = -9223372036854775808",
}
CHANGES = pytest.mark.parametrize("change", STEPPED.values(), ids=STEPPED)


class TestSteps:
    """Acts of operators and upkeep on the other jobs, and on the damaged job itself (X5)."""

    @CHANGES
    def test_a_cancel_and_a_delete(self, change: str, tmp_path: Path) -> None:
        async def act(driver: SqliteDriver) -> None:
            await add(driver, job("bad"), job("good"))
            damage(tmp_path / "jobs.db", "bad", change)
            assert await driver.cancel(["bad", "good"], T, LATER) == ["cancelled"] * 2
            assert await driver.delete(["bad", "good"]) == ["deleted"] * 2

        on(tmp_path / "jobs.db", act)

    @CHANGES
    def test_a_sweep_and_a_prune(self, change: str, tmp_path: Path) -> None:
        async def act(driver: SqliteDriver) -> None:
            for id in ("bad", "good"):
                await add(driver, NewJob(id=id, type="t", queue="q", payload=b"{}", expires_at=LATER, workflow_id="w"))
            damage(tmp_path / "jobs.db", "bad", change)
            assert await driver.sweep(LATER, LATER, 9) == 2
            damage(tmp_path / "jobs.db", "bad", f"{change.replace('due_at', 'completed_at')}")
            assert await driver.prune(LATER, 9) == 2

        on(tmp_path / "jobs.db", act)

    @CHANGES
    def test_the_end_of_a_parent(self, change: str, tmp_path: Path) -> None:
        async def act(driver: SqliteDriver) -> None:
            await add(driver, job("p"), job("bad", Dependency("p", "cancel")), job("x"))
            damage(tmp_path / "jobs.db", "bad", change)
            held = await driver.reserve(["q"], T, LEASE, 9, "w")
            tokens = {it.id: it.lease.token for it in held if it.lease is not None}
            fail = Fail(id="p", token=tokens["p"], keep_until=LATER, reason="r", fingerprint="f")
            assert await driver.settle([fail, Ack(id="x", token=tokens["x"], keep_until=LATER)], T) == ["ok", "ok"]
            assert [it.state for it in await driver.get(["p", "x"]) if it is not None] == [State.DLQ, State.DONE]

        on(tmp_path / "jobs.db", act)

    def test_a_reserve_buries_a_damaged_parent_of_a_damaged_job(self, tmp_path: Path) -> None:
        async def act(driver: SqliteDriver) -> None:
            await add(driver, job("p"), job("bad", Dependency("p", "cancel")), job("good"))
            for id in ("p", "bad"):
                damage(tmp_path / "jobs.db", id, f"type = {NO_TEXT}")
            assert await take(driver) == ["good"]

        on(tmp_path / "jobs.db", act)

    def test_times_that_no_calendar_has(self, tmp_path: Path) -> None:
        async def act(driver: SqliteDriver) -> None:
            await add(driver, job("keyed", key="k"), job("other"))
            db = apsw.Connection(str(tmp_path / "jobs.db"))
            db.execute(f"UPDATE keys SET expires_at = 1000000000000000000, owner = {NO_TEXT}")
            assert db.changes() == 1
            db.close()
            assert await driver.cancel(["keyed", "other"], T, LATER) == ["cancelled"] * 2
            await add(driver, NewJob(id="m", type="t", queue="q", payload=b"{}", workflow_id="w"))
            assert await driver.cancel(["m"], T, LATER) == ["cancelled"]
            damage(tmp_path / "jobs.db", "m", "keep_until = 1000000000000000000")
            assert await driver.prune(LATER, 9) == 2
            assert await driver.get(["keyed", "other"]) == [None, None]

        on(tmp_path / "jobs.db", act)
