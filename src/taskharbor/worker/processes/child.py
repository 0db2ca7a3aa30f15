"""The main program of a child process: import the application, enter its lifespans, run jobs."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import time
import traceback
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, cast

from taskharbor.client.clock import host_clock
from taskharbor.client.importing import importing
from taskharbor.core.text import bounded, kind_of, message_of
from taskharbor.errors import ConfigError, HarborError
from taskharbor.worker import memory
from taskharbor.worker.application import HarborParts, harbors
from taskharbor.worker.processes import limits, logs
from taskharbor.worker.processes.channel import Channel
from taskharbor.worker.processes.child_loop import ChildLoop
from taskharbor.worker.processes.job import ChildJobs
from taskharbor.worker.processes.messages import (
    Broken,
    ChildReady,
    Down,
    Granted,
    Perform,
    Renewed,
    StartChild,
    StopRun,
)
from taskharbor.worker.signals import default_in_forks

NO_STORE = (
    "this job runs in a process of its own, which cannot reach a store that lives inside the worker: enqueue by "
    "current().enqueue(…), which travels with the job's end, or use a store outside it, such as sqlite:///jobs.db"
)
UNPREPARED = (
    ". If another module sets up what this one needs, begin the worker and its processes with that one: "
    "taskharbor worker MODULE:harbor"
)


class WorkerClock:
    """The worker's time, as of its last message; then it advances with the monotonic clock."""

    def __init__(self) -> None:
        self._time: datetime | None = None
        self._at = 0.0

    def set(self, now: datetime) -> None:
        self._time, self._at = now, time.monotonic()

    def __call__(self) -> datetime:
        if self._time is None:
            return host_clock()
        return self._time + timedelta(seconds=time.monotonic() - self._at)


class ChildProgram:
    """The child of one worker, from its start to its end."""

    def __init__(self, link: socket.socket) -> None:
        self._channel = Channel(link, self._take)
        self._clock = WorkerClock()
        self._jobs: ChildJobs | None = None

    def main(self) -> int:
        """Serve until the worker closes the channel; return the exit code."""
        start = self._channel.receive()
        if not isinstance(start, StartChild):
            return 1
        limits.die_with(start.parent)
        try:
            self._jobs = jobs = self._started(start)
        except BaseException as error:
            self._channel.send(Broken(bounded(_described(error))))
            return 1
        self._channel.send(ChildReady(memory.resident(), memory.data()))
        while (message := self._channel.receive()) is not None:
            self._take(message)
        jobs.leave()
        return 0

    def _started(self, start: StartChild) -> ChildJobs:
        logs.relay(start.levels, self._channel.send)
        for module in start.modules:
            _import(module, start)
        parts = _harbor(start)
        if start.url is not None:
            cast("Any", parts.harbor).url = start.url
        refusal = NO_STORE if start.url is None else None
        parts.client.session.serve_child(self._clock, start.payload_limit, refusal)
        if start.limited and (why := limits.why_unlimited()) is not None:
            raise ConfigError(f"memory= cannot be enforced: {why}. Leave it out, or run this worker on Linux")
        jobs = ChildJobs(parts.client, parts.app, self._channel, lambda: ChildLoop(parts.app))
        logs.relay(start.levels, self._channel.send)  # again: imports and lifespans may have set up logging
        return jobs

    def _take(self, message: Down) -> None:
        jobs = self._jobs
        assert jobs is not None
        match message:
            case Perform():
                self._clock.set(message.now)
                jobs.perform(message)
            case StopRun(reason):
                jobs.stop(reason)
            case Renewed(until):
                jobs.renew(until)
            case Granted():
                jobs.grant()
            case StartChild():
                raise AssertionError("a child starts once")


def _import(module: str, start: StartChild) -> None:
    try:
        with importing(module):
            import_module(module)
    except HarborError:
        raise
    except BaseException as error:
        raise ConfigError(f"importing {module}: {_described(error)}{'' if start.given else UNPREPARED}") from error


def _harbor(start: StartChild) -> HarborParts:
    """The harbor of the worker, among those that the modules have made."""
    for name in start.tasks:
        if not any(name in parts.app.tasks for parts in harbors()):
            raise ConfigError(
                f"task {name} does not exist after the import of {', '.join(start.modules)}: define it at the top "
                "level of a module, or leave out process=True"
            )
    alike = [parts for parts in harbors() if parts.app.tasks.keys() >= set(start.tasks)]
    if start.harbor >= len(alike):
        raise ConfigError(f"the harbor of {start.tasks[0]} is not made by the import of {', '.join(start.modules)}")
    return alike[start.harbor]


def _described(error: BaseException) -> str:
    if isinstance(error, HarborError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename} line {frames[-1].lineno})" if frames else ""
    return f"{kind_of(error)}: {message_of(error)}{where}"


def _ignore(number: int, frame: object) -> None:
    """No-op."""


def main(fd: int) -> None:
    """Run a child on the socket of this number. Only the worker reacts to signals that stop the whole group."""
    os.set_inheritable(fd, False)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, _ignore)  # not SIG_IGN, which programs that a handler starts would inherit
        default_in_forks(name)
    faulthandler.enable()
    code = ChildProgram(socket.socket(fileno=fd)).main()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
