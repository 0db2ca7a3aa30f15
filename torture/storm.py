"""A long storm of SIGKILL, SIGSTOP and SIGTERM over workers and clients, then calm."""

from __future__ import annotations

from drivers.redis import indexes
from servers.nats import NatsServer
from servers.valkey import ValkeyServer
from system.crew import Crew
from system.storm import Storm
from torture.ground import folder, say

NAMESPACE = "storm"


def storm(minutes: float, seed: int) -> str:
    """Everything that the system tests do for seconds, for minutes: on a file, on a Valkey, and on NATS."""
    told = [f"sqlite: {_storm(None, minutes * 20, seed)}"]
    with ValkeyServer() as server:
        told.append(f"redis: {_storm(server.url(namespace=NAMESPACE), minutes * 20, seed)}")
        indexes.check(server, NAMESPACE)
    with NatsServer() as nats:
        told.append(f"nats: {_storm(nats.url(namespace=NAMESPACE), minutes * 20, seed)}")
    return "; ".join(told)


def _storm(url: str | None, seconds: float, seed: int) -> str:
    with folder() as base:
        crew = Crew(base, url=url, max_crashes=None)
        try:
            raging = Storm(crew, seed, workers=3, clients=2)
            raging.rage(seconds, say=say)
            say("calm: waiting for every job to end")
            raging.calm(600 + seconds)
            crew.judge()
            acts = ", ".join(f"{count} × {act}" for act, count in sorted(raging.does.items()))
            return f"{acts}; {len(crew.acknowledged())} acknowledged, 0 lost, {crew.verdict}"
        finally:
            crew.close()
