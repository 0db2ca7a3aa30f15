"""One claim in several processes, by its token: going on elsewhere, races, repeats, and where a token can be seen."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from taskharbor.cli import cli
from taskharbor.errors import (
    DriverUnavailable,
    InvalidTask,
    TaskAlreadyClaimed,
    TaskCompleted,
    TaskFailed,
    TaskNotClaimed,
    WrongWorker,
)
from taskharbor.manager import Task, TaskManager
from taskharbor.testing import LostReply, script

from .stage import LEASE, World, beset, played
from .test_tokens import CALLS, GIVEN, claimed, said, token_of

# two processes, one claim


@played
async def test_a_restarted_agent_goes_on_with_its_token(w: World) -> None:
    """M1, M4: after a claim with the token the claim is the new manager's own; it counts no attempt."""
    claim = await claimed(w, most=1)
    w.tick(LEASE - 1)
    restarted = await w.manager()
    again = await restarted.aclaim(claim.id, "w1", token=claim.token)
    assert (again.attempts, again.claim_token) == (1, claim.token)
    w.tick(LEASE - 1)
    assert (await restarted.aheartbeat(claim.id, "w1", 0.5)).claim_expires_at == w.clock() + timedelta(seconds=LEASE)
    assert (await restarted.aclaim(claim.id, "w1")).claim_token == claim.token
    assert (await restarted.acomplete(claim.id, "w1", b"done")).status == "completed"
    assert len(restarted._claims) == 0


@played
async def test_a_stateless_service_keeps_nothing(w: World) -> None:
    """M1: each call in a manager of its own; only claim makes the claim a manager's own."""
    claim = await claimed(w)
    services = [await w.manager() for _ in range(3)]
    await services[0].aheartbeat(claim.id, "w1", 0.25, "reading", token=claim.token)
    noted = await services[1].aheartbeat(claim.id, "w1", note="writing", token=claim.token)
    assert noted.progress is not None
    assert (noted.progress.fraction, noted.progress.note) == (0.25, "writing")
    with pytest.raises(WrongWorker, match="pass the token="):
        await services[1].acomplete(claim.id, "w1", b"done")
    assert (await services[2].acomplete(claim.id, "w1", b"done", token=claim.token)).result == b"done"
    assert [len(service._claims) for service in services] == [0, 0, 0]


@played
async def test_the_first_process_may_go_on_beside_the_second(w: World) -> None:
    """M1: both hold the same claim; the second gets the error that names what the first has done."""
    claim = await claimed(w)
    await w.other.aheartbeat(claim.id, "w1", token=claim.token)
    w.tick(LEASE - 1)
    await w.me.aheartbeat(claim.id, "w1")
    assert (await w.other.acomplete(claim.id, "w1", b"theirs", token=claim.token)).status == "completed"
    with pytest.raises(TaskCompleted):
        await w.me.aheartbeat(claim.id, "w1")
    assert (await w.me.acomplete(claim.id, "w1", b"mine")).result == b"theirs"  # the same claim
    assert len(w.me._claims) == 0
    with pytest.raises(TaskCompleted):
        await w.me.acomplete(claim.id, "w1", b"mine")  # nothing distinguishes it from a stranger any more


@pytest.mark.parametrize("name", ["complete", "fail"])
@played
async def test_of_many_processes_with_one_token_one_ends_the_task(w: World, name: str) -> None:
    """D7, M1: at the same moment; the others get the answer that it is done, and nothing is recorded twice."""
    claim = await claimed(w, most=1)
    managers = [w.me, w.other, await w.manager(), await w.manager()]
    calls = [getattr(tasks, f"a{name}")(claim.id, "w1", *GIVEN[name], token=claim.token) for tasks in managers]
    answers = await asyncio.gather(*calls)
    assert {answer.status for answer in answers} == {"completed" if name == "complete" else "failed"}
    assert len((await w.job(claim.id)).failures) == (name == "fail")


@played
async def test_complete_and_fail_with_one_token_at_once(w: World) -> None:
    """D8, M3: one of them counts; the other gets the error that says which."""
    for _ in range(5):
        claim = await claimed(w, most=1)
        done, dead = await asyncio.gather(
            said(w.me.acomplete(claim.id, "w1", b"well", token=claim.token)),
            said(w.other.afail(claim.id, "w1", "badly", token=claim.token)),
        )
        status = (await w.me.aget(claim.id)).status
        assert (type(done), type(dead)) == ((Task, TaskCompleted) if status == "completed" else (TaskFailed, Task))


@pytest.mark.parametrize(("name", "status"), [("complete", "completed"), ("fail", "pending")])
@played
async def test_an_end_without_an_answer_can_be_repeated_elsewhere(w: World, name: str, status: str) -> None:
    """D8, X3, M3: by another process with the token, as often as it likes."""
    hasty = await w.manager(lambda inner: LostReply(inner, script("settle")))
    claim = await claimed(w)
    with pytest.raises(DriverUnavailable):
        await getattr(hasty, f"a{name}")(claim.id, "w1", *GIVEN[name], token=claim.token)
    before = await w.job(claim.id)
    w.tick(10 * LEASE)
    for tasks in (hasty, w.other, w.other):
        assert (await getattr(tasks, f"a{name}")(claim.id, "w1", *GIVEN[name], token=claim.token)).status == status
    assert await w.job(claim.id) == before


@played
async def test_a_claim_lost_between_two_steps_changes_nothing(w: World) -> None:
    """L5, D7: the token was current when it was looked up, and is not when it is used."""
    hasty, line = await beset(w)
    for name, verb in (
        ("claim", "extend_lease"),
        ("heartbeat", "extend_lease"),
        ("complete", "settle"),
        ("fail", "settle"),
    ):
        claim = await claimed(w)

        async def steal(id: str = claim.id) -> None:
            await w.other.aretry(id)
            await w.other.aclaim(id, "w2")

        line.acts[verb] = (steal, 1)
        with pytest.raises(TaskAlreadyClaimed if name == "claim" else WrongWorker, match="'w2'"):
            await getattr(hasty, f"a{name}")(claim.id, "w1", *GIVEN.get(name, ()), token=claim.token)
        held = await w.job(claim.id)
        assert (held.worker, held.version, held.state, held.failures) == ("w2", 2, "inflight", ())


@played
async def test_a_claim_put_back_while_it_is_renewed_is_refused(w: World) -> None:
    """M2: the answer is true when it is given."""
    hasty, line = await beset(w)
    for name in ("claim", "heartbeat"):
        claim = await claimed(w)

        async def later(id: str = claim.id) -> None:
            line.acts["get"] = (lambda: w.other.aretry(id), 1)

        line.acts["extend_lease"] = (later, 1)
        with pytest.raises(TaskNotClaimed, match="is pending"):
            await getattr(hasty, f"a{name}")(claim.id, "w1", token=claim.token)
        assert len(hasty._claims) == 0


@played
async def test_every_claim_has_a_token_of_its_own(w: World) -> None:
    """L5: renewing keeps it, a new claim of the same worker has another."""
    claim = await claimed(w)
    assert token_of(await w.me.aclaim(claim.id, "w1")) == claim.token
    await w.me.aretry(claim.id)
    assert token_of(await w.me.aclaim(claim.id, "w1")) != claim.token


@pytest.mark.parametrize("token", [7, b"token", ["token"], True])
@played
async def test_a_value_that_is_not_text_is_not_a_token(w: World, token: Any) -> None:
    """X5: and nothing is looked up; the error does not repeat it."""
    claim = await claimed(w)
    before = await w.job(claim.id)
    for name in CALLS:
        with pytest.raises(InvalidTask, match="token must be the claim_token of claim"):
            await getattr(w.me, f"a{name}")(claim.id, "w1", *GIVEN.get(name, ()), token=token)
    assert await w.job(claim.id) == before


@pytest.mark.parametrize("token", ["\ud800", "\x00", "x" * 100_000, "' OR 1=1 --"])
@played
async def test_any_text_may_be_a_wrong_token(w: World, token: str) -> None:
    """X5: it is compared, and goes nowhere else."""
    claim = await claimed(w)
    for name in CALLS:
        with pytest.raises(TaskAlreadyClaimed if name == "claim" else WrongWorker):
            await getattr(w.other, f"a{name}")(claim.id, "w1", *GIVEN.get(name, ()), token=token)


# where it can be seen


@played
async def test_only_claim_returns_the_token(w: World) -> None:
    """M1: every other answer is without it, in every status."""
    id = await w.me.asubmit(b"x", idempotency_key="k", max_attempts=2)
    token = token_of(await w.me.aclaim(id, "w1"))
    answers: list[Task] = [
        await w.me.aget(id),
        await w.me.aget_by_idempotency_key("k"),
        *await w.me.alist(),
        *await w.me.alist("claimed"),
        await w.me.aheartbeat(id, "w1"),
        await w.me.aheartbeat(id, "w1", token=token),
        await w.me.aretry(id),
    ]
    last = token_of(await w.me.aclaim(id, "w1"))
    answers += [await w.me.afail(id, "w1", "no"), await w.me.aget(id), *await w.me.alist("failed")]
    other = await w.me.asubmit(b"x")
    third = token_of(await w.me.aclaim(other, "w1"))
    answers += [await w.me.acomplete(other, "w1"), *await w.me.alist("completed")]
    assert [task.claim_token for task in answers] == [None] * len(answers)
    seen = msgspec.json.encode(answers).decode() + repr(answers)
    assert not any(secret in seen for secret in (token, last, third))


@played
async def test_a_printed_task_does_not_show_its_token(w: World) -> None:
    """M1: in a log line, a traceback, or a table of rich; what else there is to see is shown."""
    id = await w.me.asubmit(b"x")
    task = await w.me.aclaim(id, "w1")
    shown = [repr(task), str(task), f"{task}", str(task.__rich_repr__()), repr([task])]
    assert not any(token_of(task) in text for text in shown)
    assert all("'***'" in text and id in text and "w1" in text for text in shown)
    assert "claim_token=None" in repr(await w.me.aget(id))


def test_no_command_and_no_log_shows_a_token(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """M1: of a claimed task and of one that has ended, in whatever form a command shows it."""
    url = f"sqlite:///{tmp_path}/tasks.db?synchronous=normal"
    with caplog.at_level(logging.DEBUG), TaskManager(url) as tasks:
        ids = [tasks.submit(b"x", max_attempts=1) for _ in range(3)]
        tokens = [token_of(tasks.claim(id, "w1")) for id in ids]
        tasks.complete(ids[1], "w1", b"done", token=tokens[1])
        tasks.fail(ids[2], "w1", "no", token=tokens[2])
        text = ""
        for words in (["jobs", "ls"], ["stats"], ["dlq", "ls"], *(["jobs", "show", id] for id in ids)):
            for form in ([], ["--json"]):
                shown = CliRunner().invoke(cli, [*words, "--url", url, *form])
                assert shown.exit_code == 0, shown.output
                assert not form or json.loads(shown.output)
                text += shown.output
    assert "not JSON, 4 bytes: b'done'" in text
    assert '"result_base64": "ZG9uZQ=="' in text
    text += caplog.text
    assert all(id in text for id in ids)
    assert not any(token in text for token in tokens)


def test_blocking_twins_take_tokens(tmp_path: Path) -> None:
    """P1, M1: a whole life in two processes, without an event loop."""
    url = f"sqlite:///{tmp_path}/tasks.db?synchronous=normal"
    with TaskManager(url) as first, TaskManager(url) as second:
        id = first.submit(b"work")
        token = token_of(first.claim(id, "w1"))
        assert token_of(second.claim(id, "w1", token=token)) == token
        assert second.heartbeat(id, "w1", 0.5, token=token).progress is not None
        assert second.fail(id, "w1", "no", token=token).status == "pending"
        assert first.fail(id, "w1", "no", token=token).status == "pending"
        token = token_of(first.claim(id, "w1"))
        assert second.complete(id, "w1", b"done", token=token).result == b"done"


# without a token


@played
async def test_ending_twice_without_a_token(w: World) -> None:
    """M3: the same worker id with the same result or error, from any manager; any other caller gets an error."""
    done, dead = await w.me.asubmit(b"x"), await w.me.asubmit(b"x", max_attempts=1)
    for id in (done, dead):
        await w.me.aclaim(id, "w1")
    first = await w.me.acomplete(done, "w1", b"first")
    last = await w.me.afail(dead, "w1", ValueError("first"))
    before = [await w.job(done), await w.job(dead)]
    w.tick(100)
    for manager in (w.me, w.other):
        assert await manager.acomplete(done, "w1", b"first") == first
        assert await manager.afail(dead, "w1", ValueError("first")) == last
        for worker, result, error in (("w1", b"second", "first"), ("w1", None, "second"), ("w2", b"first", "first")):
            with pytest.raises(TaskCompleted):
                await manager.acomplete(done, worker, result)
            with pytest.raises(TaskFailed):
                await manager.afail(dead, worker, error)
        with pytest.raises(TaskFailed):
            await manager.afail(dead, "w2", ValueError("first"))
        with pytest.raises(TaskFailed):
            await manager.acomplete(dead, "w1", b"first")
        with pytest.raises(TaskCompleted):
            await manager.afail(done, "w1", "first")
    assert [await w.job(done), await w.job(dead)] == before


@pytest.mark.parametrize("error", ["\ud800 \x00", "x" * 20_000, ""])
@played
async def test_an_error_that_was_cut_is_still_the_same(w: World, error: str) -> None:
    """M3, R4: what is compared is what is stored."""
    id = await w.me.asubmit(b"x", max_attempts=1)
    await w.me.aclaim(id, "w1")
    failed = await w.me.afail(id, "w1", error)
    assert await w.other.afail(id, "w1", error) == failed


@played
async def test_a_failure_before_the_last_claim_is_not_repeated(w: World) -> None:
    """M3: the task failed under another claim, which gave no error."""
    id = await w.me.asubmit(b"x")
    await w.me.aclaim(id, "w1")
    await w.me.afail(id, "w1", "no")
    with pytest.raises(TaskNotClaimed):
        await w.me.afail(id, "w1", "no")
    await w.me.aclaim(id, "w2")
    await w.dead_letter(id)
    w.tick(LEASE)
    with pytest.raises(TaskFailed, match="dead-lettered: bad order; before that: no"):
        await w.me.afail(id, "w1", "no")
