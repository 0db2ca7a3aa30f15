"""One mutant against everything that might notice: cases of the kit, scenes, the simulation."""

from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from servers.nats import NatsServer
from servers.postgres import PostgresServer
from servers.valkey import ValkeyServer

from .berth import Berth
from .catching import MUTANTS, complaint_about
from .ground import CATCHERS, Ground
from .kit import CASES
from .mutant import Mutant, StaleMutant
from .nats import NATS
from .nats_store import TESTS, NatsStore
from .postgres import MUTANTS as ON_POSTGRES
from .redis import REDIS
from .scenes import REAL, SCENES
from .simulating import Find, look_for

PATIENCE = 10.0
TIMERS = {signal.ITIMER_VIRTUAL: signal.SIGVTALRM, signal.ITIMER_REAL: signal.SIGALRM}
BY_NAME = {mutant.name: mutant for mutant in (*MUTANTS, *ON_POSTGRES, *REDIS.mutants, *NATS.mutants)}


class Endless(BaseException):
    """A mutant that goes round in circles, so that not even virtual time passes: noticed as well."""


class Tried(NamedTuple):
    """The result of one mutant."""

    name: str
    noticed: list[str]
    find: Find | None
    stale: str = ""


@contextmanager
def patience(seconds: float, timer: int = signal.ITIMER_VIRTUAL) -> Generator[None]:
    """`Endless` after so many seconds of computing, or of real time."""

    def over(*_: Any) -> None:
        raise Endless

    signal.signal(TIMERS[timer], over)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)


def catchers(mutant: Mutant) -> list[str]:
    """The catchers that may notice a mutant of this kind."""
    if mutant.kind == "process":
        return sorted(REAL)
    cases = list(CASES) if mutant.kind in ("driver", "sqlite", "core", "step") else []
    scenes = [scene for scene in SCENES if scene not in REAL] if mutant.kind not in ("driver", "sqlite") else []
    return cases + [scene for scene in mutant.caught_by if scene in SCENES and scene not in scenes] + scenes


def tried(name: str, seeds: int, folder: Path) -> Tried:
    """Let every catcher try one mutant; servers are found in `folder`."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    mutant = BY_NAME[name]
    try:
        if mutant.kind == "postgres":
            return Tried(name, _noticed_on_postgres(mutant, _ground(folder)), None)
        if mutant.kind == "redis":
            ask = _berth(folder).complaint_about
            return Tried(name, [it for it in CASES if _notices(ask, mutant, it, signal.ITIMER_REAL)], None)
        if mutant.kind == "nats":
            ask = _nats_store(folder).complaint_about
            quick = {it for it in CASES.keys() | TESTS.keys() if "cut_off" not in it}
            chosen = sorted(quick | {*mutant.caught_by})
            return Tried(name, [it for it in chosen if _notices(ask, mutant, it, signal.ITIMER_REAL)], None)
        noticed = [catcher for catcher in catchers(mutant) if _notices(complaint_about, mutant, catcher)]
        unseen = mutant.kind in ("sqlite", "manager", "step", "process")
        return Tried(name, noticed, None if unseen else _look_for(mutant, seeds))
    except StaleMutant as stale:
        return Tried(name, [], None, f"{stale}: {stale.__cause__!r}")


@cache
def _ground(folder: Path) -> Ground:
    return Ground(PostgresServer.of_the_run(folder, 18))


@cache
def _berth(folder: Path) -> Berth:
    return Berth(ValkeyServer.of_the_run(folder))


@cache
def _nats_store(folder: Path) -> NatsStore:
    return NatsStore(NatsServer.of_the_run(folder))


def _noticed_on_postgres(mutant: Mutant, ground: Ground) -> list[str]:
    """The catchers that notice, of those that run a statement which is broken."""
    broken = {name for _, name in mutant.places}
    chosen = [catcher for catcher in sorted(CATCHERS) if broken & ground.statements_of(catcher)]
    return [it for it in chosen if _notices(ground.complaint_about, mutant, it, signal.ITIMER_REAL)]


def _notices(
    ask: Callable[[Mutant, str], str | None], mutant: Mutant, catcher: str, timer: int = signal.ITIMER_VIRTUAL
) -> bool:
    try:
        with patience(PATIENCE, timer):
            return ask(mutant, catcher) is not None
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
