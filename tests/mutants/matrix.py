"""One mutant before everybody who might notice: cases of the kit, scenes, the simulation."""

from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

from .catching import MUTANTS, complaint_about
from .kit import CASES
from .mutant import Mutant, StaleMutant
from .scenes import SCENES
from .simulating import Find, look_for

PATIENCE = 10.0
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


class Endless(BaseException):
    """A mutant that goes round in circles, so that not even virtual time passes: noticed as well."""


class Tried(NamedTuple):
    """What became of one mutant."""

    name: str
    noticed: list[str]
    find: Find | None
    stale: str = ""


@contextmanager
def patience(seconds: float) -> Generator[None]:
    """`Endless` after so many seconds of computing."""

    def over(*_: Any) -> None:
        raise Endless

    signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def catchers(mutant: Mutant) -> list[str]:
    """Who might notice a mutant of this kind."""
    cases = [] if mutant.kind in ("worker", "manager") else list(CASES)
    scenes = list(SCENES) if mutant.kind in ("worker", "manager", "core") else []
    return cases + scenes


def tried(name: str, seeds: int) -> Tried:
    """Let everybody try one mutant."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    mutant = BY_NAME[name]
    try:
        noticed = [catcher for catcher in catchers(mutant) if _notices(catcher, mutant)]
        return Tried(name, noticed, None if mutant.kind in ("sqlite", "manager") else _look_for(mutant, seeds))
    except StaleMutant as stale:
        return Tried(name, [], None, f"{stale}: {stale.__cause__!r}")


def _notices(catcher: str, mutant: Mutant) -> bool:
    try:
        with patience(PATIENCE):
            return complaint_about(mutant, catcher) is not None
    except Endless:
        return True
    except StaleMutant:
        raise
    except Exception:  # an error of any other kind fails a test as well
        return True


def _look_for(mutant: Mutant, seeds: int) -> Find | None:
    for seed in range(seeds):
        try:
            with patience(PATIENCE):
                find = look_for(mutant, [seed])
        except Endless:
            find = Find(seed, ("endless",))
        except StaleMutant:
            raise
        except Exception as error:
            find = Find(seed, (type(error).__name__,))
        if find is not None:
            return find
    return None


def told(result: Tried) -> str:
    """A line about one mutant."""
    mutant = BY_NAME[result.name]
    first = ", ".join(sorted(result.noticed, key=lambda name: name not in mutant.caught_by)[:2])
    by = f"{len(result.noticed):3} tests ({first})" if result.noticed else "  0 tests"
    return f"{mutant.kind:7}  {mutant.name:45}  {by}; {result.find or 'not found by the simulation'}{result.stale}"
