"""A supervisor whose workers are killed a hundred times, and then killed, stopped and replaced under load."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from servers.nats import NatsServer
from servers.postgres import PostgresServer
from servers.valkey import ValkeyServer
from system.crew import PATIENCE, Crew, SupervisorMember, until
from system.storm import MIXED
from torture.ground import folder, say

# A supervisor waits longer and longer before it starts a worker whose predecessors died young.
ROUNDS, KILLS = 20, 5
WITHIN = 2.0
FOREVER = 3600.0


def supervised(minutes: float, seed: int) -> str:
    """After each kill -9 of a worker its job runs elsewhere within two seconds; a storm loses and doubles nothing."""
    told: list[str] = []
    with PostgresServer(18) as postgres, ValkeyServer() as valkey, NatsServer() as nats:
        engines: dict[str, Callable[[], str | None]] = {
            "sqlite": lambda: None,
            "postgres": lambda: postgres.url(postgres.new_database(), migrate="true"),
            "redis": lambda: valkey.url(namespace=valkey.new_namespace()),
            "nats": lambda: nats.url(namespace=nats.new_namespace()),
        }
        for engine, url in engines.items():
            worst = max(_kills(url()) for _ in range(ROUNDS))
            say(f"{engine}: {ROUNDS * KILLS} kills, each job ran elsewhere within {worst * 1000:.0f} ms")
            raged = _storm(url(), minutes * 15, seed)
            say(f"{engine}: {raged}")
            told.append(f"{engine} {worst * 1000:.0f} ms at worst, {raged}")
    return "; ".join(told)


def _kills(url: str | None) -> float:
    """The longest time from a kill to the beginning of the next run, under one supervisor."""
    worst = 0.0
    with folder() as base:
        crew = Crew(base, url=url)
        try:
            supervisor = crew.supervisor(2, lease=FOREVER)
            for number in range(KILLS):
                supervisor.ready(number + 2)
                job = crew.enqueue("hold", {"gate": f"gate-{number}"})
                victim = int(crew.runs(job).who.rpartition(".")[2])
                killed_at = time.monotonic()
                os.kill(victim, signal.SIGKILL)
                took = crew.runs(job, 2).at / 1e6 - killed_at
                assert took <= WITHIN, f"kill {number + 1}: its job ran elsewhere after {took:.2f} s"
                worst = max(worst, took)
                crew.open_gate(f"gate-{number}")
                assert crew.ended(job).state == "done"
            crew.judge()
        finally:
            crew.close()
    return worst


def _storm(url: str | None, seconds: float, seed: int) -> str:
    """Kills, stops and rolling restarts under load; what the checker has to say."""
    rng, end = Random(seed), time.monotonic() + seconds
    done: dict[str, int] = {}
    with folder() as base:
        crew = Crew(base, url=url, max_crashes=None)
        try:
            supervisor = crew.supervisor(3, lease=1.5)
            client = crew.client(MIXED, rounds=None, pause=0.2)
            client.go()
            while time.monotonic() < end:
                time.sleep(rng.uniform(0.0, 4.0))
                act = rng.choice(["kill", "kill", "stop", "roll", "terminate"])
                done[act] = done.get(act, 0) + 1
                _strike(supervisor, act, rng)
            client.kill()
            crew.drained(600)
            # One that is paused, or killed for that and not yet reaped, would show in the exit code.
            until(lambda: sum(map(_runs, supervisor.children())) >= 3, "all workers are there", PATIENCE)
            until(lambda: all(map(_runs, supervisor.children())), "and none is paused", PATIENCE)
            supervisor.signal(signal.SIGTERM)
            assert (code := supervisor.ends()) == 0, f"exit code {code}:\n{supervisor.story}"
            crew.judge()
            acts = ", ".join(f"{count} × {act}" for act, count in sorted(done.items()))
            return f"{acts}, {crew.verdict}"
        finally:
            crew.close()


def _runs(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TZ"
    return False


def _strike(supervisor: SupervisorMember, act: str, rng: Random) -> None:
    if act == "roll":
        return supervisor.signal(signal.SIGHUP)
    number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "terminate": signal.SIGTERM}[act]
    with suppress(ProcessLookupError, IndexError):
        os.kill(rng.choice(supervisor.children()), number)
    return None
