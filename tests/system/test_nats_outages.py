"""A NATS server that is killed, restarted, frozen or cut off under load, or not there yet (X2, X3)."""

from __future__ import annotations

import signal
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from servers.fixtures import NewNats
from servers.nats import NatsServer
from taskharbor.testing.proxy_thread import ProxyThread

from .crew import Crew, until
from .outages import finish, load, works_again

NAMESPACE = "outages"
KILLS, CUTS = 4, 12
LEASE = 1.0
WITHIN = 15.0  # a server that is frozen is given up after a few seconds


@pytest.fixture
def server(new_nats: NewNats) -> NatsServer:
    """A server to break. It syncs before every answer."""
    return new_nats(durable=True)


def crew_on(folder: Path, url: str) -> Crew:
    """A claim whose reply is lost lapses, which is counted as a crash; here that proves nothing."""
    return Crew(folder, url=url, max_crashes=None)


@pytest.fixture
def crew(tmp_path: Path, server: NatsServer) -> Generator[Crew]:
    """A crew on it."""
    crew = crew_on(tmp_path, server.url(namespace=NAMESPACE))
    try:
        yield crew
    finally:
        crew.close()


@pytest.fixture
def proxy(server: NatsServer) -> Generator[ProxyThread]:
    """A way to it that can be broken."""
    with ProxyThread("127.0.0.1", server.port) as proxy:
        yield proxy


def test_work_resumes_after_kills_and_restarts_under_load(crew: Crew, server: NatsServer) -> None:
    """X2, X3, H1-H9: the server is killed and restarted, with two workers and a client at work: nothing is lost."""
    workers = [crew.worker(), crew.worker()]
    client = load(crew)
    works_again(crew, workers, 0, "the start")
    for number in range(KILLS):
        server.kill()
        server.start()
        works_again(crew, workers, time.monotonic(), f"kill {number + 1}")
    server.restart()
    works_again(crew, workers, time.monotonic(), "the restart")
    server.kill()
    client.says("refused: ")
    server.start()
    works_again(crew, workers, time.monotonic(), "the last kill")
    finish(crew, workers, client)


def test_a_server_that_freezes_is_left_and_found_again(crew: Crew, server: NatsServer) -> None:
    """X2, X3, L4, H1-H9: it stops answering for longer than the leases, and goes on with all it was asked."""
    workers = [crew.worker(lease=LEASE), crew.worker(lease=LEASE)]
    client = load(crew)
    works_again(crew, workers, 0, "the start")
    for number in range(2):
        server.freeze()
        client.says("refused: ") if number else until(lambda: all(_has_lost(it.lines) for it in workers), "all notice")
        server.thaw()
        works_again(crew, workers, time.monotonic(), f"freeze {number + 1}", WITHIN)
    finish(crew, workers, client)


def _has_lost(lines: list[str]) -> bool:
    return any("lease.lost" in line or "store.unavailable" in line for line in lines)


def test_cut_connections_and_lost_replies_cost_nothing(tmp_path: Path, server: NatsServer, proxy: ProxyThread) -> None:
    """X2, X3, D8, H1-H9: whatever had an unknown outcome is repeated, and what had happened is not done again."""
    crew = crew_on(tmp_path, server.url(namespace=NAMESPACE).replace(str(server.port), str(proxy.port)))
    try:
        workers = [crew.worker(), crew.worker()]
        client = load(crew)
        works_again(crew, workers, 0, "the start")
        for number in range(CUTS):
            if number % 3:
                cut = proxy.cut_after(300 * number, "to_client")
                until(lambda: cut.done, "a reply is lost")  # noqa: B023
            else:
                proxy.reset()
            works_again(crew, workers, time.monotonic(), f"cut {number + 1}")
        until(lambda: watches(server) == len(workers), "no watch is left of lost connections")
        finish(crew, workers, client)
    finally:
        crew.close()


def watches(server: NatsServer) -> int:
    """The consumers that the server keeps for watches of the line."""
    number: int = server.api(f"STREAM.INFO.{NAMESPACE}-LINE")["state"]["consumer_count"]
    return number


def test_watches_go_with_their_workers(crew: Crew, server: NatsServer) -> None:
    """One for each worker, whether the server was restarted or not; none for those that were stopped."""
    for number in range(3):
        workers = [crew.worker(), crew.worker()]
        job = crew.enqueue("quick", {"number": number})
        crew.ended(job)
        until(lambda: watches(server) == len(workers), "each worker has one")  # noqa: B023
        if number == 1:
            server.kill()
            server.start()
            until(lambda: watches(server) == len(workers), "each worker has one again")  # noqa: B023
        for worker in workers:
            worker.signal(signal.SIGTERM)
            assert worker.ends() == 0, worker.story
        until(lambda: not watches(server), "none is left")
    assert server.streams(NAMESPACE) == [f"{NAMESPACE}-JOBS", f"{NAMESPACE}-LINE"]
    crew.judge()
    until(lambda: not watches(server), "none is left of those who listed")


@pytest.mark.thorough
def test_watches_of_killed_workers_go_by_themselves(crew: Crew, server: NatsServer) -> None:
    """After half a minute."""
    for _ in range(5):
        crew.worker().kill()
    assert watches(server) > 0
    until(lambda: not watches(server), "none is left")


def test_a_worker_waits_for_a_server_that_is_not_there_yet(crew: Crew, server: NatsServer) -> None:
    """X2: started before its server, a worker says so, stays, and begins when the server does."""
    server.stop()
    worker = crew.worker(ready=False)
    worker.says("store.unavailable: cannot open the store")
    assert worker.running
    server.start()
    worker.says("worker.started")
    job = crew.enqueue("quick", {"number": 1})
    assert crew.ended(job).state == "done"
    crew.judge()
