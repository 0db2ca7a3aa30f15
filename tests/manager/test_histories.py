"""Random histories of two managers against a model of a few lines: claims, lapses, retries, deletes, keys, cancels."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass
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
Holder = tuple[int, str]
managers = st.integers(0, 1)
workers = st.sampled_from(["w1", "w2"])
keys = st.sampled_from([None, None, "a", "b"])
bounds = st.sampled_from([0, 1, 2, 3])
places = st.integers(0, 100)


@dataclass
class Model:
    """A task as it must be: `claims` is how often it was claimed, `holder` who has it until `until`."""

    id: str
    key: str | None
    most: int
    status: str = "pending"
    claims: int = 0
    holder: Holder | None = None
    until: datetime = EPOCH
    stopping: bool = False

    @property
    def spent(self) -> bool:
        return self.most > 0 and self.claims >= self.most

    def at(self, now: datetime) -> None:
        """Let a claim lapse; one that an operator stopped ends then."""
        if self.status == "claimed" and self.until <= now:
            self.back()

    def back(self) -> None:
        """Pending again, or cancelled if that was asked for: that frees the key."""
        self.status, self.holder = "pending", None
        if self.stopping:
            self.status, self.key, self.stopping = "failed", None, False

    def claim(self, who: Holder, now: datetime) -> str:
        if self.status == "claimed":
            if self.holder != who:
                return "TaskAlreadyClaimed"
            self.until = now + LEASE
            return "claimed"
        if self.status != "pending":
            return f"Task{self.status.capitalize()}"
        if self.spent:
            self.status = "failed"
            return "MaxAttemptsReached"
        self.status, self.holder, self.until = "claimed", who, now + LEASE
        self.claims += 1
        return "claimed"

    def _refused(self, who: Holder) -> str | None:
        if self.status == "claimed":
            return None if self.holder == who else "WrongWorker"
        return "TaskNotClaimed" if self.status == "pending" else f"Task{self.status.capitalize()}"

    def heartbeat(self, who: Holder, now: datetime) -> str:
        refused = self._refused(who)
        self.until = self.until if refused else now + LEASE
        return refused or "claimed"

    def complete(self, who: Holder, now: datetime) -> str:
        if self.status == "completed":
            return "completed"
        refused = self._refused(who)
        if refused is None:
            self.status, self.holder, self.stopping = "completed", None, False
        return refused or "completed"

    def fail(self, who: Holder, now: datetime) -> str:
        if self.status == "failed":
            return "failed"
        if (refused := self._refused(who)) is not None:
            return refused
        if self.spent:
            self.status, self.holder, self.stopping = "failed", None, False
        else:
            self.back()
        return self.status

    def retry(self, who: Holder, now: datetime) -> str:
        if self.status == "completed":
            return "TaskCompleted"
        if self.spent:
            return "MaxAttemptsReached"
        if self.status == "claimed":
            self.back()
        self.status = "pending"  # also if it was to be cancelled; then its key is gone
        return self.status


class Histories(RuleBasedStateMachine):
    """Two managers on one store; after every step all that can be seen is what the model says."""

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

    def said(self, call: Coroutine[Any, Any, Any]) -> str:
        """The status that a call led to, or the error."""
        try:
            answer = self.run(call)
        except TaskError as error:
            return type(error).__name__
        return str(answer.status) if isinstance(answer, Task) else "claimed"

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
        name=st.sampled_from(["claim", "claim", "claim", "complete", "fail", "heartbeat", "retry"]),
    )
    def call(self, place: int, manager: int, worker: str, name: str) -> None:
        task, tasks = self.one(place), self.managers[manager]
        more = {"fail": ("no",), "complete": (b"yes",)}.get(name, ())
        given = (task.id,) if name == "retry" else (task.id, worker, *more)
        expected = getattr(task, name)((manager, worker), self.clock())
        assert self.said(getattr(tasks, f"a{name}")(*given)) == expected

    @precondition(lambda self: self.tasks)
    @rule(place=places, manager=managers)
    def delete(self, place: int, manager: int) -> None:
        task = self.one(place)
        if task.status in ("completed", "failed"):
            self.run(self.managers[manager].adelete(task.id))
            del self.tasks[task.id]
        else:
            assert self.said(self.managers[manager].adelete(task.id)) == "TaskNotTerminal"

    @precondition(lambda self: self.tasks)
    @rule(place=places)
    def cancel(self, place: int) -> None:
        task = self.one(place)
        lapsed = task.status == "pending" and task.claims and self.is_inflight(task)
        (answer,) = self.run(self.operator.jobs.acancel(task.id))
        if task.status == "claimed":
            assert answer == "requested"
            task.stopping = True
        elif task.status == "pending":
            assert answer == ("requested" if lapsed else "cancelled")
            task.stopping = True
            task.back()

    def is_inflight(self, task: Model) -> bool:
        (job,) = self.run(self.drivers[0].get([task.id]))
        return bool(job.state == "inflight")

    @rule(by=st.sampled_from([0.1 * LEASE, LEASE - MOMENT, LEASE]))
    def wait(self, by: timedelta) -> None:
        self.clock.advance(by)
        for task in self.tasks.values():
            task.at(self.clock())

    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        for task in self.tasks.values():
            seen = self.run(self.managers[0].aget(task.id))
            assert (seen.status, seen.attempts, seen.idempotency_key) == (task.status, task.claims, task.key)
            holder = (task.holder[1], task.until) if task.holder else (None, None)
            assert (seen.claimed_by, seen.claim_expires_at) == holder
        if self.tasks:
            listed = self.run(self.managers[1].alist())
            assert [task.id for task in listed] == list(self.tasks)


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
