"""A storm: workers and clients come and go under load, by SIGKILL, SIGSTOP, SIGCONT and SIGTERM."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from .crew import PATIENCE, Crew, Member, until

Job = tuple[str, dict[str, Any], dict[str, Any]]

LEAST_STRIKES = 8
MIXED: list[Job] = [
    ("quick", {"number": 1}, {}),
    ("quick_sync", {"number": 2}, {}),
    ("nap", {"seconds": 0.2}, {}),
    ("flaky", {"failures": 2}, {"max_attempts": 3}),
    ("flaky", {"failures": 9}, {"max_attempts": 2}),
    ("snoozer", {}, {}),
    ("mother", {"children": 2}, {}),
    ("nap", {"seconds": 0.05}, {"priority": 5}),
    ("quick", {"number": 3}, {"delay": 0.5}),
]


def seconds(default: float) -> float:
    """How long a storm lasts: TORTURE=seconds makes it longer."""
    return float(os.environ.get("TORTURE") or default)


class Storm:
    """Faults done to a crew, from a seed. `does` counts it."""

    def __init__(self, crew: Crew, seed: int, *, workers: int = 3, clients: int = 2, lease: float = 1.0) -> None:
        self.does: Counter[str] = Counter()
        self._crew = crew
        self._rng = Random(seed)
        self._lease = lease
        self._crew_size = {"worker": workers, "client": clients}
        self._aboard: dict[str, list[Member]] = {"worker": [], "client": []}
        self._frozen: list[tuple[float, Member]] = []

    def rage(
        self,
        duration: float,
        acts: Sequence[str] = ("kill", "kill", "kill", "freeze", "terminate", "kill client"),
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Strike at random moments for so long, and at least so often, with the crew always complete."""
        end = time.monotonic() + duration
        told = time.monotonic()
        while time.monotonic() < end or self.does.total() < LEAST_STRIKES:
            assert time.monotonic() < end + PATIENCE, f"the crew hardly comes to work: {self.does}"
            self._complete()
            time.sleep(self._rng.uniform(0.0, 0.5))
            self._strike(self._rng.choice(acts))
            self._thaw(time.monotonic())
            if time.monotonic() - told > 10:
                told = time.monotonic()
                say(f"{end - told:.0f} s left: {dict(self.does)}")
        self._thaw(float("inf"))

    def calm(self, patience: float = PATIENCE) -> None:
        """No more clients, no more faults: everything must come to its end."""
        for client in self._aboard["client"]:
            client.kill()
        self._aboard["client"] = []
        self._complete(("worker",))
        self._crew.drained(patience)

    def _complete(self, kinds: Sequence[str] = ("worker", "client")) -> None:
        for kind in kinds:
            self._aboard[kind] = [member for member in self._aboard[kind] if member.running]
            while len(self._aboard[kind]) < self._crew_size[kind]:
                self._aboard[kind].append(self._hire(kind))

    def _hire(self, kind: str) -> Member:
        if kind == "worker":
            return self._crew.worker(lease=self._lease, ready=False)
        client = self._crew.client(MIXED, rounds=None, pause=0.2, wait=False)
        client.go()
        return client

    def _strike(self, act: str) -> None:
        frozen = [member for _, member in self._frozen]
        kind, works = ("client", "ready") if act == "kill client" else ("worker", "worker.started")
        at_work = [it for it in self._aboard[kind] if it.running and it not in frozen and it.has_said(works)]
        if not at_work:
            return
        victim = self._rng.choice(at_work)
        if act == "freeze":
            victim.stop()
            self._frozen.append((time.monotonic() + self._rng.uniform(0.5, 3.0) * self._lease, victim))
        elif act == "terminate":
            victim.signal(signal.SIGTERM)
            self._aboard["worker"].remove(victim)
        else:
            victim.kill()
        self.does[act] += 1

    def _thaw(self, time_is: float) -> None:
        """Let those go on whose time has come."""
        for when, member in list(self._frozen):
            if when <= time_is:
                self._frozen.remove((when, member))
                if member.running:
                    member.go_on()
        if time_is == float("inf"):
            until(lambda: not any(member.stopped for member in self._crew.members), "nobody lies still")
