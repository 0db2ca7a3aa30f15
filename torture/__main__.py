"""`python -m torture`: choose the runs, and sum up what ran, what was skipped and why."""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable

from torture.clock import clock
from torture.dst import dst
from torture.ground import Skipped, say, tell
from torture.power import power
from torture.storm import storm
from torture.supervised import supervised
from torture.syscalls import syscalls

RUNS: dict[str, Callable[[float, int], str]] = {
    "power": power,
    "syscalls": syscalls,
    "clock": clock,
    "storm": storm,
    "supervised": supervised,
    "dst": dst,
}


def _asked(arguments: list[str]) -> tuple[list[str], argparse.Namespace]:
    """The runs to make, all if none is named, and the other options."""
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    # Not by `choices`: with them, older Pythons refuse an empty list.
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"{', '.join(RUNS)} or all (the default)")
    parser.add_argument(
        "--minutes",
        type=float,
        default=2.0,
        help="how long each of power, clock, storm, supervised lasts (default 2)",
    )
    parser.add_argument("--seed", type=int, default=int(time.time()), help="for the random moments")
    given = parser.parse_args(arguments)
    if given.minutes <= 0:
        parser.error("--minutes must be more than zero")
    if unknown := [name for name in given.runs if name not in (*RUNS, "all")]:
        parser.error(f"there is no run {unknown[0]!r}: choose from {', '.join(RUNS)} and all")
    every = not given.runs or "all" in given.runs
    return list(RUNS) if every else list(dict.fromkeys(given.runs)), given


def main() -> int:
    """Run them one after another; 1 if any invariant was violated."""
    names, given = _asked(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes are ended and disks unmounted
    say(f"seed {given.seed}, {given.minutes:g} minutes each")
    summary = [(name, *_outcome(RUNS[name], name, given.minutes, given.seed)) for name in names]
    tell("\nSummary")
    for name, verdict, text in summary:
        tell(f"  {name:<10} {verdict:<8} {text}")
    return 1 if any(verdict == "FAILED" for _, verdict, _ in summary) else 0


def _outcome(run: Callable[[float, int], str], name: str, minutes: float, seed: int) -> tuple[str, str]:
    tell(f"\n==> {name}: {(run.__doc__ or '').splitlines()[0]}")
    try:
        return "ok", run(minutes, seed)
    except Skipped as why:
        say(f"SKIPPED: {why}")
        return "skipped", str(why)
    except Exception as error:
        traceback.print_exc()
        return "FAILED", str(error).splitlines()[0] if str(error) else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
