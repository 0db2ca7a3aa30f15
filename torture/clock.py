"""Workers whose clocks are an hour off, or jump, by libfaketime. SQLite has no clock of its own: what holds is H1-H8.

The fastest clock ends the run: what it has put off by an hour is due for no other worker before that.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from random import Random

from system.crew import Crew, Member
from system.storm import MIXED
from torture.ground import Skipped, folder, say

HOUR = 3600


def library() -> Path:
    """libfaketime for programs with threads."""
    places = [Path("/usr/lib"), Path("/usr/local/lib"), Path("/opt/homebrew/lib")]
    for place in places:
        for found in sorted(place.glob("**/faketime/libfaketimeMT.so.1")):
            return found
    raise Skipped("there is no libfaketime here (Debian: apt-get install faketime)")


def off_by(seconds: int) -> dict[str, str]:
    """The environment of a process whose wall clock is off; its monotonic clock is left alone."""
    return {**_faked(), "FAKETIME": f"{seconds:+d}"}


def jumping(file: Path) -> dict[str, str]:
    """The environment of a process whose wall clock is off by what the file says."""
    return {**_faked(), "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_NO_CACHE": "1"}


def _faked() -> dict[str, str]:
    return {"LD_PRELOAD": str(library()), "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def faked(crew: Crew, environment: dict[str, str], concurrency: int = 8) -> Member:
    """A worker with such a clock."""
    return crew.worker(application="torture.faked:harbor", environment=environment, concurrency=concurrency)


def clock(minutes: float, seed: int) -> str:
    """Workers with the right time, an hour ahead, an hour behind, and one that jumps between all three."""
    library()
    rng = Random(seed)
    with folder() as base:
        crew = Crew(base, max_crashes=None)
        try:
            offset = base / "offset"
            offset.write_text("+0\n")
            client = crew.client(MIXED, rounds=None, pause=0.3)
            client.go()
            ahead = faked(crew, off_by(HOUR))
            others = [crew.worker(), faked(crew, off_by(-HOUR)), faked(crew, jumping(offset))]
            jumps = _jump(offset, rng, minutes * 60)
            client.kill()
            _settle_down([*others, ahead], crew)
            crew.judge()
            return f"{jumps} jumps, {len(crew.acknowledged())} acknowledged, {crew.verdict}"
        finally:
            crew.close()


def _jump(offset: Path, rng: Random, duration: float) -> int:
    """Move the jumping clock at random moments."""
    end, told, jumps = time.monotonic() + duration, time.monotonic(), 0
    while time.monotonic() < end:
        time.sleep(rng.uniform(0.2, 3.0))
        new = offset.with_suffix(".new")
        new.write_text(f"{rng.choice([-HOUR, -60, 0, 60, HOUR]):+d}\n")
        new.replace(offset)
        jumps += 1
        if time.monotonic() - told > 10:
            told = time.monotonic()
            say(f"{end - told:.0f} s left: {jumps} jumps")
    return jumps


def _settle_down(workers: list[Member], crew: Crew) -> None:
    """Stop all gracefully, so that no lease is left with an hour to go, and let a clock that is ahead do the rest."""
    for worker in workers:
        worker.signal(signal.SIGTERM)
    for worker in workers:
        assert worker.ends() == 0, worker.story
    faked(crew, off_by(HOUR + 60), concurrency=32)
    crew.drained(600)
