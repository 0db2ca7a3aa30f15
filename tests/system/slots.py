"""The application of the tests about processes: tasks that run in one of their own, and what surrounds them."""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from unittest.mock import patch

from taskharbor import Harbor, Recycle, Retry, Snooze, Unrecoverable, current
from taskharbor.worker.context import JobContext
from taskharbor.worker.processes import watchdog

VARIABLE = "SLOTS_URL"
BROKEN = "SLOTS_BROKEN"  # the only process in which the lifespan works
log = logging.getLogger("shop")
lives: ContextVar[int] = ContextVar("lives", default=0)
entered = 0
wrapped: list[str] = []
kept: list[bytes] = []
inside: ContextVar[str | None] = ContextVar("inside", default=None)


async def life() -> AsyncGenerator[None]:
    """Counts how often it is entered in this process; handlers see a variable of its context."""
    global entered
    if os.environ.get(BROKEN, str(os.getpid())) != str(os.getpid()):
        raise ConnectionError("no pool today")
    entered += 1
    lives.set(entered)
    yield


async def noting(job: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
    """Notes the jobs that go through it in this process."""
    wrapped.append(job.id)
    return await call_next()


def around(job: JobContext) -> Iterator[None]:
    """Notes the job inside of it, where its handler runs."""
    before = inside.set(job.id)
    yield
    inside.reset(before)


def note(file: str, text: object) -> None:
    """Write a line for the test, in one step."""
    temporary = Path(f"{file}.{os.getpid()}")
    temporary.write_text(str(text))
    temporary.rename(file)


def describe(word: str) -> dict[str, Any]:
    """A handler's view of its job and of its process."""
    job = current()
    log.warning("%s from %d", word, os.getpid())
    log.debug("not shown")
    return {
        "word": word,
        "pid": os.getpid(),
        "module": __name__,
        "id": job.id,
        "attempt": job.attempt,
        "version": job.lease_version,
        "headers": job.headers,
        "arguments": job.record.arguments,
        "lives": (lives.get(), entered),
        "wrapped": job.id in wrapped,
        "inside": inside.get() == job.id,
        "cancelled": job.cancelled,
    }


async def describe_later(word: str) -> dict[str, Any]:
    """The same on an event loop."""
    await asyncio.sleep(0)
    own = inside.get() == current().id
    return {"word": word, "pid": os.getpid(), "lives": (lives.get(), entered), "id": current().id, "inside": own}


def plain(number: int) -> int:
    """Runs in the worker itself."""
    return os.getpid()


def double(number: int) -> int:
    """Takes the result of a step before it."""
    return 2 * number


def parent(number: int, fail: bool = False) -> None:
    """Enqueues another with its own end."""
    app = _app()
    current().enqueue(app.plain.using(id=f"child-of-{current().id}").step(number))
    if fail:
        raise Unrecoverable("on purpose")


def sender(number: int) -> str:
    """Enqueues another by itself."""
    sent: str = _app().plain.enqueue(number).id
    return sent


def hang(file: str) -> None:
    """Notes its process and a program that it has started, and never returns."""
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    current().progress(0.25, "hanging")
    note(file, f"{os.getpid()} {program.pid}")
    time.sleep(1000)


def hold(file: str, gate: str, times: int = 1, padding: str = "") -> str:
    """Waits for the gate."""
    note(file, os.getpid())
    while not Path(gate).exists():
        time.sleep(0.01)
    return "through" * times


async def block(file: str, gate: str) -> str:
    """Waits for the gate, and nothing else happens on its loop meanwhile."""
    return hold(file, gate)


def patient(file: str, gate: str) -> str:
    """The same in a thread; whether it was asked to end meanwhile."""
    hold(file, gate)
    return "asked" if current().cancelled else "not asked"


def compute(file: str) -> None:
    """Never returns from C, and holds the GIL."""
    note(file, os.getpid())
    ctypes.pythonapi.PyErr_CheckSignals.argtypes = []
    ctypes.PyDLL(None).sleep(1000)


def obedient(file: str) -> None:
    """Looks whether it should go on."""
    note(file, os.getpid())
    while not current().cancelled:
        time.sleep(0.005)
    note(file, "ended")
    current().check()


async def tidy(file: str) -> None:
    """Cleans up when it is cancelled."""
    note(file, os.getpid())
    try:
        await asyncio.sleep(1000)
    finally:
        note(file, "tidied")


def yield_late() -> str:
    """Returns a result when it should end."""
    while not current().cancelled:
        time.sleep(0.005)
    return "late"


def nap(seconds: float) -> str:
    """Takes its time."""
    current().progress(0.5, "napping")
    time.sleep(seconds)
    return "rested"


def crash(how: str) -> None:
    """Ends its own process."""
    if how == "exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    ctypes.string_at(0)


def fail(how: str) -> object:
    """Ends badly, as handlers do."""
    if how == "exit":
        sys.exit(3)
    if how == "large":
        return "x" * 600_000
    if how == "encode":
        return object()
    if how == "later" and current().lease_version == 1:
        raise Snooze(0)
    if how == "later":
        return "later"
    raise ValueError(how)


def allocate(mib: int) -> tuple[int, int]:
    """Needs memory."""
    return len(bytearray(mib << 20)), os.getpid()


def swell(mib: int) -> int:
    """Keeps memory for as long as its process lives."""
    kept.append(b"x" * (mib << 20))
    return os.getpid()


def brimful() -> list[str]:
    """Takes all memory that its limit allows, reports progress and goes on for a moment; the threads that are left."""
    kept: list[bytearray] = []
    for size in (1 << 22, 1 << 18, 1 << 14, 1 << 10):
        with suppress(MemoryError):
            while True:
                kept.append(bytearray(size))
    for number in range(3):
        current().progress(number / 4)
    time.sleep(3 * watchdog.LOOK_EVERY)
    kept.clear()
    return [thread.name for thread in threading.enumerate()]


def cramped() -> float:
    """Reports progress where there is no room for a timer, not even for the object."""
    with patch.object(threading, "Timer", side_effect=MemoryError):
        for number in range(3):
            current().progress(number / 4)
    return number / 4


def interrupted(number: int) -> int:
    """Logs, and is interrupted all the time by a signal handler that logs as well."""
    alarms = 0

    def alarm(*_: object) -> None:
        nonlocal alarms
        alarms += 1
        log.warning("alarm")

    before = signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    while alarms < number:
        log.warning("main")
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    return alarms


def fork() -> tuple[int, int]:
    """Makes a copy of its process, which leaves the handler by an exception; the exit code of the copy."""
    copy = os.fork()
    if copy == 0:
        raise ValueError("in the copy")
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]), os.getpid()


def terminate() -> int:
    """Makes a copy of its process and ends it as multiprocessing does; the exit code of the copy."""
    copy = os.fork()
    if copy == 0:
        signal.alarm(30)
        while True:
            signal.pause()
    os.kill(copy, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])


def chorus(number: int, file: str) -> str:
    """Makes copies of its process, with a file as stderr, that use its job while it does so itself."""
    copies: list[int] = []
    while len(copies) < 3 and (copy := os.fork()):
        copies.append(copy)
    own = len(copies) == 3
    if not own:
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    for _ in range(number):
        current().progress(0.25 if own else 0.75)
        log.warning("x" * 100_000 if own else "from a copy")
        assert not current().cancelled
    if not own:
        os._exit(0)
    assert {os.waitpid(copy, 0)[1] for copy in copies} == {0}
    return "in time"


def steps(file: str, gate: str) -> None:
    """Reports more progress than anything could read."""
    for number in range(2000):
        current().progress(number / 2000, f"step {number}")
    current().progress(0.75, "last")
    note(file, os.getpid())
    while not Path(gate).exists():
        time.sleep(0.01)


def digest(rounds: int) -> str:
    """Work for a core."""
    return hashlib.pbkdf2_hmac("sha256", b"x", b"y", rounds).hex()


def _die_at(how: str) -> None:
    """Die in the middle of the commit, at the first run: before the store is asked, or after it has agreed."""
    host: Any = current()._run.host
    if current().lease_version > 1 or how not in ("before", "after"):
        return
    right = host.acknowledge

    def asked(run: Any) -> Any:
        right(run)
        os._exit(9)

    if how == "before":
        host.acknowledge = asked
    else:
        host.noted = lambda run: os._exit(9)


def transact(number: int, how: str) -> str:
    """Writes a row in the same commit as its own end."""
    _die_at(how)
    with current().transaction() as tx:
        tx.execute("INSERT INTO effect VALUES (%s)", [number])
        current().enqueue(_app().plain.using(id=f"after-{number}").step(number))
        if how == "raise":
            raise Unrecoverable("inside")
        current().set_result(f"run {current().lease_version}")
    if how == "hang":
        time.sleep(1000)
    return "too late"


async def transact_later(number: int, how: str) -> str:
    """The same on an event loop."""
    _die_at(how)
    async with current().transaction() as tx:
        await tx.execute("INSERT INTO effect VALUES ($1)", number)
        if how == "raise":
            raise Unrecoverable("inside")
        current().set_result(f"run {current().lease_version}")
    if how == "hang":
        await asyncio.sleep(1000)
    return "too late"


TASKS: dict[str, dict[str, Any]] = {
    "describe": {"process": True},
    "describe_later": {"process": True},
    "plain": {},
    "double": {"process": True},
    "parent": {"process": True},
    "sender": {"process": True},
    "hang": {"process": True},
    "hold": {"process": True},
    "block": {},
    "patient": {},
    "compute": {"process": True},
    "obedient": {"process": True},
    "tidy": {"process": True},
    "yield_late": {"process": True},
    "nap": {"process": True},
    "crash": {"process": True, "max_crashes": 3},
    "fail": {"process": True, "max_attempts": 1},
    "allocate": {"process": True, "memory": "256 MiB", "max_attempts": 1},
    "swell": {"process": True},
    "brimful": {"process": True, "memory": "256 MiB", "max_attempts": 1},
    "cramped": {"process": True, "max_attempts": 1},
    "interrupted": {"process": True},
    "fork": {"process": True, "max_attempts": 1},
    "terminate": {"process": True, "max_attempts": 1},
    "chorus": {"process": True, "max_attempts": 1, "max_crashes": 1},
    "steps": {"process": True},
    "digest": {"process": True},
    "transact": {"process": True},
    "transact_later": {"process": True},
}


class App:
    """A harbor with all of these tasks, as attributes."""

    def __init__(self, surrounded: bool, recycle: Recycle | None = None) -> None:
        url, retry = os.environ.get(VARIABLE, "memory://"), Retry(base=0.01, cap=0.02)
        self.harbor = Harbor(url, retry=retry, recycle=recycle)
        self._tasks = {name: self.harbor.task(**options)(globals()[name]) for name, options in TASKS.items()}
        if surrounded:
            self.harbor.lifespan(life)
            self.harbor.middleware(noting)
        self.harbor.around(around)

    def __getattr__(self, name: str) -> Any:
        return self._tasks[name]


bare, surrounded, short_lived = App(False), App(True), App(False, Recycle(jobs=2))
large = App(False, Recycle(memory="1 MiB"))
aging, swelling = App(False, Recycle(age=1)), App(False, Recycle(memory="256 MiB"))
harbor = bare.harbor


def _app() -> App:
    """The one whose job is running: its harbor is the one with a worker."""
    return surrounded if entered else bare


def is_alive(pid: int) -> bool:
    """Whether a process exists that has not ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
