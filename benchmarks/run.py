"""Letting the sides take turns, A B A B …, so that whatever the host does in a minute happens to all of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol

from benchmarks import noise
from benchmarks.model import Measure, Side
from benchmarks.rivals import OLDER

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 180.0
LEFT_OUT = ("TASKHARBOR_URL", "PYTHONDONTWRITEBYTECODE")  # a side that compiles its sources each time measures that
Step = Callable[[str, float], None]


class SideFailed(Exception):
    """A side did not get to its end; the message is its last word."""


class Server(Protocol):
    """The server that keeps jobs for the sides of an engine."""

    def keep(self, name: str) -> str:
        """The URL of a new database to be copied later."""
        ...

    def database(self, copied: str | None = None) -> AbstractContextManager[str]:
        """The URL of a database for one turn, empty or the copy of one that was kept."""
        ...

    def describe(self) -> dict[str, str]:
        """The version and the settings that matter."""
        ...


class Runner:
    """Runs measures in a folder and on servers of their own. `step` is called with what was done, and its weight."""

    def __init__(self, folder: Path, missing: Mapping[str, str], step: Step, servers: Mapping[str, Server]) -> None:
        self._folder = folder
        self._missing = missing
        self._step = step
        self._servers = servers
        self._set_up: dict[str, str | None] = {}

    def run(self, measure: Measure) -> dict[str, Any]:
        """All samples of one measure, with the noise beside it."""
        probe, shares = noise.probe(self._folder), noise.Shares()
        absent = self._absent(measure)
        samples: dict[str, list[dict[str, float]]] = {name: [] for name in measure.sides if name not in absent}
        for number in range(measure.rounds):
            for name in list(samples):
                side = measure.sides[name]
                if number < (side.rounds or measure.rounds):
                    self._take(measure, side, name, samples, absent)
        return {"samples": samples, "absent": absent, "noise": {**probe, **shares.so_far()}}

    def _absent(self, measure: Measure) -> dict[str, str]:
        """The sides that cannot take part, and why. Sets up what the others need."""
        why = self._missing.get(measure.engine)
        if why is None and measure.setup is not None:
            why = self._once(measure.setup)
        if why is not None:
            return dict.fromkeys(measure.sides, why)
        return {
            name: self._missing[side.package]
            for name, side in measure.sides.items()
            if side.package is not None and side.package in self._missing
        }

    def _take(
        self,
        measure: Measure,
        side: Side,
        name: str,
        samples: dict[str, list[dict[str, float]]],
        absent: dict[str, str],
    ) -> None:
        try:
            samples[name].append(self._turn(side))
        except SideFailed as error:
            del samples[name]
            absent[name] = f"failed: {error}"
        self._step(f"{measure.title}: {side.label}", side.weight)

    def _once(self, side: Side) -> str | None:
        """Why the setup failed, if so."""
        if side.label not in self._set_up:
            self._set_up[side.label] = None
            try:
                server = self._server(side)
                kept = None if server is None or side.database is None else server.keep(side.database)
                self._process(side, self._folder, kept)
            except SideFailed as error:
                self._set_up[side.label] = f"{side.label} failed: {error}"
            self._step(side.label, side.weight)
        return self._set_up[side.label]

    def _turn(self, side: Side) -> dict[str, float]:
        folder = self._folder / "turn"
        folder.mkdir()
        try:
            with self._database(side) as url:
                return self._process(side, folder, url)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _database(self, side: Side) -> AbstractContextManager[str | None]:
        server = self._server(side)
        return nullcontext() if server is None else server.database(side.database)

    def _server(self, side: Side) -> Server | None:
        return next((self._servers[value] for value in side.arguments.values() if value in self._servers), None)

    def _process(self, side: Side, folder: Path, url: str | None = None) -> dict[str, float]:
        arguments = {name: url if value in self._servers else value for name, value in side.arguments.items()}
        command = [sys.executable, "-m", "benchmarks.side", side.function, json.dumps(arguments), str(folder)]
        environment = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
        root = ROOT if side.root is None else Path(side.root)
        first = [root / "src", *([OLDER] if side.older else [])]
        environment["PYTHONPATH"] = os.pathsep.join(map(str, first))  # goes before what is installed
        process = subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            said, last_words = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise SideFailed(f"no end after {PATIENCE:g} s") from None
        finally:
            with suppress(ProcessLookupError):  # what it has left running would disturb the next side
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode != 0:
            last = (last_words.strip().splitlines() or ["without a word"])[-1]
            raise SideFailed(last.replace(f"{ROOT}{os.sep}", ""))  # results are public: no paths
        answer: dict[str, float] = json.loads(said)
        return answer


def weight(measures: Iterable[Measure], missing: Mapping[str, str]) -> float:
    """About how many seconds the measures take."""
    total, set_up = 0.0, dict[str, float]()
    for measure in measures:
        if measure.setup is not None:
            set_up[measure.setup.label] = measure.setup.weight
        for side in measure.sides.values():
            if side.package not in missing:
                total += side.weight * (side.rounds or measure.rounds)
    return total + sum(set_up.values())
