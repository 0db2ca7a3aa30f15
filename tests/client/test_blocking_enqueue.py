"""Every blocking enqueue reaches the driver's blocking verb in the caller's thread, by the rules of the awaited one."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor, chain
from taskharbor.driver import Group, GroupResult
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import DriverClosed, DriverUnavailable, PayloadTooLarge
from taskharbor.manager import TaskManager
from taskharbor.testing import Outage, Recording, Slow


class Noting(MemoryDriver):
    """Notes the threads in which groups are stored by the blocking verb."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    def enqueues_blocking(self, groups: Any) -> bool:
        return True

    def enqueue_blocking(self, groups: Any, now: Any, timeout: float) -> list[GroupResult]:
        self.threads.append(threading.get_ident())
        return super().enqueue_blocking(groups, now, timeout)


class Shop:
    """A harbor with two tasks."""

    def __init__(self, driver: Any, **settings: Any) -> None:
        self.harbor = Harbor(driver=driver, **settings)
        self.first = self.harbor.task(name="first")(_first)
        self.second = self.harbor.task(name="second")(_second)


def _first(n: int) -> int:
    return n


def _second(n: int) -> None: ...


WAYS: dict[str, Callable[[Shop], object]] = {
    "task": lambda shop: shop.first.enqueue(1),
    "using": lambda shop: shop.first.using(idempotency_key="k", delay=5).enqueue(1),
    "name": lambda shop: shop.harbor.enqueue("first", {"n": 1}),
    "many": lambda shop: shop.harbor.enqueue_many([shop.first.step(1), shop.first.step(2)]),
    "flow": lambda shop: chain(shop.first.step(1), shop.second).enqueue(),
    "manager": lambda shop: TaskManager(shop.harbor).submit(b"x"),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_enqueue_stores_in_this_thread(way: str) -> None:
    """P1, D1, M1: one call, without a hop."""
    store = Noting()
    shop = Shop(store)
    WAYS[way](shop)
    assert store.threads == [threading.get_ident()]
    shop.harbor.close()


@pytest.mark.parametrize("way", WAYS)
def test_recordings_and_faults_see_every_way(way: str) -> None:
    """D14: as an `enqueue`, once; a store that is down refuses it."""
    log = Recording(Noting())
    outage = Outage(log)
    shop = Shop(outage)
    WAYS[way](shop)
    groups: list[list[Group]] = [call["groups"] for call in log.calls("enqueue")]
    assert len(groups) == 1
    outage.down = True
    with pytest.raises(DriverUnavailable, match="down"):
        WAYS[way](shop)
    assert len(log.calls("enqueue")) == 1
    shop.harbor.close()


def test_a_store_that_takes_too_long_is_unavailable() -> None:
    """X2: within `store_timeout`, and the message does not claim that nothing happened."""
    shop = Shop(Slow(Noting(), 30), store_timeout=0.05)
    with pytest.raises(DriverUnavailable, match="may still take effect"):
        shop.first.enqueue(1)


def test_a_payload_over_the_limit_is_refused_before_anything_is_stored() -> None:
    """R4, X5."""
    store = Noting()
    shop = Shop(store, payload_limit=20)
    with pytest.raises(PayloadTooLarge):
        shop.first.enqueue(10**30)
    assert store.threads == []
    shop.harbor.close()


def test_another_store_stands_in_for_blocking_callers(tmp_path: Path) -> None:
    """P1: inside the block, and not after it."""
    own, other = Noting(), Noting()
    shop = Shop(own)
    with shop.harbor.stand_in(other):
        shop.first.enqueue(1)
    shop.first.enqueue(2)
    assert (len(own.threads), len(other.threads)) == (1, 1)
    shop.harbor.close()


def test_a_harbor_on_a_file_opens_again_after_it_was_closed(tmp_path: Path) -> None:
    """P1, D10: its driver does not, and says so."""
    harbor = Harbor(f"sqlite:///{tmp_path}/jobs.db")
    first = harbor.task(name="first")(_first)
    first.enqueue(1)
    driver: Any = harbor.driver()
    harbor.close()
    with pytest.raises(DriverClosed):
        driver.enqueue_blocking([], None, 1.0)
    first.enqueue(2)
    assert len(harbor.admin.jobs.list()) == 2
    harbor.close()


def test_options_and_lineage_are_those_of_the_awaited_way(tmp_path: Path) -> None:
    """R5: a handler that enqueues is named in the headers of the job."""
    harbor = Harbor(f"sqlite:///{tmp_path}/jobs.db")
    second = harbor.task(name="second", queue="q", priority=3)(_second)

    @harbor.task(name="parent")
    def parent() -> str:
        return second.enqueue(1).id

    job = parent.enqueue()
    harbor.drain(["default"])
    child = harbor.admin.jobs.get(job.result(5))
    assert (child.queue, child.priority, child.headers["parent_id"]) == ("q", 3, job.id)
    harbor.close()


LAST = """
from taskharbor import Harbor
from taskharbor.errors import DriverClosed

harbor = Harbor("memory://")

@harbor.task
def work(): ...

class Last:
    def __del__(self, work=work, closed=DriverClosed, print=print):
        try:
            work.enqueue()
        except closed as error:
            print(error)

work.enqueue()
last = Last()
"""


def test_a_finalizer_at_the_end_of_the_interpreter_does_not_wait_for_a_thread(tmp_path: Path) -> None:
    """P1: threads have ended by then, so a call that needs one is refused."""
    file = tmp_path / "program.py"
    file.write_text(LAST)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the interpreter is shutting down" in done.stdout
