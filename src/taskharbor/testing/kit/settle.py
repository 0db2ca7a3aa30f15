"""D7-D9: a settle is fenced, atomic, repeatable, and carries all its effects."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor.core.job import Failure, JobRecord
from taskharbor.core.states import State
from taskharbor.driver import Report
from taskharbor.testing.kit.jobs import AFTER, SETTLES, ack, at, cancel, child, each_kind, fail, job, put_back, token_of
from taskharbor.testing.kit.scene import Cases, Scene

FAILURE = Failure(3, "ValueError", "no", "Traceback …", at(1.000001), at(1), "w")
FIELDS: dict[str, Any] = {
    "attempts": 3,
    "crashes": 2,
    "unknown_put_backs": 5,
    "last_error": "ValueError: no",
    "failed_at": at(1.5),
    "failures": (FAILURE,),
    "started_at": at(0.500003),
    "keep_until": at(86400.000009),
}


def expected(held: JobRecord, kind: str, now: Any) -> JobRecord:
    """The record that a settle must leave, spelled out here and not by the core."""
    common = {name: value for name, value in FIELDS.items() if name != "keep_until"}
    settled = {"settled_token": token_of(held), "settled_kind": kind, "settled_at": now}
    ended = {} if kind == "put_back" else {"completed_at": now, "keep_until": FIELDS["keep_until"]}
    return replace(held, lease=None, state=AFTER[kind], **settled, **common, **ended, **OWN[kind][1])


# Fields that only one kind of settle carries, and what they write.
OWN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ack": ({"result": b"42"}, {"result": b"42"}),
    "put_back": ({"run_at": at(77)}, {"run_at": at(77), "due_at": at(77), "progress": None}),
    "fail": ({"reason": "crash_loop", "fingerprint": "f0"}, {"dlq_reason": "crash_loop", "fingerprint": "f0"}),
    "cancel": ({}, {"idempotency_key": None, "key_expires_at": None}),
}

NEARLY: dict[str, Callable[[str], str]] = {
    "every number with a zero before it": lambda token: re.sub(r"\d+", r"0\g<0>", token),
    "every number far too large": lambda token: re.sub(r"\d+", r"\g<0>" + "9" * 30, token),
    "cut short": lambda token: token[:-1],
    "longer": lambda token: token + " ",
    "empty": lambda token: "",
}


class SettleCases(Cases):
    """D7-D9."""

    @each_kind
    async def test_D9_the_settle_writes_exactly_the_fields_it_carries(self, s: Scene, kind: str) -> None:
        """D9: the complete new fields as given; the driver computes nothing."""
        held = await s.held(idempotency_key="k", key_expires_at=at(999), priority=2)
        s.tick(2)
        await s.end(SETTLES[kind](held, **FIELDS, **OWN[kind][0]))
        assert await s.get() == expected(held, kind, s.now)

    @each_kind
    async def test_D9_fields_at_zero_are_written_too(self, s: Scene, kind: str) -> None:
        """D9: a transition with 0 and None resets the fields."""
        await s.end(put_back(await s.held(), **FIELDS))
        await s.end(SETTLES[kind](await s.claim("a")))
        await s.expect(attempts=0, crashes=0, unknown_put_backs=0, last_error=None, failed_at=None, failures=())
        await s.expect(started_at=None)

    @each_kind
    async def test_D7_a_settle_in_time_is_ok_to_the_last_microsecond(self, s: Scene, kind: str) -> None:
        """D7: the lease is valid while expires_at > now."""
        held = await s.held(lease=10)
        s.tick(9.999999)
        assert await s.settle(SETTLES[kind](held)) == ["ok"]
        assert await s.states("a") == [AFTER[kind]]

    @each_kind
    async def test_D7_at_the_expiry_a_settle_is_refused(self, s: Scene, kind: str) -> None:
        """D7: even if no other worker has claimed the job yet."""
        held = await s.held(lease=10)
        s.tick(10)
        assert await s.without_effect(s.settle(SETTLES[kind](held, **FIELDS))) == ["LeaseExpired"]

    async def test_D7_a_settle_by_an_earlier_clock_ends_a_lapsed_job(self, s: Scene) -> None:
        """D7, D3: seen as lapsed by one clock, settled by one that is behind, it is not handed out again."""
        held = await s.held(lease=30)
        s.tick(30)
        assert await s.reserve(queues=["elsewhere"]) == []
        s.tick(-1)
        await s.end(ack(held))
        s.tick(1)
        assert await s.order() == []

    @each_kind
    async def test_D7_a_refused_settle_brings_no_new_jobs_and_moves_no_child(self, s: Scene, kind: str) -> None:
        """D7, D9, K2: all of a settle is refused, its effects included."""
        await s.add(job("a"), child("c", "a", policy="collect"), child("d", "a", policy="cancel"))
        held = await s.claim("a", lease=10)
        s.tick(10)
        await s.without_effect(s.settle(SETTLES[kind](held, new_jobs=(job("new", idempotency_key="k"),))))
        assert await s.look.find_key("k", s.now) is None

    async def test_D7_items_of_a_batch_are_independent(self, s: Scene) -> None:
        """D7: a mixed flush is one call; refused ones do not affect the others."""
        late = await s.held("late", lease=10)
        a, b, c, d = [await s.held(id, lease=60) for id in "abcd"]
        s.tick(10)
        foreign, unknown = put_back(c, token="foreign"), ack(a, id="nobody")
        verdicts = await s.settle(ack(a), ack(late), fail(b), foreign, cancel(d), unknown)
        assert verdicts == ["ok", "LeaseExpired", "ok", "LeaseMismatch", "ok", "JobNotInflight"]
        assert await s.states("a", "b", "late", "c", "d") == ["done", "dlq", "inflight", "inflight", "cancelled"]

    @pytest.mark.parametrize("wrong", NEARLY)
    async def test_D7_a_token_that_is_nearly_right_is_a_foreign_one(self, s: Scene, wrong: str) -> None:
        """D7: alone and in a batch, whatever a driver reads out of its tokens; the others are settled."""
        await s.add(*(job(id) for id in ("a", "b", "c")))
        first, second, third = await s.reserve(3)
        nearly = NEARLY[wrong](token_of(second))
        assert await s.settle(ack(second, token=nearly)) == ["LeaseMismatch"]
        assert await s.settle(ack(first), ack(second, token=nearly), ack(third)) == ["ok", "LeaseMismatch", "ok"]
        assert await s.states("a", "b", "c") == ["done", "inflight", "done"]

    async def test_D7_no_transitions_no_verdicts(self, s: Scene) -> None:
        """D7: an empty flush is valid."""
        assert await s.settle() == []

    async def test_D7_a_large_flush_is_settled_whole(self, s: Scene) -> None:
        """D7: 500 outcomes of all kinds in one call."""
        await s.add(*(job(f"j{n:03}") for n in range(500)))
        kinds = list(SETTLES)
        held = await s.reserve(500)
        await s.end(*(SETTLES[kinds[n % 4]](each, attempts=n) for n, each in enumerate(held)))
        found = await s.look.get([each.id for each in held])
        states = [(None, None) if record is None else (record.state, record.attempts) for record in found]
        assert states == [(AFTER[kinds[n % 4]], n) for n in range(500)]

    async def test_D7_two_settles_of_one_job_in_a_batch(self, s: Scene) -> None:
        """D7, D8: the first counts; a second of its kind is its repeat, another kind is refused."""
        held = await s.held()
        verdicts = await s.settle(ack(held, result=b"1"), ack(held, result=b"2"), fail(held))
        assert verdicts == ["ok", "replayed", "JobNotInflight"]
        await s.expect(state="done", result=b"1")

    async def test_D7_the_first_of_two_settles_counts_beside_any_others(self, s: Scene) -> None:
        """D7, D8: also if a driver writes plain successes of a batch differently from the rest."""
        a, b, c, d = [await s.held(id) for id in "abcd"]
        verdicts = await s.settle(put_back(a), ack(b), ack(a), ack(c, result=b"3"), ack(d), ack(b))
        assert verdicts == ["ok", "ok", "JobNotInflight", "ok", "ok", "replayed"]
        assert await s.states("a", "b", "c", "d") == ["ready", "done", "done", "done"]

    @pytest.mark.parametrize("apart", [False, True])
    @pytest.mark.parametrize("refusal", ["LeaseExpired", "LeaseMismatch"])
    async def test_D7_plain_successes_of_one_claim_are_fenced_each(self, s: Scene, refusal: str, apart: bool) -> None:
        """D7, D8: one has lapsed, or another worker holds it by now, among those that are in order."""
        await s.add(*(job(f"{queue}{n}", queue=queue) for n in range(3) for queue in ("q", "other")[: 1 + apart]))
        held = await s.reserve(3, lease=5)
        await s.extend(*(Report(each.id, token_of(each)) for each in (held[0], held[2])))
        s.tick(5)
        if refusal == "LeaseMismatch":
            await s.claim("q1")
        assert await s.settle(*map(ack, held)) == ["ok", refusal, "ok"]
        assert await s.states("q0", "q1", "q2") == ["done", "inflight", "done"]

    async def test_D7_plain_successes_of_part_of_a_claim(self, s: Scene) -> None:
        """D7: the others of the claim stay as they are."""
        await s.add(*(job(id) for id in "abcde"))
        a, b, c, d, e = await s.reserve(5)
        await s.end(ack(a), ack(d), ack(b))
        assert await s.states(*"abcde") == ["done", "done", "inflight", "done", "inflight"]
        await s.end(ack(c), ack(e))

    async def test_D7_plain_successes_and_others_of_one_claim(self, s: Scene) -> None:
        """D7, D9: each stores its own effects, and a plain one none of the others'."""
        await s.add(*(job(id) for id in "abcde"))
        a, b, c, d, e = await s.reserve(5)
        kept, starter = ack(d, keep_until=at(9999)), ack(e, new_jobs=(job("new"),))
        await s.end(ack(a), ack(b, result=b"2"), fail(c, reason="max_attempts"), kept, starter)
        assert await s.states(*"abcde", "new") == ["done", "done", "dlq", "done", "done", "ready"]
        assert [(await s.get(id)).result for id in "abde"] == [None, b"2", None, None]
        assert (await s.get("d")).keep_until == at(9999) != (await s.get("a")).keep_until

    async def test_R1_plain_successes_of_one_claim_keep_their_own_starts(self, s: Scene) -> None:
        """R1, T2: some started together, one earlier, and of one it is not known."""
        await s.add(*(job(id) for id in "abcde"))
        held = await s.reserve(5)
        starts = [at(0.1), at(0.2), None, at(0.2), at(0.100001)]
        s.tick(1)
        await s.end(*(ack(each, started_at=start) for each, start in zip(held, starts, strict=True)))
        assert [(await s.get(each.id)).started_at for each in held] == starts

    @each_kind
    async def test_D8_repeating_a_settle_is_replayed(self, s: Scene, kind: str) -> None:
        """D8: an unknown outcome becomes known, and nothing happens twice."""
        held = await s.held()
        settle = SETTLES[kind](held, new_jobs=(job("new"),))
        await s.end(settle)
        async with s.nothing_changes():
            assert await s.settle(settle) == ["replayed"]
            assert await s.settle(SETTLES[kind](held, attempts=9)) == ["replayed"]

    @each_kind
    async def test_D8_another_kind_under_the_settled_token_is_refused(self, s: Scene, kind: str) -> None:
        """D8: a caller must not take a stored Ack for its Fail; alone and in a batch with the repeat."""
        held = await s.held()
        await s.end(SETTLES[kind](held))
        others = [settle(held) for other, settle in SETTLES.items() if other != kind]
        async with s.nothing_changes():
            verdicts = await s.settle(*others, SETTLES[kind](held), *others)
        assert verdicts == [*["JobNotInflight"] * 3, "replayed", *["JobNotInflight"] * 3]

    async def test_D8_another_kind_is_refused_while_another_worker_holds_the_job(self, s: Scene) -> None:
        """D8: under a valid lease by LeaseMismatch, under a lapsed one by LeaseExpired."""
        held = await s.held()
        await s.end(put_back(held))
        new = await s.claim("a", lease=5)
        assert await s.without_effect(s.settle(ack(held), fail(held))) == ["LeaseMismatch"] * 2
        s.tick(5)
        assert await s.without_effect(s.settle(ack(held), fail(held))) == ["LeaseExpired"] * 2
        s.tick(-1)
        await s.end(ack(new))

    async def test_D8_a_put_back_that_landed_elsewhere_is_repeated_as_a_put_back(self, s: Scene) -> None:
        """D8, T3: the kind of the settle counts, not the resulting state."""
        cancelled, dead = await s.held("cancelled"), await s.held("dead")
        await s.withdraw("cancelled")
        await s.dead_letter("dead")
        await s.end(put_back(cancelled), put_back(dead))
        assert await s.states("cancelled", "dead") == ["cancelled", "dlq"]
        async with s.nothing_changes():
            assert await s.settle(put_back(cancelled), put_back(dead)) == ["replayed", "replayed"]
            assert await s.settle(cancel(cancelled), fail(dead)) == ["JobNotInflight"] * 2

    @each_kind
    async def test_D8_a_repeat_is_replayed_after_the_lease_would_have_expired(self, s: Scene, kind: str) -> None:
        """D8: before any refusal, expiry included."""
        held = await s.held(lease=5)
        await s.end(SETTLES[kind](held))
        s.tick(3600)
        assert await s.without_effect(s.settle(SETTLES[kind](held))) == ["replayed"]

    async def test_D8_a_repeat_is_replayed_while_another_worker_holds_the_job(self, s: Scene) -> None:
        """D8: in any state; the repeat does not affect the new holder."""
        held = await s.held()
        await s.end(put_back(held))
        new = await s.claim("a", lease=5)
        assert await s.without_effect(s.settle(put_back(held))) == ["replayed"]
        s.tick(5)
        assert await s.settle(put_back(held)) == ["replayed"]
        assert await s.settle(ack(new)) == ["LeaseExpired"]

    async def test_D8_only_the_last_settle_is_remembered(self, s: Scene) -> None:
        """D8: the token that settled last is replayed, an older one is refused like any other."""
        first = await s.held()
        await s.end(put_back(first))
        second = await s.claim("a")
        await s.end(ack(second))
        async with s.nothing_changes():
            assert await s.settle(put_back(first)) == ["JobNotInflight"]
            assert await s.settle(ack(second)) == ["replayed"]

    async def test_D8_replay_by_hand_does_not_forget_the_last_settle(self, s: Scene) -> None:
        """D8, Q2: while the record exists."""
        held = await s.held()
        await s.end(fail(held))
        await s.replay("a")
        assert await s.without_effect(s.settle(fail(held))) == ["replayed"]

    async def test_D8_a_deleted_job_remembers_no_settle(self, s: Scene) -> None:
        """D8: a deleted job is unknown."""
        held = await s.held()
        await s.end(ack(held))
        await s.manage.delete(["a"])
        assert await s.settle(ack(held)) == ["JobNotInflight"]

    async def test_D8_a_refused_token_never_becomes_the_settled_one(self, s: Scene) -> None:
        """D8: a refusal leaves no trace that a repeat could mistake for success."""
        held = await s.held(lease=5)
        s.tick(5)
        for _ in range(2):
            assert await s.settle(ack(held)) == ["LeaseExpired"]

    @each_kind
    async def test_D9_new_jobs_are_stored_in_the_same_step(self, s: Scene, kind: str) -> None:
        """D9: with every field, due as they ask, keys taken."""
        held = await s.held()
        new = job("new", payload=b"n", priority=4, run_at=at(50), idempotency_key="k", tags=("x",))
        await s.end(SETTLES[kind](held, new_jobs=(new, job("plain"))))
        await s.expect("new", state="ready", payload=b"n", priority=4, due_at=at(50), tags=("x",), created_at=s.now)
        assert (await s.get("plain")).due_at == s.now
        assert await s.look.find_key("k", s.now) == "new"

    async def test_D9_new_jobs_can_be_claimed_at_once(self, s: Scene) -> None:
        """D9: they are in line after earlier jobs."""
        await s.add(job("a"), job("b"))
        await s.end(ack(await s.claim("a"), new_jobs=(job("n1"), job("n2"))))
        assert await s.order() == ["b", "n1", "n2"]

    async def test_D9_a_new_job_whose_key_is_known_is_skipped(self, s: Scene) -> None:
        """D9: it neither refuses the settle nor excludes the others."""
        held = await s.held()
        await s.add(job("old", idempotency_key="k"))
        await s.end(ack(held, new_jobs=(job("x", idempotency_key="k"), job("y"))))
        assert await s.states("a", "x", "y") == ["done", None, "ready"]
        assert await s.look.find_key("k", s.now) == "old"

    async def test_D9_a_new_job_whose_id_is_known_is_skipped(self, s: Scene) -> None:
        """D9: the existing job stays as it is."""
        held = await s.held()
        await s.add(job("old", payload=b"old"))
        before = await s.get("old")
        await s.end(ack(held, new_jobs=(job("old", payload=b"new"), job("a"), job("y"))))
        assert await s.get("old") == before
        assert await s.states("a", "y") == ["done", "ready"]

    async def test_D9_duplicates_among_the_new_jobs_are_one(self, s: Scene) -> None:
        """D9, I1: within one settle and within one flush."""
        first, second = await s.held("a"), await s.held("b")
        keyed = (job("x", idempotency_key="k"), job("y", idempotency_key="k"))
        await s.end(ack(first, new_jobs=keyed), ack(second, new_jobs=(job("z", idempotency_key="k"), job("x"))))
        assert sorted(record.id for record in await s.all()) == ["a", "b", "x"]

    async def test_D9_an_id_twice_among_the_new_jobs_is_stored_once(self, s: Scene) -> None:
        """D9: the first one counts, and the settle is not refused."""
        await s.end(ack(await s.held(), new_jobs=(job("x", payload=b"1"), job("y"), job("x", payload=b"2"))))
        assert (await s.get("x")).payload == b"1"
        assert await s.order() == ["x", "y"]

    async def test_D9_an_id_whose_first_job_was_skipped_is_stored_with_the_second(self, s: Scene) -> None:
        """D9: the key of the first is known, so its id is still free."""
        held = await s.held()
        await s.add(job("old", idempotency_key="k"))
        await s.end(ack(held, new_jobs=(job("x", payload=b"1", idempotency_key="k"), job("x", payload=b"2"))))
        assert (await s.get("x")).payload == b"2"

    async def test_D9_an_outcome_keeps_its_job_whose_id_another_one_gave_up(self, s: Scene) -> None:
        """D9: the key of the first `x` is taken by the job before it, in the same outcome."""
        first, second = await s.held("a"), await s.held("b")
        keyed = [job(id, payload=b"1", idempotency_key="k") for id in ("w", "x")]
        await s.end(ack(first, new_jobs=tuple(keyed)), ack(second, new_jobs=(job("x", payload=b"2"),)))
        assert (await s.get("x")).payload == b"2"

    async def test_D9_new_jobs_may_depend_on_each_other(self, s: Scene) -> None:
        """D9, K1: a flow can be stored with an Ack."""
        await s.end(ack(await s.held(), new_jobs=(job("p"), child("c", "p"))))
        assert await s.states("p", "c") == ["ready", "waiting"]
        await s.end(ack(await s.claim("p")))
        assert await s.states("c") == ["ready"]

    @pytest.mark.parametrize("count", [1, 20])
    async def test_D9_a_put_back_returns_at_its_time_with_its_counts(self, s: Scene, count: int) -> None:
        """D9, F1: attempts and run_at are what the core decided, again and again."""
        await s.add(job("a"))
        for attempt in range(1, count + 1):
            held = await s.claim("a")
            assert held.attempts == attempt - 1
            s.tick(1)
            await s.end(put_back(held, attempts=attempt, run_at=s.now))
        await s.expect(attempts=count, state=State.READY)
