"""Every mutant before every catcher: `PYTHONPATH=tests python -m mutants [--seeds N] [NAME…]`.

Cases of the kit try drivers and cores, scenes try cores and workers, races try PostgreSQL's statements, the simulation
tries all but statements. Prints which catcher noticed which mutant, and fails if a mutant gets away.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from .matrix import BY_NAME, told, tried


def main() -> int:
    """Try them all, side by side, with a word about each."""
    parser = argparse.ArgumentParser(prog="mutants", description="Every mutant before every catcher.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="these mutants only")
    parser.add_argument("--seeds", type=int, default=50, help="how many seeds the simulation may try (default 50)")
    given = parser.parse_args()
    names = given.names or list(BY_NAME)
    if strange := [name for name in names if name not in BY_NAME]:
        parser.error(f"no mutant is called {strange[0]!r}; there are {', '.join(sorted(BY_NAME))}")
    started, got_away = time.monotonic(), list[str]()
    with TemporaryDirectory() as folder, ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        trials = [pool.submit(tried, name, given.seeds, Path(folder)) for name in names]
        for number, trial in enumerate(as_completed(trials), 1):
            result = trial.result()
            left = (time.monotonic() - started) / number * (len(names) - number)
            print(f"[{number}/{len(names)}, {left:4.0f} s left] {told(result)}", flush=True)
            if result.stale or not (result.noticed or result.find):
                got_away.append(result.name)
    print(
        f"{len(names) - len(got_away)} of {len(names)} mutants caught"
        + "".join(f"\n  not caught: {it}" for it in got_away)
    )
    return 1 if got_away else 0


if __name__ == "__main__":
    sys.exit(main())
