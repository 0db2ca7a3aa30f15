"""Blocking callers as simulated processes: the same faults, the same judges, the same trace from the same seed."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from unittest import mock

import pytest

from servers.postgres import PostgresServer
from taskharbor import Harbor
from taskharbor.client.client import Client
from taskharbor.drivers.postgres.driver import PostgresDriver
from taskharbor.errors import DriverUnavailable
from taskharbor.testing import Deadlock
from taskharbor.testing.faults import Wrapper
from taskharbor.testing.history import Called, Raised, Returned
from taskharbor.testing.simulation import Cluster, Faults, assert_holds, blocking, simulate
from taskharbor.testing.simulation.workload import everything

from .blocking_callers import CALLS, called, callers, judged, stored

BLOCKING_SEEDS = {0, 1, 3, 5, 10, 11}  # 3 and 5 run on SQLite and PostgreSQL, too, and in other processes


@pytest.mark.parametrize("driver", ["memory", "sqlite"])
def test_every_blocking_enqueue_is_whole_or_not_there(driver: str) -> None:
    """P1, D1: calls return, raise, or never return because their process is dead; the checker sees each."""
    ends = {"returned": 0, "raised": 0, "none": 0}
    for seed in range(4):
        result, them = judged(seed, driver)
        enqueues = {(event.who, event.number) for event in result.events if isinstance(event, Called)}
        back = {(event.who, event.number) for event in result.events if isinstance(event, Returned)}
        failed = {(event.who, event.number) for event in result.events if isinstance(event, Raised)}
        mine = {call for call in enqueues if call[0].startswith("client")}
        assert len(mine) == CALLS
        assert len(mine & back) == len(them.confirmed)
        ends["returned"] += len(mine & back)
        ends["raised"] += len(mine & failed)
        ends["none"] += len(mine - back - failed)
        assert judged(seed, driver)[0].trace() == result.trace()
    assert all(ends.values()), ends


def test_postgres_keeps_them_whole_too(postgres: PostgresServer) -> None:
    """P1, D1: by psycopg, while virtual time stands still."""
    url, calls = postgres.url(postgres.new_database()), list[Any]()
    enqueue = PostgresDriver.enqueue_blocking

    def noted(self: PostgresDriver, *given: Any) -> Any:
        calls.append(given)
        return enqueue(self, *given)

    with mock.patch.object(PostgresDriver, "enqueue_blocking", noted):
        assert judged(0, url)[0].trace() == judged(0, url)[0].trace()
    assert len(calls) > CALLS  # in both runs; some requests were lost


@pytest.mark.parametrize(("faults", "jobs"), [(Faults(lost_requests=1.0), 0), (Faults(lost_replies=1.0), 1)])
@pytest.mark.parametrize("silence", [0.0, 1.0])
def test_a_lost_request_stores_nothing_and_a_lost_reply_everything(faults: Faults, jobs: int, silence: float) -> None:
    """X2: the caller gets an error either way, after `store_timeout` if there is no reply at all."""
    found: list[int] = []
    faults = Faults(lost_requests=faults.lost_requests, lost_replies=faults.lost_replies, silence=silence)

    async def client() -> None:
        before = asyncio.get_running_loop().time()
        with pytest.raises(DriverUnavailable):
            await asyncio.to_thread(called.enqueue, 1)
        assert (asyncio.get_running_loop().time() - before == 5) == bool(silence)

    async def scenario(cluster: Cluster) -> None:
        await cluster.client(callers, client).ended.wait()
        found.append(len(await cluster.undisturbed(stored)))
        cluster.workers(callers)

    assert_holds(scenario, 1, faults=faults)
    assert found == [jobs]


def test_a_caller_that_is_killed_never_goes_on_and_its_request_does() -> None:
    """X1: kill -9 in the middle of a blocking call."""
    after: list[str] = []
    found: list[int] = []

    def call() -> None:
        try:
            called.enqueue(1)
        except Exception:
            after.append("raised")
        else:
            after.append("returned")

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(callers, lambda: asyncio.to_thread(call))
        await asyncio.sleep(0.001)
        cluster.kill(client)
        await asyncio.sleep(60)
        found.append(len(await cluster.undisturbed(stored)))
        cluster.workers(callers)

    assert_holds(scenario, 1, faults=Faults(delay=0.5))
    assert (after, found) == ([], [1])
    assert not [thread for thread in threading.enumerate() if isinstance(thread, blocking._CallThread)]


def test_blocking_clients_are_part_of_the_standard_scenario() -> None:
    """P1: in some seeds, by `enqueue`, `enqueue_many` and flows."""
    submit, seen = Client.submit_blocking, dict[int, set[str]]()

    def noted(client: Client, twin: str, what: Any) -> Any:
        seen.setdefault(seed, set()).add(type(what).__name__)
        return submit(client, twin, what)

    with mock.patch.object(Client, "submit_blocking", noted):
        for seed in range(12):
            simulate(everything, seed)
    assert seen.keys() == BLOCKING_SEEDS
    assert set.union(*seen.values()) == {"SingleCall", "CallGroup", "Plan"}


def test_the_blocking_verb_of_the_store_is_what_is_called() -> None:
    """P1: not the awaited one, and in a thread without an event loop, as in production."""
    calls = list[str]()
    perform = Wrapper._enqueue_blocking

    def noted(self: Wrapper, *given: Any) -> Any:
        calls.append(type(self).__name__)
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return perform(self, *given)

    with mock.patch.object(Wrapper, "_enqueue_blocking", noted):
        judged(0)
    assert len(calls) == 2 * CALLS  # the recorder, and the network


def test_every_blocking_twin_waits_in_virtual_time() -> None:
    """P1: results too."""
    harbor, came = Harbor("memory://"), list[int]()

    @harbor.task
    async def slow(number: int) -> int:
        await asyncio.sleep(600)
        return number

    def call() -> None:
        came.append(slow.enqueue(7).result())

    async def scenario(cluster: Cluster) -> None:
        cluster.workers(harbor)
        await cluster.client(harbor, lambda: asyncio.to_thread(call)).ended.wait()

    assert_holds(scenario, 1, faults=Faults())
    assert came == [7]


def test_a_thread_that_never_comes_back_is_an_error() -> None:
    """A simulation does not hang."""
    forever = threading.Event()

    async def scenario(cluster: Cluster) -> None:
        await cluster.client(callers, lambda: asyncio.to_thread(forever.wait)).ended.wait()

    with mock.patch.object(blocking, "RETURN_WITHIN", 0.01), pytest.raises(Deadlock, match="blocking call"):
        simulate(scenario, 1, faults=Faults())
    forever.set()


def test_only_threads_of_simulated_processes_wait_for_the_loop() -> None:
    """The message names the way."""

    async def nothing() -> None: ...

    with pytest.raises(RuntimeError, match="to_thread"):
        blocking.wait_for(nothing)
