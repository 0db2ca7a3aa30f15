"""Random histories of two managers against a model: claims, tokens, lapses, retries, deletes, keys, operators."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from taskharbor import Harbor
from taskharbor.core.evolve import DeadLetter
from taskharbor.driver import Driver
from taskharbor.drivers import from_url
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import TaskError
from taskharbor.manager import Task, TaskManager
from taskharbor.testing import ManualClock
from taskharbor.testing.clock import EPOCH

LEASE = timedelta(seconds=10)
MOMENT = timedelta(microseconds=1)
FEW = 2  # so that steps meet
managers = st.integers(0, 1)
workers = st.sampled_from(["w1", "w2"])
keys = st.sampled_from([None, None, "a", "b"])
bounds = st.sampled_from([0, 1, 2, 3])
places = st.integers(0, 100)
passed = st.sampled_from(["none", "none", "latest", "latest", "earlier", "wrong"])
WRONG = "wrong"


@dataclass(frozen=True)
class Call:
    """A caller: a worker in a manager, and the token that it passes."""

    manager: int
    worker: str
    token: str | None
    said: str


@dataclass
class Model:
    """A task as it must be: `claims` is how often it was claimed, `worker` is the last claimer, under `token`.

    `held` is what each manager has claimed and not ended itself, as token and worker; `settled` the token that last
    ended a claim, and `recorded` whether by a failure; `failure` the last one, as worker and text.
    """

    id: str
    key: str | None
    most: int
    status: str = "pending"
    claims: int = 0
    worker: str | None = None
    token: str | None = None
    until: datetime = EPOCH
    stop: str | None = None
    ended: str | None = None
    result: str | None = None
    settled: str | None = None
    recorded: bool = False
    failure: tuple[str, str] | None = None
    tokens: list[str] = field(default_factory=list)
    held: dict[int, tuple[str, str]] = field(default_factory=dict)

    @property
    def spent(self) -> bool:
        return self.most > 0 and self.claims >= self.most

    def at(self, now: datetime) -> None:
        """Let a claim lapse; one that an operator stopped ends then."""
        if self.status == "claimed" and self.until <= now:
            self.back()

    def back(self) -> None:
        """Pending again, or ended as an operator asked for."""
        self.status, self.token = "pending", None
        if self.stop is not None:
            self.status, self.ended, self.stop = "failed", self.stop, None

    def own(self, call: Call) -> str | None:
        """The token that a caller acts by."""
        token, worker = self.held.get(call.manager, (None, None))
        return call.token if call.token is not None else token if worker == call.worker else None

    def is_held_by(self, call: Call) -> bool:
        return self.status == "claimed" and (self.own(call), call.worker) == (self.token, self.worker)

    def settle(self, recorded: bool) -> None:
        self.settled, self.recorded = self.token, recorded

    def forget(self, manager: int, token: str | None) -> None:
        if self.held.get(manager, ("", ""))[0] == token:
            del self.held[manager]

    def refused(self) -> str:
        if self.status == "claimed":
            return "WrongWorker"
        return "TaskNotClaimed" if self.status == "pending" else f"Task{self.status.capitalize()}"

    def claim(self, call: Call, now: datetime) -> str:
        if self.is_held_by(call):
            self.until = now + LEASE
            self.held[call.manager] = (str(self.token), call.worker)
            return "claimed"
        if self.status != "pending" or call.token is not None:
            return self.refused().replace("WrongWorker", "TaskAlreadyClaimed")
        self.worker = call.worker
        if self.spent:
            self.status, self.settled, self.recorded = "failed", None, True
            self.failure = (call.worker, f"claimed {self.most} times, as often as it may be")
            return "MaxAttemptsReached"
        self.status, self.until, self.token = "claimed", now + LEASE, "new"
        self.claims += 1
        return "claimed"

    def claimed(self, call: Call, token: str) -> None:
        """Note the token of a claim that was made or renewed."""
        if self.token == "new":
            assert token not in self.tokens
            self.tokens.append(token)
            self.token = token
            self.held[call.manager] = (token, call.worker)
        assert token == self.token

    def heartbeat(self, call: Call, now: datetime) -> str:
        if not self.is_held_by(call):
            return self.refused()
        self.until = now + LEASE
        return "claimed"

    def complete(self, call: Call, now: datetime) -> str:
        if self.is_held_by(call):
            self.settle(recorded=False)
            self.forget(call.manager, self.token)
            self.status, self.token, self.stop, self.result = "completed", None, None, call.said
            return "completed"
        own = self.own(call)
        if self.status == "completed":
            self.held.pop(call.manager, None)
            known = own is not None and own == self.settled
            if self.worker == call.worker and (known or (call.token is None and call.said == self.result)):
                return "completed"
        return self.refused()

    def fail(self, call: Call, now: datetime) -> str:
        if self.is_held_by(call):
            self.settle(recorded=True)
            self.forget(call.manager, self.token)
            self.failure = (call.worker, call.said)
            if self.spent:
                self.status, self.token, self.stop = "failed", None, None
            else:
                self.back()
            return self.status
        return self.status if self.repeats_its_failure(call) else self.refused()

    def repeats_its_failure(self, call: Call) -> bool:
        if self.failure is None or self.failure[0] != call.worker:
            return False
        own = self.own(call)
        if own is not None and own == self.settled:
            if self.recorded:
                self.forget(call.manager, self.settled)
            return self.recorded
        same = call.token is None and self.worker == call.worker and self.failure[1] == call.said
        if same and self.status == "failed":
            self.forget(call.manager, self.settled)
        return same and self.status == "failed"

    def retry(self, call: Call, now: datetime) -> str:
        if self.status == "completed":
            return "TaskCompleted"
        if self.spent:
            return "MaxAttemptsReached"
        if self.status == "claimed":
            self.settle(recorded=False)
            self.forget(call.manager, self.token)
        self.status, self.token, self.stop, self.ended = "pending", None, None, None  # an operator is overruled
        return self.status


class Histories(RuleBasedStateMachine):
    """Two managers on one store, which hand tokens to each other; after every step all that can be seen is what the
    model says."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.tasks: dict[str, Model] = {}

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(call)

    async def open(self) -> list[Driver]:
        """Two connections to a new store."""
        driver = MemoryDriver()
        return [driver, driver]

    @initialize()
    def begin(self) -> None:
        self.drivers = self.run(self.open())
        self.managers = [TaskManager(driver, lease=LEASE, clock=self.clock) for driver in self.drivers]
        self.operator = Harbor(driver=self.drivers[0], clock=self.clock).admin

    def teardown(self) -> None:
        for driver in getattr(self, "drivers", ()):
            self.run(driver.close())
        self.loop.close()

    def one(self, place: int) -> Model:
        return list(self.tasks.values())[place % len(self.tasks)]

    def said(self, call: Coroutine[Any, Any, Any]) -> tuple[str, str | None]:
        """The status after a call, or the error; and the token that it returned."""
        try:
            answer: Task | TaskError = self.run(call)
        except TaskError as error:
            answer = error
        assert not any(token in repr(answer) for task in self.tasks.values() for token in task.tokens)
        if isinstance(answer, TaskError):
            return type(answer).__name__, None
        return str(answer.status), answer.claim_token

    def tick(self, by: timedelta) -> None:
        self.clock.advance(by)
        for task in self.tasks.values():
            task.at(self.clock())

    @precondition(lambda self: len(self.tasks) < FEW)
    @rule(manager=managers, key=keys, most=bounds)
    def submit(self, manager: int, key: str | None, most: int) -> None:
        known = [task.id for task in self.tasks.values() if key is not None and task.key == key]
        id = self.run(self.managers[manager].asubmit(b"x", idempotency_key=key, max_attempts=most))
        if known:
            assert [id] == known
        else:
            assert id not in self.tasks
            self.tasks[id] = Model(id, key, most)

    @precondition(lambda self: self.tasks)
    @rule(
        place=places,
        manager=managers,
        worker=workers,
        token=passed,
        text=st.sampled_from(["this", "that"]),
        name=st.sampled_from(["claim", "claim", "claim", "complete", "fail", "fail", "heartbeat", "retry"]),
    )
    def call(self, place: int, manager: int, worker: str, token: str, text: str, name: str) -> None:
        self.tick(MOMENT)  # no two settles at one moment
        task = self.one(place)
        tokens = {"none": None, "wrong": WRONG, "latest": WRONG, "earlier": WRONG}
        tokens.update(zip(("latest", "earlier"), reversed(task.tokens), strict=False))
        call = Call(manager, worker, tokens[token], text)
        more: dict[str, tuple[Any, ...]] = {"fail": (text,), "complete": (text.encode(),)}
        verb = getattr(self.managers[manager], f"a{name}")
        expected = getattr(task, name)(call, self.clock())
        if name == "retry":
            answer, told = self.said(verb(task.id))
        else:
            answer, told = self.said(verb(task.id, worker, *more.get(name, ()), token=call.token))
        assert answer == expected
        if (name, answer) == ("claim", "claimed"):
            assert told is not None
            task.claimed(call, told)
        else:
            assert told is None

    @precondition(lambda self: self.tasks)
    @rule(place=places, manager=managers)
    def delete(self, place: int, manager: int) -> None:
        task = self.one(place)
        if task.status in ("completed", "failed"):
            self.run(self.managers[manager].adelete(task.id))
            del self.tasks[task.id]
        else:
            assert self.said(self.managers[manager].adelete(task.id))[0] == "TaskNotTerminal"

    @precondition(lambda self: self.tasks)
    @rule(place=places, reason=st.sampled_from([None, "bad order"]))
    def operate(self, place: int, reason: str | None) -> None:
        """An operator cancels a task, or dead-letters it with a reason."""
        task = self.one(place)
        lapsed = task.status == "pending" and task.claims and self.is_inflight(task)
        if reason is None:
            (answer,) = self.run(self.operator.jobs.acancel(task.id))
            end, wanted = "cancelled", "cancelled by an operator"
        else:
            death = DeadLetter(id=task.id, reason=reason, fingerprint="f", keep_until=self.clock())
            (answer,) = self.run(self.drivers[0].dead_letter([death], self.clock()))
            end, wanted = "dead", f"dead-lettered: {reason}"
        if task.status in ("completed", "failed"):
            assert answer == "finished"
            return
        assert answer == ("requested" if lapsed or task.status == "claimed" else end)
        task.stop = wanted if reason is None or task.stop is None else task.stop
        if task.status == "pending":
            task.back()

    def is_inflight(self, task: Model) -> bool:
        (job,) = self.run(self.drivers[0].get([task.id]))
        return bool(job.state == "inflight")

    @rule(by=st.sampled_from([0.1 * LEASE, LEASE - MOMENT, LEASE]))
    def wait(self, by: timedelta) -> None:
        self.tick(by)

    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        for task in self.tasks.values():
            seen: Task = self.run(self.managers[0].aget(task.id))
            assert (seen.status, seen.attempts, seen.idempotency_key) == (task.status, task.claims, task.key)
            assert (seen.claimed_by, seen.claim_token) == (task.worker, None)
            held = task.status == "claimed"
            assert seen.claim_expires_at == (task.until if held else None)
            assert seen.cancel_requested == (held and task.stop is not None)
            assert seen.result == (None if task.result is None else task.result.encode())
            told = [task.ended] if task.status == "failed" else []
            told += [None if task.failure is None or task.status == "completed" else task.failure[1]]
            assert seen.error == ("; before that: ".join(filter(None, told)) or None)
            if task.key is not None:
                assert self.run(self.managers[1].aget_by_idempotency_key(task.key)) == seen
        if self.tasks:
            listed = self.run(self.managers[1].alist())
            assert [task.id for task in listed] == list(self.tasks)
            assert {task.claim_token for task in listed} == {None}


class HistoriesOnSqlite(Histories):
    """The same on a file, through two connections."""

    async def open(self) -> list[Driver]:
        self.folder = tempfile.TemporaryDirectory()
        url = f"sqlite:///{self.folder.name}/tasks.db?synchronous=normal"
        return [await from_url(url), await from_url(url)]

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            self.folder.cleanup()


@pytest.mark.parametrize(("machine", "examples"), [(Histories, 200), (HistoriesOnSqlite, 10)], ids=["memory", "sqlite"])
def test_random_histories_agree_with_the_model(machine: type[Histories], examples: int) -> None:
    """M1, M2, M3, M4: whatever two managers and an operator do, in whatever order, and however much time passes."""
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=50, deadline=None))
