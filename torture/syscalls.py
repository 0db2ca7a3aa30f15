"""A kill, or an error, at every system call by which the store is written.

strace strikes at the N-th call of a kind, N = 1, 2, 3 … until the process gets through untouched. Afterwards a healthy
process drains the store: nothing acknowledged is missing, nothing is done twice, the file is in order.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from system.crew import Crew, until
from torture.ground import Skipped, folder, need, say

KILLED_AT = ("pwrite64", "fdatasync", "fsync", "ftruncate", "unlink", "fcntl")
FAILING = ("fdatasync:error=EIO", "fsync:error=EIO", "ftruncate:error=EIO", "pwrite64:error=ENOSPC")
FAR_TOO_MANY = 2000
LEASE = 5.0
LANES = 2


def syscalls(minutes: float, seed: int) -> str:
    """A kill or an error at every call, on a fresh file each time, and kills on one file that outlives them all."""
    strace = need("strace", "strace")
    _try_out(strace)
    kills = [(f"{call}:signal=KILL", True) for call in KILLED_AT] + [("pwrite64:signal=KILL", False)]
    errors = [(strike, True) for strike in FAILING]
    with ThreadPoolExecutor(LANES) as lanes:
        counts = list(lanes.map(lambda order: _strikes(strace, *order), [*kills, *errors]))
    killed, failed = sum(counts[: len(kills)]), sum(counts[len(kills) :])
    never = [call for call, count in zip(KILLED_AT, counts, strict=False) if not count]
    unused = f" (never called, so never struck: {', '.join(never)})" if never else ""
    return f"{killed} kills and {failed} injected errors, one at each call, 0 violations{unused}"


def _try_out(strace: str) -> None:
    with folder() as base:
        crew = Crew(base)
        try:
            member = crew.start("trial", ["-c", "print('traced')"], _prefix(strace, "pwrite64:signal=KILL", 9999))
            code = member.ends()
            if code != 0 or not member.has_said("traced"):
                raise Skipped(f"strace cannot inject here: {member.story}")
        finally:
            crew.close()


def _prefix(strace: str, strike: str, number: int) -> list[str]:
    call = strike.partition(":")[0]
    return [strace, "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={strike}:when={number}"]


def _strikes(strace: str, strike: str, fresh: bool) -> int:
    """Strike at the first, the second, … until there is nothing left to strike at; returns how many there were."""
    with folder() as base:
        crew: Crew | None = None
        try:
            for number in range(1, FAR_TOO_MANY):
                if crew is None or fresh:
                    place = base / str(number)
                    place.mkdir()
                    crew = Crew(place)
                struck = _strike(crew, strace, strike, number)
                if fresh or not struck:
                    _end(crew, strike, number)
                if not struck:
                    say(f"{strike}{'' if fresh else ' on one file'}: {number - 1} strikes, all clean")
                    return number - 1
                if number % 25 == 0:
                    say(f"  {strike} at {number} …")
        finally:
            if crew is not None:
                crew.close()
    raise AssertionError(f"{strike}: no end after {FAR_TOO_MANY} strikes")


def _strike(crew: Crew, strace: str, strike: str, number: int) -> bool:
    """Whether the strike hit: a process that it missed gets through."""
    log = crew.folder / f"struck-{number}"
    prefix = _prefix(strace, strike, number)
    prefix[prefix.index("/dev/null")] = str(log)
    member = crew.start(crew.name("victim"), ["-m", "torture.victim"], prefix)
    code = member.ends()
    assert code in (0, -9, 137), f"{strike} at {number}: exit code {code}\n{member.story}"
    hit = code != 0 or "INJECTED" in log.read_text()
    log.unlink()
    if code == 0 and not hit:
        assert member.has_said("survived"), member.story
    return hit


def _end(crew: Crew, strike: str, number: int) -> None:
    """A healthy process goes on with what is there."""

    def drained() -> bool:
        asyncio.run(crew.harbor.adrain(lease=LEASE))
        return crew.unfinished() == 0

    until(drained, f"{strike} at {number}: every job has ended")
    crew.judge()
