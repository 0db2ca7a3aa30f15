"""Letting the sides take turns, A B A B …, so that whatever the host does in a minute happens to all of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import noise
from benchmarks.model import Measure, Side

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 180.0
Step = Callable[[str, float], None]


class SideFailed(Exception):
    """A side did not get to its end; the message is its last word."""


class Runner:
    """Runs measures in a folder of its own. `step` is told what was done, and its weight."""

    def __init__(self, folder: Path, missing: Mapping[str, str], step: Step) -> None:
        self._folder = folder
        self._missing = missing
        self._step = step
        self._set_up: set[str] = set()

    def run(self, measure: Measure) -> dict[str, Any]:
        """All samples of one measure, with the noise beside it."""
        absent = {
            name: self._missing[side.package]
            for name, side in measure.sides.items()
            if side.package is not None and side.package in self._missing
        }
        samples: dict[str, list[dict[str, float]]] = {name: [] for name in measure.sides if name not in absent}
        probe, shares = noise.probe(self._folder), noise.Shares()
        if measure.setup is not None:
            self._once(measure.setup)
        for number in range(measure.rounds):
            for name in list(samples):
                side = measure.sides[name]
                if number < (side.rounds or measure.rounds):
                    self._take(measure, side, name, samples, absent)
        return {"samples": samples, "absent": absent, "noise": {**probe, **shares.so_far()}}

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

    def _once(self, side: Side) -> None:
        if side.label not in self._set_up:
            self._set_up.add(side.label)
            self._process(side, self._folder)
            self._step(side.label, side.weight)

    def _turn(self, side: Side) -> dict[str, float]:
        folder = self._folder / "turn"
        folder.mkdir()
        try:
            return self._process(side, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _process(self, side: Side, folder: Path) -> dict[str, float]:
        command = [
            sys.executable,
            "-m",
            "benchmarks.side",
            side.function,
            json.dumps(dict(side.arguments)),
            str(folder),
        ]
        environment = {name: value for name, value in os.environ.items() if name != "TASKHARBOR_URL"}
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
        except subprocess.TimeoutExpired:
            raise SideFailed(f"no end after {PATIENCE:g} s") from None
        if done.returncode != 0:
            raise SideFailed((done.stderr.strip().splitlines() or ["without a word"])[-1])
        answer: dict[str, float] = json.loads(done.stdout)
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
