"""Claims across processes: what a call with a token leads to, and where a token can be seen.

The table of `docs/agents.md` is what is tested: each of its rows names the situations below that it is about.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from taskharbor.errors import (
    TaskError,
)
from taskharbor.manager import Task

from .stage import LEASE, World, played

PAGE = Path(__file__).resolve().parents[2] / "docs" / "agents.md"
CALLS = ("claim", "heartbeat", "complete", "fail")
WRONG = "a token that nobody was ever given"
GIVEN: dict[str, tuple[Any, ...]] = {"complete": (b"well",), "fail": ("badly",)}


class Claim(NamedTuple):
    """A task, and what the caller has to say about its claim."""

    id: str
    token: str = WRONG
    worker: str = "w1"


Situation = Callable[[World], Awaitable[Claim]]


async def claimed(w: World, most: int = 0) -> Claim:
    """Claimed in another process, which has handed the token over."""
    id = await w.me.asubmit(b"work", max_attempts=most)
    return Claim(id, token_of(await w.me.aclaim(id, "w1")))


def token_of(task: Task) -> str:
    """The token of a claim that was just made."""
    assert task.claim_token is not None
    return task.claim_token


async def pending(w: World) -> Claim:
    """Never claimed: the token is of something else."""
    return Claim(await w.me.asubmit(b"work"))


async def lapsed(w: World) -> Claim:
    """The claim has expired, and there is no other."""
    claim = await claimed(w)
    w.tick(LEASE)
    return claim


async def lapsed_for_the_last_time(w: World) -> Claim:
    """The same, with no attempts left: the token moves nothing to failed."""
    claim = await claimed(w, most=1)
    w.tick(LEASE)
    return claim


async def put_back(w: World) -> Claim:
    """An outsider called retry."""
    claim = await claimed(w)
    await w.me.aretry(claim.id)
    return claim


async def put_back_after_a_failure(w: World) -> Claim:
    """An earlier claim failed, this one was ended by a retry."""
    id = (await failed_and_pending(w)).id
    w.tick(1)
    claim = Claim(id, token_of(await w.me.aclaim(id, "w1")))
    w.tick(1)
    await w.me.aretry(id)
    return claim


async def taken_over(w: World) -> Claim:
    """The claim has expired, and another worker has the task."""
    claim = await lapsed(w)
    await w.me.aclaim(claim.id, "w2")
    return claim


async def taken_over_by_a_namesake(w: World) -> Claim:
    """The claim has expired, and the same worker id has claimed the task again, elsewhere."""
    claim = await lapsed(w)
    await (await w.manager()).aclaim(claim.id, "w1")
    return claim


async def taken_over_here(w: World) -> Claim:
    """The same, in the very manager that is called: what it holds does not mend a void token."""
    claim = await lapsed(w)
    await w.other.aclaim(claim.id, "w1")
    return claim


async def claimed_by_another_id(w: World) -> Claim:
    """The right token under the wrong worker id."""
    return (await claimed(w))._replace(worker="w2")


async def claimed_under_another_token(w: World) -> Claim:
    """The right worker id with the wrong token."""
    return (await claimed(w))._replace(token=WRONG)


async def held_here_under_another_token(w: World) -> Claim:
    """A wrong token, in the manager that holds the claim."""
    id = await w.other.asubmit(b"work")
    await w.other.aclaim(id, "w1")
    return Claim(id)


async def claimed_under_no_token(w: World) -> Claim:
    """An empty text is a wrong token, not a missing one."""
    id = await w.other.asubmit(b"work")
    await w.other.aclaim(id, "w1")
    return Claim(id, "")


async def failed_and_pending(w: World) -> Claim:
    """The claim failed, and attempts are left."""
    claim = await claimed(w)
    await w.me.afail(claim.id, "w1", "first")
    return claim


async def failed_and_taken(w: World) -> Claim:
    """And another worker has it now."""
    claim = await failed_and_pending(w)
    await w.me.aclaim(claim.id, "w2")
    return claim


async def failed_and_lapsed(w: World) -> Claim:
    """And the next claim has expired."""
    claim = await failed_and_taken(w)
    w.tick(LEASE)
    return claim


async def failed_and_failed_by_another(w: World) -> Claim:
    """And the next claim has failed as well: the token is forgotten."""
    claim = await failed_and_taken(w)
    await w.me.afail(claim.id, "w2", "badly")
    return claim


async def completed(w: World) -> Claim:
    """Completed by this claim, with another result."""
    claim = await claimed(w)
    await w.me.acomplete(claim.id, "w1", b"first")
    return claim


async def completed_by_another_claim(w: World) -> Claim:
    """Completed by a later claim of the same worker id, with the very result: a void token is still void."""
    claim = await taken_over_here(w)
    await w.other.acomplete(claim.id, "w1", b"well")
    return claim


async def completed_and_another_id(w: World) -> Claim:
    """Completed by this claim, but the caller goes by another worker id."""
    return (await completed(w))._replace(worker="w2")


async def failed(w: World) -> Claim:
    """Failed for good by this claim, with another error."""
    claim = await claimed(w, most=1)
    await w.me.afail(claim.id, "w1", "first")
    return claim


async def failed_as_an_operator_wished(w: World) -> Claim:
    """An operator had cancelled the task, so the failure of this claim ended it."""
    claim = await asked_to_stop(w)
    await w.me.afail(claim.id, "w1", "first")
    return claim


async def failed_by_another_claim(w: World) -> Claim:
    """A later claim of the same worker id failed with the very error."""
    claim = await claimed(w, most=2)
    w.tick(LEASE)
    await w.other.aclaim(claim.id, "w1")
    await w.other.afail(claim.id, "w1", "badly")
    return claim


async def failed_and_another_id(w: World) -> Claim:
    """Failed by this claim, but the caller goes by another worker id."""
    return (await failed(w))._replace(worker="w2")


async def cancelled(w: World) -> Claim:
    """An operator has cancelled the task after it was put back."""
    claim = await put_back(w)
    assert await w.harbor().admin.jobs.acancel(claim.id) == ["cancelled"]
    return claim


async def asked_to_stop(w: World) -> Claim:
    """An operator has cancelled the task while it is claimed."""
    claim = await claimed(w, most=1)
    assert await w.harbor().admin.jobs.acancel(claim.id) == ["requested"]
    return claim


async def stopped(w: World) -> Claim:
    """And its lease has expired."""
    claim = await asked_to_stop(w)
    w.tick(LEASE)
    await w.me.aget(claim.id)  # the first look ends it
    return claim


async def asked_to_die(w: World) -> Claim:
    """An operator has dead-lettered the task while it is claimed."""
    claim = await claimed(w, most=1)
    assert await w.dead_letter(claim.id) == ["requested"]
    return claim


async def dead_lettered(w: World) -> Claim:
    """An operator has dead-lettered the task after it was put back."""
    claim = await put_back(w)
    assert await w.dead_letter(claim.id) == ["dead"]
    return claim


async def deleted(w: World) -> Claim:
    """Completed and deleted."""
    claim = await completed(w)
    await w.me.adelete(claim.id)
    return claim


async def unlimited(w: World) -> Claim:
    """Claimed, with any number of attempts."""
    return await claimed(w)


async def for_the_last_time(w: World) -> Claim:
    """Claimed, with no attempts left."""
    return await claimed(w, most=1)


ROWS: dict[str, list[Situation]] = {
    "does not exist": [deleted],
    "was completed under this token": [completed],
    "was completed": [completed_by_another_claim, completed_and_another_id],
    "failed after a `fail` under this token": [failed, failed_as_an_operator_wished],
    "failed, or an operator ended it": [
        failed_by_another_claim,
        failed_and_another_id,
        cancelled,
        stopped,
        dead_lettered,
    ],
    "is claimed under this token and worker id": [unlimited, for_the_last_time, asked_to_stop, asked_to_die],
    "was last put back by a `fail` under this token, and is claimed again": [failed_and_taken],
    "is claimed under another token or worker id": [
        taken_over,
        taken_over_by_a_namesake,
        taken_over_here,
        claimed_by_another_id,
        claimed_under_another_token,
        held_here_under_another_token,
        claimed_under_no_token,
    ],
    "was last put back by a `fail` under this token, and is pending": [failed_and_pending, failed_and_lapsed],
    "is pending: put back, lapsed, or never claimed": [
        pending,
        lapsed,
        lapsed_for_the_last_time,
        put_back,
        put_back_after_a_failure,
        failed_and_failed_by_another,
    ],
}


def documented() -> dict[str, list[str]]:
    """The rows of the page: a situation in words, and what the calls lead to."""
    text = PAGE.read_text(encoding="utf-8")
    table = text.split("| the task | claim | heartbeat | complete | fail |\n")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[1:]]
    return {words: [cell.strip("` ") for cell in cells] for words, *cells in rows}


CASES = [
    pytest.param(situation, cells, id=situation.__name__)
    for words, cells in documented().items()
    for situation in ROWS[words]
]


def test_every_row_of_the_page_is_played() -> None:
    """M1, M3: and nothing is played that is not on the page."""
    assert list(documented()) == list(ROWS)


async def said(call: Awaitable[Task]) -> Task | TaskError:
    """The task, or why not."""
    try:
        return await call
    except TaskError as error:
        return error


@pytest.mark.parametrize(("situation", "cells"), CASES)
@played
async def test_what_a_call_with_a_token_leads_to(w: World, situation: Situation, cells: list[str]) -> None:
    """M1, M3, M4: from a manager that did not make the claim; a refused call changes nothing (D7)."""
    for name, outcome in zip(CALLS, cells, strict=True):
        claim = await situation(w)
        (before,) = await w.look.get([claim.id])
        w.tick(1)
        call = getattr(w.other, f"a{name}")
        answer = await said(call(claim.id, claim.worker, *GIVEN.get(name, ()), token=claim.token))
        (after,) = await w.look.get([claim.id])
        if isinstance(answer, TaskError):
            assert type(answer).__name__ == outcome, name
            assert claim.token not in str(answer) or not claim.token
            assert claim.id in str(answer)
            assert after == before, name
            continue
        assert (answer.claim_token is not None) == (name == "claim")
        assert msgspec.structs.replace(answer, claim_token=None) == await w.me.aget(claim.id)
        if outcome == "as stored":
            assert after == before, name
        elif outcome == "renewed":
            assert (answer.status, answer.attempts) == ("claimed", 1)
            assert answer.claim_expires_at == w.clock() + timedelta(seconds=LEASE)
        else:
            assert answer.status in re.findall("completed|pending|failed", outcome), name
            assert (answer.status == "failed") == (name == "fail" and answer.max_attempts == 1)
