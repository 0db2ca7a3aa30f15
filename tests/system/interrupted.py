"""A program that enqueues while it is interrupted, by the means that its first argument names: see the functions.

    python -m system.interrupted WAY URL TIMES

Prints what was acknowledged and what the store holds in the end, as JSON.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any

from taskharbor import Harbor, chain
from taskharbor.errors import DriverUnavailable

THREADS = 3
HANG = float(os.environ.get("HANG", 50))
SHORTEST, LONGEST, AGAIN = 10e-6, 500e-6, 20e-3


class Stopped(BaseException):
    """Raised in a thread from outside, as libraries that limit the time of calls do it."""


class Program:
    """Enqueues single jobs, jobs with keys, groups and flows; members of one group share a tag."""

    def __init__(self, url: str) -> None:
        self.harbor = Harbor(url)
        self.noop = self.harbor.task(name="noop")(_noop)
        self.after = self.harbor.task(name="after")(_after)
        self.acknowledged: list[str] = []
        self.refused = 0
        self._numbers, self._kinds = count(os.getpid() * 1_000_000 + id(self) % 997), random.Random(1)
        self.enqueue()

    def enqueue(self) -> None:
        number, kind = next(self._numbers), self._kinds.randrange(4)
        if kind == 0:
            made = [self.noop.using(idempotency_key=f"k{number}").enqueue(number).id]
        elif kind == 1:
            tagged = self.noop.using(tags=[f"three {number}"])
            made = [job.id for job in self.harbor.enqueue_many([tagged.step(n) for n in range(3)])]
        elif kind == 2:
            tags = [f"two {number}"]
            chain(self.noop.using(tags=tags).step(1), self.after.using(tags=tags)).enqueue()
            made = []
        else:
            made = [self.noop.enqueue(number).id]
        self.acknowledged += made

    def one(self) -> None:
        """Enqueue a single job."""
        self.acknowledged.append(self.noop.enqueue(0).id)

    def for_ever(self) -> None:
        while True:
            self.one()

    def maybe(self) -> None:
        """As a signal handler or a finalizer does it, which may be refused inside of another enqueue."""
        try:
            self.one()
        except DriverUnavailable:
            self.refused += 1

    def report(self, **more: Any) -> None:
        self.one()
        jobs = [(job.id, list(job.tags)) for job in self.harbor.admin.jobs.list(limit=1_000_000)]
        self.harbor.close()
        found = {"acknowledged": self.acknowledged, "jobs": jobs, "refused": self.refused, **more}
        with open(1, "w", closefd=False) as out:  # buffered even with PYTHONUNBUFFERED, where `print` may lose the rest
            out.write(json.dumps(found))


def _noop(n: int) -> None: ...


def _after(before: None) -> None: ...


class Beside:
    """Threads that do something again and again, until the block ends; they must get on, and end."""

    def __init__(self, act: Callable[[], object], threads: int = THREADS) -> None:
        self._act, self._over, self._done = act, threading.Event(), [0] * threads
        self.threads = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]

    def _run(self, number: int) -> None:
        while not self._over.is_set():
            try:
                self._act()
            except Stopped:
                continue
            self._done[number] += 1

    def __enter__(self) -> Beside:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        before = list(self._done)
        while any(self._done[n] == before[n] and thread.is_alive() for n, thread in enumerate(self.threads)):
            self._over.wait(0.001)
        self._over.set()
        for thread in self.threads:
            thread.join()


def strike(program: Program, times: int) -> None:
    """KeyboardInterrupt in the main thread at random moments."""
    struck = 0

    def raises(number: int, frame: FrameType | None) -> None:
        nonlocal struck
        struck += 1
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, raises)
    with Beside(program.one):
        while struck < times:
            try:
                try:
                    # And again, in case Python ignores it: it may come in a callback of a weak reference.
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(SHORTEST, LONGEST), AGAIN)
                    while True:
                        program.enqueue()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                continue
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    program.report(times=struck)


def handle(program: Program, times: int) -> None:
    """A signal handler that enqueues, in a main thread that enqueues."""
    handled = 0

    def enqueues(number: int, frame: FrameType | None) -> None:
        nonlocal handled
        handled += 1
        program.maybe()
        signal.setitimer(signal.ITIMER_REAL, random.uniform(SHORTEST, 10 * LONGEST))

    signal.signal(signal.SIGALRM, enqueues)
    signal.setitimer(signal.ITIMER_REAL, SHORTEST)
    with Beside(program.one, 1):
        while handled < times:
            program.enqueue()
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    program.report(times=handled)


def finalize(program: Program, times: int) -> None:
    """Objects whose finalizer enqueues, found by the garbage collector wherever a thread makes an object."""
    ended = count()

    class Last:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            next(ended)
            program.maybe()

    gc.set_threshold(7)

    with Beside(program.one, 2):  # which make no such objects, or there would be more and more of them
        for _ in range(times):
            Last()
            program.enqueue()
    gc.set_threshold(0)
    gc.collect()
    program.report(times=next(ended))


def stop(program: Program, times: int) -> None:
    """An exception raised in threads from outside, which also strikes the one that commits for others."""
    raised = ctypes.py_object(Stopped)
    threading.excepthook = lambda _: None  # it may strike a thread that is not inside `try`
    with Beside(program.one, 4) as beside:
        for _ in range(times):
            for thread in beside.threads:  # the number of a dead one may be another's
                if thread.is_alive() and random.random() < 0.3:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), raised)
            program.maybe()
    program.report(times=times)


def end(program: Program, times: int) -> None:
    """The interpreter ends while daemon threads enqueue, and an exit handler does so too."""
    program.report(times=times)
    again = Program(sys.argv[2])
    for _ in range(THREADS):
        threading.Thread(target=again.for_ever, daemon=True).start()
    while len(again.acknowledged) < times:
        again.enqueue()
    atexit.register(again.one)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(HANG, exit=True)
    {each.__name__: each for each in (strike, handle, finalize, stop, end)}[sys.argv[1]](
        Program(sys.argv[2]), int(sys.argv[3])
    )
    sys.stdout.flush()
    if sys.argv[1] != "end":
        os._exit(0)
