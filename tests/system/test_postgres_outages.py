"""A PostgreSQL that is restarted, killed or away, and sessions that are ended, under load (X2, X3)."""

from __future__ import annotations

import time
from collections.abc import Generator
from itertools import cycle
from pathlib import Path
from typing import Literal

import pytest

from servers.fixtures import NewPostgres
from servers.postgres import PostgresServer

from .crew import Crew, until
from .outages import finish, load, works_again

RESTARTS = 10
ENDINGS = 15
OTHERS = "from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
SESSIONS, END_ALL = f"select pid {OTHERS}", f"select pg_terminate_backend(pid) {OTHERS}"


@pytest.fixture
def server(new_postgres: NewPostgres) -> PostgresServer:
    """A server to break."""
    return new_postgres()


@pytest.fixture
def crew(tmp_path: Path, server: PostgresServer) -> Generator[Crew]:
    """A crew on it. A claim whose reply is lost lapses, which is counted as a crash; here that proves nothing."""
    crew = Crew(tmp_path, url=server.url(migrate="true"), max_crashes=None)
    try:
        yield crew
    finally:
        crew.close()


def test_restarts_under_load_lose_nothing_and_work_resumes(crew: Crew, server: PostgresServer) -> None:
    """X2, X3, H1-H9: fast and immediate restarts and a kill of the server, with two workers and a client at work."""
    workers = [crew.worker(), crew.worker()]
    client = load(crew)
    works_again(crew, workers, 0, "the start")
    modes: cycle[Literal["fast", "immediate"]] = cycle(["fast", "immediate"])
    for number, mode in zip(range(RESTARTS), modes, strict=False):
        server.restart(mode)
        works_again(crew, workers, time.monotonic(), f"restart {number + 1} ({mode})")
    server.kill()
    client.says("refused: ")
    server.start()
    works_again(crew, workers, time.monotonic(), "the kill")
    finish(crew, workers, client)


def test_sessions_ended_again_and_again_cost_nothing(crew: Crew, server: PostgresServer) -> None:
    """X2, X3, H1-H9: an administrator ends all sessions at once, many times, whatever they are at."""
    workers = [crew.worker(), crew.worker()]
    client = load(crew)
    works_again(crew, workers, 0, "the start")
    for number in range(ENDINGS):
        # A run may begin without one: its job was claimed before.
        until(lambda: len(server.execute(SESSIONS)) >= len(workers), "the workers have sessions again")
        assert len(server.execute(END_ALL)) >= len(workers)
        works_again(crew, workers, time.monotonic(), f"end {number + 1} of all sessions")
    finish(crew, workers, client)


def test_a_worker_waits_for_a_server_that_is_not_there_yet(crew: Crew, server: PostgresServer) -> None:
    """X2: started before its server, a worker says so, stays, and begins when the server does."""
    server.stop()
    worker = crew.worker(ready=False)
    worker.says("store.unavailable: cannot open the store")
    assert worker.running
    server.start()
    worker.says("worker.started")
    job = crew.enqueue("quick", {"number": 1})
    assert crew.ended(job).state == "done"
    assert crew.runs(job).who == worker.name
    crew.judge()


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("postgresql://postgres@127.0.0.1:{port}/postgres", 3, "taskharbor migrate"),
        ("postgresql://postgres@127.0.0.1:{port}/nowhere", 2, "there is no such database"),
        ("postgresql://stranger@127.0.0.1:{port}/postgres", 2, "refuses the login"),
    ],
    ids=["no schema", "no database", "no such user"],
)
def test_what_waiting_does_not_mend_ends_a_worker_at_once(
    tmp_path: Path, postgres: PostgresServer, url: str, code: int, said: str
) -> None:
    """X5: the message names the fix."""
    crew = Crew(tmp_path, url=url.format(port=postgres.port))
    try:
        worker = crew.worker(ready=False)
        assert worker.ends() == code, worker.story
        assert said in worker.story
    finally:
        crew.close()
