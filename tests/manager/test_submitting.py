"""Submitting: payloads, idempotency keys, and bad input."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskharbor.core.reserved import KEY_PREFIX, TASKS
from taskharbor.errors import InvalidJob, InvalidTask, InvalidWorkerID, PayloadTooLarge, TaskNotFound
from taskharbor.manager import Task, TaskManager, TaskStatus

from .stage import World, played


@played
async def test_a_submitted_task_is_pending(w: World) -> None:
    """M1: and shows what it was submitted with, to any manager."""
    id = await w.me.asubmit(b"\x00\xff work", idempotency_key="order-7-pack", max_attempts=3)
    assert await w.other.aget(id) == Task(
        id=id,
        idempotency_key="order-7-pack",
        payload=b"\x00\xff work",
        status=TaskStatus.PENDING,
        attempts=0,
        max_attempts=3,
        created_at=w.clock(),
    )


@played
async def test_an_empty_payload_is_a_payload(w: World) -> None:
    """M3: b"" all the way, and as a result."""
    id = await w.me.asubmit(b"")
    assert (await w.me.aclaim(id, "w1")).payload == b""
    assert (await w.me.acomplete(id, "w1", b"")).result == b""
    task = await w.other.aget(id)
    assert (task.payload, task.result, task.max_attempts) == (b"", b"", 0)


@played
async def test_no_result_is_none(w: World) -> None:
    """M1: which is not the same as an empty one."""
    id = await w.me.asubmit(b"x")
    await w.me.aclaim(id, "w1")
    await w.me.acomplete(id, "w1")
    assert (await w.other.aget(id)).result is None


@played
async def test_a_known_key_returns_the_task_that_is_there(w: World) -> None:
    """M1, I1: for any payload and caller, in every status."""
    id = await w.me.asubmit(b"first", idempotency_key="k")
    assert await w.me.asubmit(b"second", idempotency_key="k") == id
    await w.other.aclaim(id, "w2")
    assert await w.other.asubmit(b"third", idempotency_key="k", max_attempts=1) == id
    await w.other.acomplete(id, "w2", b"done")
    assert await w.me.asubmit(b"first", idempotency_key="k") == id
    task = await w.me.aget_by_idempotency_key("k")
    assert (task.id, task.payload, task.max_attempts, task.result) == (id, b"first", 0, b"done")
    assert await w.count() == 1


@played
async def test_other_keys_and_none_are_other_tasks(w: World) -> None:
    """M1: only the very same key is the same task."""
    keys = ["k", "K", "k ", None, None]
    ids = {await w.me.asubmit(b"x", idempotency_key=key) for key in keys}
    assert len(ids) == len(keys)


@played
async def test_a_key_lives_as_long_as_its_task(w: World) -> None:
    """M1: years after the end it leads there; delete takes it along, and then it is free."""
    id = await w.me.asubmit(b"x", idempotency_key="k")
    await w.me.aclaim(id, "w1")
    await w.me.acomplete(id, "w1", b"done")
    w.tick(10 * 365 * 86400)
    assert await w.upkeep.prune(w.clock(), 100) == 0
    assert (await w.other.aget_by_idempotency_key("k")).result == b"done"
    assert await w.other.asubmit(b"x", idempotency_key="k") == id
    await w.other.adelete(id)
    with pytest.raises(TaskNotFound, match="'k'"):
        await w.me.aget_by_idempotency_key("k")
    assert await w.me.asubmit(b"x", idempotency_key="k") != id


@played
async def test_the_key_of_a_failed_task_survives_too(w: World) -> None:
    """M1, M2: a task that has failed for good still has its key."""
    id = await w.me.asubmit(b"x", idempotency_key="k", max_attempts=1)
    await w.me.aclaim(id, "w1")
    await w.me.afail(id, "w1", "no")
    w.tick(10 * 365 * 86400)
    assert await w.upkeep.prune(w.clock(), 100) == 0
    assert (await w.me.aget_by_idempotency_key("k")).status == "failed"
    assert await w.me.asubmit(b"x", idempotency_key="k") == id


@played
async def test_keys_of_tasks_and_of_jobs_do_not_meet(w: World) -> None:
    """M1, I2: a job's key counts in the whole harbor, and a task's among tasks; neither can take the other's place."""
    harbor = w.harbor()
    (job,) = await harbor.aenqueue_many([harbor.step("work", {}, idempotency_key="k")])
    id = await w.me.asubmit(b"x", idempotency_key="k")
    assert id != job.id
    assert (await w.me.aget_by_idempotency_key("k")).id == id
    found = await harbor.admin.jobs.afind("k")
    assert found is not None
    assert found.id == job.id
    with pytest.raises(InvalidJob, match="must not begin with"):
        harbor.step("work", {}, idempotency_key=f"{KEY_PREFIX}k")


@played
async def test_submits_of_one_turn_share_a_commit(w: World) -> None:
    """I1, D1: a hundred at once, each with its own answer, the repeats among them with the same."""
    ids = await asyncio.gather(*(w.me.asubmit(b"x", idempotency_key=f"k{n % 20}") for n in range(100)))
    assert len(set(ids)) == 20
    assert ids[:20] * 5 == ids


@played
async def test_what_is_too_large_is_refused_before_anything_is_written(w: World) -> None:
    """R4, X5: payload and result, to the byte; the claim goes on."""
    small = TaskManager(w.harbor(payload_limit=100))
    with pytest.raises(PayloadTooLarge, match="payload take 101 bytes"):
        await small.asubmit(bytes(101))
    assert await w.count() == 0
    id = await small.asubmit(bytes(100))
    await small.aclaim(id, "w1")
    before = await w.job(id)
    with pytest.raises(PayloadTooLarge, match="result take 101 bytes"):
        await small.acomplete(id, "w1", bytes(101))
    assert await w.job(id) == before
    assert (await small.acomplete(id, "w1", bytes(100))).status == "completed"


BAD_SUBMITS: list[tuple[str, dict[str, Any], str]] = [
    ("no payload", {"payload": None}, "payload must be bytes, b'' if there is nothing to say, not NoneType"),
    ("text", {"payload": "x"}, "payload must be bytes"),
    ("a bytearray", {"payload": bytearray(b"x")}, "payload must be bytes"),
    ("an object", {"payload": {"a": 1}}, "payload must be bytes"),
    ("negative attempts", {"payload": b"x", "max_attempts": -1}, r"from 0 \(unlimited\)"),
    ("half an attempt", {"payload": b"x", "max_attempts": 1.5}, "max_attempts must be a whole number"),
    ("no number of attempts", {"payload": b"x", "max_attempts": None}, "max_attempts must be a whole number"),
    ("true attempts", {"payload": b"x", "max_attempts": True}, "max_attempts must be a whole number"),
    ("too many attempts", {"payload": b"x", "max_attempts": 2**31}, "max_attempts must be a whole number"),
    ("an empty key", {"payload": b"x", "idempotency_key": ""}, "idempotency_key must have 1 to 512 characters"),
    ("a long key", {"payload": b"x", "idempotency_key": "k" * 513}, "1 to 512 characters, this one has 513"),
    ("a key of bytes", {"payload": b"x", "idempotency_key": b"k"}, "idempotency_key must be text"),
    ("a key of lines", {"payload": b"x", "idempotency_key": "a\nb"}, "control characters"),
]


@pytest.mark.parametrize(("given", "says"), [pytest.param(*rest, id=name) for name, *rest in BAD_SUBMITS])
@played
async def test_a_bad_submit_stores_nothing(w: World, given: dict[str, Any], says: str) -> None:
    """M3, X5: the error names the rule."""
    with pytest.raises(InvalidTask, match=says):
        await w.me.asubmit(**given)
    assert await w.count() == 0


@played
async def test_the_longest_key_and_the_longest_names_fit(w: World) -> None:
    """X5: what the rules allow, every engine takes; any script."""
    key, worker = "ключ-🚢-" + "k" * 505, "w" * 255
    id = await w.me.asubmit(b"x", idempotency_key=key, max_attempts=2**31 - 1)
    task = await w.me.aclaim(id, worker)
    assert (task.idempotency_key, task.claimed_by, task.max_attempts) == (key, worker, 2**31 - 1)
    assert (await w.other.aget_by_idempotency_key(key)).id == id


CALLS_WITH_A_WORKER = ("aclaim", "acomplete", "aheartbeat", "afail")
BAD_WORKERS: list[Any] = ["", None, 7, b"w1", "a\nb", "w" * 256, "\ud800"]


@played
async def test_a_bad_worker_id_changes_nothing(w: World) -> None:
    """M3: empty, no text, or nothing that can be shown."""
    id = await w.me.asubmit(b"x")
    await w.me.aclaim(id, "w1")
    before = await w.job(id)
    for worker in BAD_WORKERS:
        for name in CALLS_WITH_A_WORKER:
            more = ("why",) if name == "afail" else ()
            with pytest.raises(InvalidWorkerID, match="give every agent a name of its own"):
                await getattr(w.me, name)(id, worker, *more)
    assert await w.job(id) == before


@played
async def test_an_invalid_id_is_an_unknown_task(w: World) -> None:
    """M3: a text that cannot be an id names nothing; anything else is not even a text."""
    for name in ("aget", "aretry", "adelete"):
        for text in ("", "x" * 256, "a\x00b", "\ud800", "'; DROP TABLE job", TASKS):
            with pytest.raises(TaskNotFound):
                await getattr(w.me, name)(text)
        for other in (None, 7, b"x"):
            with pytest.raises(InvalidTask, match="a task's id is text"):
                await getattr(w.me, name)(other)
    for key in (None, "", 7):
        with pytest.raises(InvalidTask, match="idempotency_key must"):
            await w.me.aget_by_idempotency_key(key)  # type: ignore[arg-type]


BAD_CALLS: list[tuple[str, str, tuple[Any, ...], str]] = [
    ("a result of text", "acomplete", ("done",), "result must be bytes or None, not str: encode it first"),
    ("a result that is an object", "acomplete", ({"a": 1},), "result must be bytes or None"),
    ("no error", "afail", (None,), "error must be text or an exception, not NoneType"),
    ("an error of bytes", "afail", (b"why",), "error must be text"),
    ("progress beyond the end", "aheartbeat", (1.01,), "progress must be a number from 0 to 1"),
    ("no number", "aheartbeat", (float("nan"),), "progress must be a number"),
    ("progress of text", "aheartbeat", ("half",), "progress must be a number"),
    ("true progress", "aheartbeat", (True,), "progress must be a number"),
    ("no note", "aheartbeat", (0.5, None), "note must be text"),
]


@pytest.mark.parametrize(("name", "given", "says"), [pytest.param(*rest, id=name) for name, *rest in BAD_CALLS])
@played
async def test_bad_input_changes_nothing(w: World, name: str, given: tuple[Any, ...], says: str) -> None:
    """M3, X5: by the holder himself."""
    id = await w.me.asubmit(b"x")
    await w.me.aclaim(id, "w1")
    before = await w.job(id)
    with pytest.raises(InvalidTask, match=says):
        await getattr(w.me, name)(id, "w1", *given)
    assert await w.job(id) == before


@played
async def test_a_bad_list_says_what_there_is(w: World) -> None:
    """X5: statuses by name, limits from one."""
    with pytest.raises(InvalidTask, match="one of pending, claimed, completed, failed, not 'running'"):
        await w.me.alist("running")
    for limit in (0, -1, 1.5, True, "5"):
        with pytest.raises(InvalidTask, match="limit must be a whole number"):
            await w.me.alist(limit=limit)  # type: ignore[arg-type]
