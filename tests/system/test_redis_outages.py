"""A Valkey that is killed and restarted under load, or not there yet (X2, X3)."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path

import pytest

from drivers.redis import indexes
from servers.fixtures import NewValkey
from servers.valkey import ValkeyServer

from .crew import Crew
from .outages import finish, load, works_again

NAMESPACE = "outages"
KILLS = 5
LOST = 3_000  # bytes of the log, some tens of changes


@pytest.fixture(params=[False, True], ids=["everysec", "always"])
def server(new_valkey: NewValkey, request: pytest.FixtureRequest) -> ValkeyServer:
    """A server to break, which syncs its log every second or before every answer."""
    return new_valkey(durable=request.param)


@pytest.fixture
def crew(tmp_path: Path, server: ValkeyServer) -> Generator[Crew]:
    """A crew on it. A claim whose reply is lost lapses, which is counted as a crash; here that proves nothing."""
    crew = Crew(tmp_path, url=server.url(namespace=NAMESPACE), max_crashes=None)
    try:
        yield crew
    finally:
        crew.close()
    indexes.check(server, NAMESPACE)


def test_work_resumes_after_kills_and_restarts_under_load(crew: Crew, server: ValkeyServer) -> None:
    """X2, X3, H1-H9: the server is killed and restarted, with two workers and a client at work.

    With `always` nothing is lost. With `everysec` each kill takes the end of the log along, as a power cut may: what is
    left is whole, and ends. (Redis may apply half of a cut change at its next start; test_cut_log.py shows the repair.)
    """
    forgets = not server.durable and b"valkey" in server.command("INFO", "server")
    workers = [crew.worker(), crew.worker()]
    client = load(crew)
    works_again(crew, workers, 0, "the start")
    for number in range(KILLS):
        server.kill()
        if forgets:
            server.cut_log(LOST)
        server.start()
        works_again(crew, workers, time.monotonic(), f"kill {number + 1}")
    server.restart()
    works_again(crew, workers, time.monotonic(), "the restart")
    server.kill()
    client.says("refused: ")
    server.start()
    works_again(crew, workers, time.monotonic(), "the last kill")
    finish(crew, workers, client, forgetful=not server.durable)


def test_a_worker_waits_for_a_server_that_is_not_there_yet(crew: Crew, server: ValkeyServer) -> None:
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
