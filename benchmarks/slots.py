"""Process slots: what a no-op costs in one, and how much of two bare processes they reach with work for a core.

Ours are claimed jobs, handed to the pool of a worker one after another per slot; no store takes part.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

from benchmarks.clock import Sample, rate
from taskharbor import Harbor
from taskharbor.core.decide import token_of
from taskharbor.core.job import JobRecord
from taskharbor.core.transition import Ack
from taskharbor.worker.processes.pool import ProcessPool
from taskharbor.worker.running import NO_EFFECTS, HeldLease, JobRun, Stop

ROUNDS = 400_000  # about 20 ms
LEASE = 600.0
BARE = (
    "import sys; from benchmarks.slots import work; work({rounds}); print('ready', flush=True); sys.stdin.readline(); "
    "[work({rounds}) for _ in range({jobs})]; print('done', flush=True)"
)
harbor = Harbor("memory://")


def work(rounds: int) -> int:
    """Work for a core."""
    total = 0
    for number in range(rounds):
        total += number
    return total


@harbor.task(process=True)
def noop(n: int) -> None:
    """No-op."""


@harbor.task(process=True)
def compute(n: int) -> int:
    """Work for a core."""
    return work(n)


class _Host:
    """A worker that only its runs know of."""

    client = harbor.client

    def request_stop(self, run: JobRun, stop: Stop) -> None: ...
    def hold(self, run: JobRun) -> None: ...
    def let_go(self, run: JobRun) -> None: ...
    def noted(self, run: JobRun) -> None: ...
    def acknowledge(self, run: JobRun) -> Ack:
        raise NotImplementedError


async def _claimed(task: Any, argument: int, jobs: int) -> list[JobRecord]:
    await harbor.aenqueue_many([task.step(argument) for _ in range(jobs)])
    driver = await harbor.adriver()
    return list(await driver.reserve(["default"], harbor.client.session.now(), timedelta(seconds=LEASE), jobs, "w"))


async def _run(task: Any, argument: int, jobs: int, processes: int) -> float:
    """The seconds that these jobs take in so many slots."""
    waiting, host, loop = await _claimed(task, argument, jobs), _Host(), asyncio.get_running_loop()
    pool = ProcessPool(harbor.client, harbor._application, processes, LEASE)
    await pool.warm_up(asyncio.Event())

    async def serve() -> None:
        while waiting:
            job = waiting.pop()
            run = JobRun(job, HeldLease(token_of(job), loop.time() + LEASE), host, NO_EFFECTS)
            await pool.run(run, task.registered, job.payload, lambda: None)

    warm = [pool.run(_warming(job, host), noop.registered, job.payload, lambda: None)
            for job in await _claimed(noop, 0, 20 * processes)]  # fmt: skip
    await asyncio.gather(*warm)
    begun = time.perf_counter()
    await asyncio.gather(*(serve() for _ in range(processes)))
    seconds = time.perf_counter() - begun
    await pool.close(1)
    return seconds


def _warming(job: JobRecord, host: _Host) -> JobRun:
    return JobRun(job, HeldLease(token_of(job), time.monotonic() + LEASE), host, NO_EFFECTS)


def no_op(jobs: int) -> Sample:
    """Microseconds of a no-op, one after another in one slot."""
    return {"us": asyncio.run(_run(noop, 1, jobs, 1)) / jobs * 1e6}


def echo(jobs: int, size: int = 900) -> Sample:
    """The limit: a message of the same size to another process, and a short answer, without any work."""
    mine, theirs = socket.socketpair()
    if os.fork() == 0:
        mine.close()
        while theirs.recv(1 << 18):
            theirs.send(b"done" * 15)
        os._exit(0)
    theirs.close()
    message = b"x" * size
    begun = time.perf_counter()
    for _ in range(jobs):
        mine.send(message)
        mine.recv(1 << 18)
    return {"us": (time.perf_counter() - begun) / jobs * 1e6}


def cpu(jobs: int, processes: int = 2) -> Sample:
    """Work for as many cores as there are slots."""
    return rate(jobs, asyncio.run(_run(compute, ROUNDS, jobs, processes)))


def bare_cpu(jobs: int, processes: int = 2) -> Sample:
    """The same work in as many processes that do nothing else."""
    code = BARE.format(rounds=ROUNDS, jobs=jobs // processes)
    command = [sys.executable, "-c", code]
    # In sessions of their own as well: on a busy machine Linux shares its time among sessions.
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, start_new_session=True, **pipes) for _ in range(processes)]
    _answers(started)
    begun = time.perf_counter()
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    _answers(started)
    seconds = time.perf_counter() - begun
    for process in started:
        process.communicate()
    return rate(jobs // processes * processes, seconds)


def _answers(processes: list[subprocess.Popen[Any]]) -> None:
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
