"""A long storm of SIGKILL, SIGSTOP and SIGTERM over workers and clients, then calm."""

from __future__ import annotations

from system.crew import Crew
from system.storm import Storm
from torture.ground import folder, say


def storm(minutes: float, seed: int) -> str:
    """Everything that the system tests do for seconds, for minutes."""
    with folder() as base:
        crew = Crew(base, max_crashes=None)
        try:
            raging = Storm(crew, seed, workers=3, clients=2)
            raging.rage(minutes * 60, say=say)
            say("calm: waiting for every job to end")
            raging.calm(600 + minutes * 60)
            crew.judge()
            acts = ", ".join(f"{count} × {act}" for act, count in sorted(raging.does.items()))
            return f"{acts}; {len(crew.acknowledged())} acknowledged, 0 lost, {crew.verdict}"
        finally:
            crew.close()
