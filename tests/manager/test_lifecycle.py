"""Opening and closing, blocking twins, threads, and what a manager is made on."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import taskharbor.manager
from taskharbor import Harbor
from taskharbor.core.job import LAST_MOMENT
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import BlockingCallInLoop, ConfigError, DriverClosed, StoreClosed, TaskAlreadyClaimed, TaskError
from taskharbor.manager import Task, TaskManager
from taskharbor.testing import ManualClock

from .stage import World, played

CALLS: dict[str, tuple[Any, ...]] = {
    "submit": (b"x",),
    "claim": ("id", "w1"),
    "heartbeat": ("id", "w1"),
    "complete": ("id", "w1"),
    "fail": ("id", "w1", "no"),
    "retry": ("id",),
    "get": ("id",),
    "get_by_idempotency_key": ("k",),
    "list": (),
    "delete": ("id",),
}


def url(folder: Path) -> str:
    """A file of its own."""
    return f"sqlite:///{folder}/tasks.db?synchronous=normal"


def test_every_call_has_a_blocking_twin(tmp_path: Path) -> None:
    """M1, P1: a whole life without an event loop."""
    with TaskManager(url(tmp_path)) as tasks:
        id = tasks.submit(b"work", idempotency_key="k", max_attempts=2)
        assert tasks.get_by_idempotency_key("k").status == "pending"
        assert tasks.claim(id, "w1").attempts == 1
        assert tasks.heartbeat(id, "w1", 0.5) == tasks.get(id)
        assert tasks.retry(id).status == "pending"
        tasks.claim(id, "w1")
        assert tasks.fail(id, "w1", "no").status == "failed"
        assert [task.id for task in tasks.list("failed")] == [id]
        tasks.delete(id)
        assert tasks.list() == []
        again = tasks.submit(b"work")
        tasks.claim(again, "w1")
        assert tasks.complete(again, "w1", b"done").result == b"done"


def test_a_blocking_call_on_a_running_loop_names_its_twin() -> None:
    """P1: as everywhere."""

    async def play() -> None:
        async with TaskManager("memory://") as tasks:
            with pytest.raises(BlockingCallInLoop, match=r"await ….asubmit"):
                tasks.submit(b"x")

    asyncio.run(play())


def test_tasks_survive_their_manager(tmp_path: Path) -> None:
    """G2, M4: what was stored is there for the next one; what was claimed is not its own."""
    with TaskManager(url(tmp_path)) as tasks:
        id = tasks.submit(b"work", idempotency_key="k")
        tasks.claim(id, "w1")
    with TaskManager(url(tmp_path)) as tasks:
        assert tasks.submit(b"work", idempotency_key="k") == id
        with pytest.raises(TaskAlreadyClaimed):
            tasks.claim(id, "w1")


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", ["url", "driver", "harbor"])
def test_after_close_every_call_is_refused(name: str, kind: str) -> None:
    """M3: blocking and async; closing again is fine."""
    stores: dict[str, Any] = {"url": "memory://", "driver": MemoryDriver(), "harbor": Harbor("memory://")}
    tasks = TaskManager(stores[kind])
    tasks.submit(b"x")
    tasks.close()
    tasks.close()
    with pytest.raises(StoreClosed, match="make a new one"):
        getattr(tasks, name)(*CALLS[name])

    async def play() -> None:
        await tasks.aclose()
        with pytest.raises(StoreClosed):
            await getattr(tasks, f"a{name}")(*CALLS[name])

    asyncio.run(play())


def test_what_a_manager_opened_it_closes_and_nothing_else() -> None:
    """M1: a driver or a harbor that it was given is the giver's."""

    async def play() -> None:
        driver, harbor = MemoryDriver(), Harbor("memory://")
        async with TaskManager(driver) as tasks, TaskManager(harbor) as others:
            id, other = await tasks.asubmit(b"x"), await others.asubmit(b"x")
        assert (await driver.get([id]))[0] is not None
        assert (await TaskManager(harbor).aget(other)).id == other
        async with TaskManager("memory://") as own:
            await own.asubmit(b"x")
            opened = await own._lifecycle.harbor.adriver()
        with pytest.raises(DriverClosed):
            await opened.reserve([], ManualClock()(), LAST_MOMENT - ManualClock()(), 1, "w", [])

    asyncio.run(play())


def test_a_store_that_its_owner_closed_says_so() -> None:
    """D10: that is not the manager's doing."""

    async def play() -> None:
        driver = MemoryDriver()
        tasks = TaskManager(driver)
        await tasks.asubmit(b"x")
        await driver.close()
        with pytest.raises(DriverClosed):
            await tasks.alist()

    asyncio.run(play())


@pytest.mark.parametrize("store", [7, b"memory://", object(), MemoryDriver])
def test_an_object_that_is_not_a_store_is_refused(store: Any) -> None:
    """X5: the error says what there is."""
    with pytest.raises(ConfigError, match="a URL, a Harbor or an open driver"):
        TaskManager(store)


def test_a_broken_url_is_refused_at_once() -> None:
    """X5: before the first call."""
    with pytest.raises(ConfigError):
        TaskManager("nonsense")


@pytest.mark.parametrize("lease", [0, -1, 0.001, float("nan"), float("inf"), 31 * 86400, True, "30", None])
def test_a_lease_that_is_none_is_refused(lease: Any) -> None:
    """D4, X5: from a hundredth of a second to thirty days."""
    with pytest.raises(ConfigError, match="lease must be from"):
        TaskManager("memory://", lease=lease)


def test_a_harbors_clock_is_its_own() -> None:
    """X5: two clocks would be one too many."""
    with pytest.raises(ConfigError, match="give them to Harbor"):
        TaskManager(Harbor("memory://"), clock=ManualClock())


def test_without_a_store_the_harbors_rule_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P: argument, environment, configuration, default; a password is not shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKHARBOR_URL", url(tmp_path))
    with TaskManager() as tasks:
        tasks.submit(b"x")
        assert "tasks.db" in repr(tasks)
    assert (tmp_path / "tasks.db").exists()
    assert "secret" not in repr(TaskManager("postgresql://me:secret@host/db"))


def test_one_manager_serves_many_threads(tmp_path: Path) -> None:
    """P1, D12: eight threads, each with its own worker id, and every task is claimed once."""
    with TaskManager(url(tmp_path)) as tasks:
        ids = [tasks.submit(b"%d" % n) for n in range(40)]

        def agent(number: int) -> list[str]:
            mine: list[str] = []
            for id in ids:
                try:
                    tasks.claim(id, f"w{number}")
                except TaskError:
                    continue
                mine.append(id)
                tasks.complete(id, f"w{number}", b"%d" % number)
            return mine

        with ThreadPoolExecutor(8) as pool:
            shares = list(pool.map(agent, range(8)))
        assert sorted(id for share in shares for id in share) == sorted(ids)
        by = {task.id: int(task.result or b"") for task in tasks.list("completed")}
        assert all(by[id] == number for number, share in enumerate(shares) for id in share)
        assert {task.attempts for task in tasks.list()} == {1}
        assert len(tasks._claims) == 0


def test_one_manager_serves_several_loops() -> None:
    """P1: a claim made on one loop can be completed on another, and by a blocking call."""
    tasks = TaskManager("memory://")
    id = asyncio.run(tasks.asubmit(b"x"))
    asyncio.run(tasks.aclaim(id, "w1"))
    assert asyncio.run(tasks.aheartbeat(id, "w1")) is not None
    assert tasks.complete(id, "w1").status == "completed"
    tasks.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_owns_nothing() -> None:
    """M4: it did not claim what its parent did."""
    tasks = TaskManager("memory://")
    id = asyncio.run(tasks.asubmit(b"x"))
    asyncio.run(tasks.aclaim(id, "w1"))
    child = os.fork()
    if child == 0:
        os._exit(len(tasks._claims))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(tasks._claims) == 1


@played
async def test_a_manager_on_a_harbor_shares_its_store_and_settings(w: World) -> None:
    """M1: tasks and jobs beside each other."""
    harbor = w.harbor()
    tasks = TaskManager(harbor)
    id = await tasks.asubmit(b"x")
    assert isinstance(await w.other.aget(id), Task)
    assert (await harbor.job(id).astate()) == "ready"


def test_the_package_names_everything_in_order() -> None:
    """M3: every error can be imported from where the manager is."""
    names = taskharbor.manager.__all__
    assert sorted(names) == names
    errors = {kind.__name__ for kind in TaskError.__subclasses__()}
    assert errors | {"TaskError"} | {"Task", "TaskManager", "TaskStatus"} == set(names)
