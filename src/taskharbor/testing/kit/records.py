"""R: stored values come back exactly as given, on every path by which they can be stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskharbor.core.filter import Filter
from taskharbor.core.job import Failure, JobRecord, NewJob
from taskharbor.core.states import State
from taskharbor.driver import Enqueued
from taskharbor.testing.kit.jobs import ack, at, expiry_of, group, job, lease_of, put_back
from taskharbor.testing.kit.scene import Cases, Scene

FULL: dict[str, Any] = {
    "type": "shop.mail.welcome",
    "queue": "mail",
    "payload": b'{"v":1,"args":{"user":42}}',
    "priority": -7,
    "run_at": at(-3.000001),
    "expires_at": at(7200.000001),
    "timeout": 12.75,
    "max_attempts": 9,
    "max_crashes": 3,
    "idempotency_key": "welcome:42",
    "key_expires_at": at(86400.5),
    "headers": {"traceparent": "00-ab-cd-01", "tenant": "Ü"},
    "tags": ("spring", "vip"),
    "workflow_id": "flow-1",
    "kept": True,
}
FAILURES = tuple(
    Failure(
        attempt=number,
        kind="shop.CardDeclined",
        message=f"déclinée {number} \n\t🜁",
        traceback="Traceback (most recent call last):\n  …",
        failed_at=at(number + 0.000003),
        started_at=at(number) if number % 2 else None,
        worker="host-1/4711" if number % 3 else None,
    )
    for number in range(20)
)
VALUES: dict[str, dict[str, Any]] = {
    "nothing but the minimum": {"payload": b""},
    "every field": FULL,
    "max_attempts None": {"max_attempts": None},
    "max_attempts 1": {"max_attempts": 1},
    "max_crashes None": {"max_crashes": None},
    "timeout None": {"timeout": None},
    "timeout fraction": {"timeout": 0.1},
    "lowest priority": {"priority": -100},
    "highest priority": {"priority": 100},
    "no headers": {"headers": {}},
    "many headers": {"headers": {f"h{n}": "ß" * n for n in range(50)}},
    "tags in order": {"tags": ("b", "a", "ü", "b c")},
    "no key": {"idempotency_key": None},
    "key without end": {"idempotency_key": "for ever"},
    "run_at far": {"run_at": datetime(9999, 12, 29, 23, 59, 59, 999999, tzinfo=UTC)},
    "run_at long ago": {"run_at": datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)},
    "run_at one microsecond": {"run_at": at(1) + timedelta(microseconds=1)},
    "expires_at": {"expires_at": at(59.999999)},
    "workflow": {"workflow_id": "wf ∞"},
}
SYNTAX = ["'; drop table jobs; --", "{x}:*[y]", "%_"]
NAMES = ["plain", "mit Leerzeichen", "Größe/été#?&%", "日本語", "🜁🜂🜃", "a" * 255, *SYNTAX]


def expected(new: NewJob, now: datetime) -> JobRecord:
    """The record that a new job must become, spelled out here and not by the core."""
    given = {name: getattr(new, name) for name in NewJob.__struct_fields__ if name != "depends_on"}
    return JobRecord(**given, state=State.READY, created_at=now, due_at=new.run_at or now)


class RecordCases(Cases):
    """R1-R5."""

    @pytest.mark.parametrize("what", list(VALUES))
    async def test_R1_a_value_comes_back_as_it_was(self, s: Scene, what: str) -> None:
        """R1, R3, R5: options are stored as resolved, a missing one is the default, and None differs from it."""
        assert FULL.keys() == set(NewJob.__struct_fields__) - {"id", "depends_on"}, "a new field needs a value here"
        new = job(**VALUES[what])
        await s.add(new)
        assert await s.get() == expected(new, s.now)

    @pytest.mark.parametrize("text", NAMES)
    async def test_R1_any_text_names_ids_queues_tasks_keys_tags_and_headers(self, s: Scene, text: str) -> None:
        """R1, X5: names are data, never syntax."""
        options = {"queue": text, "type": text, "idempotency_key": text, "tags": (text,), "headers": {text: text}}
        new = job(text, **options)
        await s.add(new, job("other"))
        assert await s.get(text) == expected(new, s.now)
        assert await s.look.find_key(text, s.now) == text
        assert [found.id for found in await s.look.query(Filter(queue="q"), s.now, 9)] == ["other"]
        [claimed] = await s.reserve(9, queues=[text])
        await s.end(ack(claimed))
        assert await s.states(text) == ["done"]

    @pytest.mark.parametrize(
        "payload",
        [b"", b"\x00", bytes(range(256)) * 3, "ünï".encode(), b"null", bytes(512 * 1024)],
        ids=["empty", "zero", "all-bytes", "unicode", "null", "512KiB"],
    )
    async def test_R1_payload_and_result_are_opaque_bytes(self, s: Scene, payload: bytes) -> None:
        """R1, R4: bytes come back untouched, up to the limit, and nothing is truncated."""
        await s.add(job(payload=payload))
        claimed = await s.claim("a")
        assert claimed.payload == payload
        await s.end(ack(claimed, result=payload))
        await s.expect(payload=payload, result=payload)

    async def test_R1_no_result_is_not_an_empty_result(self, s: Scene) -> None:
        """R1: None and b"" are different results."""
        first, second = await s.held("a"), await s.held("b")
        await s.end(ack(first, result=None), ack(second, result=b""))
        assert ((await s.get("a")).result, (await s.get("b")).result) == (None, b"")

    async def test_R1_the_failure_history_comes_back_exactly(self, s: Scene) -> None:
        """R1, F10: the last 20 failures with every part, in order."""
        held = await s.held()
        await s.end(put_back(held, failures=FAILURES, attempts=20, last_error="é" * 4000, failed_at=at(0.999999)))
        await s.expect(failures=FAILURES, attempts=20, last_error="é" * 4000, failed_at=at(0.999999))

    async def test_R1_the_lease_is_part_of_the_record(self, s: Scene) -> None:
        """R1: token, version, expiry, worker and time of the claim are stored."""
        claimed = await s.held(lease=12.000007)
        assert await s.get() == claimed
        lease = lease_of(claimed)
        assert lease.token
        assert (lease.version, claimed.version, lease.worker) == (1, 1, "w")
        assert (lease.claimed_at, lease.expires_at) == (s.now, at(12.000007))

    @pytest.mark.parametrize("count", [2, 300])
    async def test_R1_many_jobs_in_one_group_keep_their_own_fields(self, s: Scene, count: int) -> None:
        """R1, D1: jobs of a batch are not mixed up."""
        jobs = [job(f"j{n}", payload=b"%d" % n, priority=n % 7, tags=(f"t{n}",)) for n in range(count)]
        assert await s.add(*jobs) == tuple(Enqueued(new.id, True) for new in jobs)
        found = await s.look.get([new.id for new in jobs])
        assert found == [expected(new, s.now) for new in jobs]

    async def test_R2_an_id_that_exists_is_JobExists_and_changes_nothing(self, s: Scene) -> None:
        """R2: the second job of an id is refused."""
        await s.add(job("a", payload=b"first"))
        assert await s.without_effect(s.enqueue(group(job("a", payload=b"second")))) == ["JobExists"]

    @pytest.mark.parametrize("place", [0, 1, 2])
    async def test_R2_JobExists_stores_nothing_of_the_group(self, s: Scene, place: int) -> None:
        """R2: whichever member exists, none of its group is stored, no key is taken."""
        await s.add(job("old"))
        members = [job("x", idempotency_key="kx"), job("y", idempotency_key="ky")]
        members.insert(place, job("old"))
        assert await s.without_effect(s.enqueue(group(*members))) == ["JobExists"]
        assert [await s.look.find_key(key, s.now) for key in ("kx", "ky")] == [None, None]

    async def test_R2_an_id_twice_in_one_group_is_JobExists(self, s: Scene) -> None:
        """R2: a group cannot hold the same id twice."""
        assert await s.enqueue(group(job("a"), job("b"), job("a"))) == ["JobExists"]
        assert await s.all() == []

    @pytest.mark.parametrize("microseconds", [0, 1, 999, 1000, 500_000, 999_999])
    async def test_R3_times_are_exact_to_the_microsecond(self, s: Scene, microseconds: int) -> None:
        """R3: no driver rounds a time, and every time comes back aware, in UTC."""
        moment = at(100).replace(microsecond=microseconds)
        s.now = moment
        await s.add(job(run_at=moment, expires_at=moment + timedelta(seconds=9)))
        claimed = await s.claim("a")
        await s.end(put_back(claimed, run_at=moment, failed_at=moment))
        await s.end(ack(await s.claim("a"), failed_at=moment, keep_until=moment + timedelta(days=1)))
        record = await s.get()
        times = [record.run_at, record.created_at, record.due_at, record.failed_at, record.completed_at]
        assert times == [moment] * 5
        assert expiry_of(claimed) == moment + timedelta(seconds=30)
        assert record.keep_until == moment + timedelta(days=1)
        assert {time.utcoffset() for time in times if time is not None} == {timedelta(0)}

    async def test_R3_a_microsecond_decides_whether_a_job_is_due(self, s: Scene) -> None:
        """R3, D3: no rounding in comparisons either."""
        await s.add(job(run_at=s.now + s.harness.due_resolution + timedelta(microseconds=1)))
        assert await s.reserve() == []
        s.now += s.harness.due_resolution + timedelta(microseconds=1)
        assert await s.order() == ["a"]

    async def test_G2_acknowledged_writes_are_visible_to_another_handle(self, s: Scene) -> None:
        """G2: enqueues and settles are in the store when the call returns, not in the driver."""
        held = await s.held("a", **FULL)
        await s.end(ack(held, result=b"42"))
        await s.add(job("b"))
        before = await s.everything()
        other = await s.another()
        assert await other.everything() == before
