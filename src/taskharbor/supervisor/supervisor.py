"""The supervisor: does what its fleet decides, and puts back the jobs of children that died."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random

from taskharbor.client.session import Session
from taskharbor.core.durations import count
from taskharbor.core.exit_codes import shown_exit
from taskharbor.errors import HarborError
from taskharbor.supervisor.actions import EndSupervision, KillWorker, StartWorker, StopWorker, Warn
from taskharbor.supervisor.dead_leases import DeadLeases, DeadWorker
from taskharbor.supervisor.fleet import Fleet
from taskharbor.supervisor.messages import Beat, WaitsForStore, WorkerReady
from taskharbor.supervisor.options import SupervisorOptions
from taskharbor.supervisor.process import WorkerProcess, reap_orphans
from taskharbor.worker.idle import set_within

logger = logging.getLogger("taskharbor.supervisor")
TICK = 0.5
LAST_LOOKS = 5.0  # how long the end waits until the jobs of children that were killed are put back
OpenSession = Callable[[str, float], Session]


class Supervisor:
    """Keeps workers running until a signal stops it. `open_store` makes the session of a URL and a store timeout."""

    def __init__(
        self, command: Sequence[str], options: SupervisorOptions, open_store: OpenSession, rng: Random
    ) -> None:
        self._command = command
        self._options = options
        self._open_store = open_store
        self._fleet = Fleet(options, rng)
        self._running: dict[int, WorkerProcess] = {}
        self._looking: dict[asyncio.Task[None], DeadLeases] = {}
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._terminal = _has_terminal()

    async def run(self) -> int:
        """Supervise until every child has stopped; return the exit code."""
        self._listen()
        logger.info("supervisor.started: %s, pid %d", count(self._options.processes, "worker"), os.getpid())
        end = await self._until_end()
        await self._last_looks()
        if end.why is not None:
            logger.error("supervisor.ended: %s", end.why)
        logger.info("supervisor.stopped: exit code %d", end.code)
        return end.code

    async def _until_end(self) -> EndSupervision:
        while True:
            for action in self._fleet.decide(self._loop.time()):
                if isinstance(action, EndSupervision):
                    return action
                self._perform(action)
            await set_within(self._woken, TICK)
            self._woken.clear()
            self._reap()

    def _listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop, number)
        self._loop.add_signal_handler(signal.SIGCHLD, self._woken.set)
        self._loop.add_signal_handler(signal.SIGHUP, self._hang_up)

    # signals

    def _stop(self, number: signal.Signals) -> None:
        logger.info("supervisor.stopping: %s; %s", number.name, count(len(self._running), "worker"))
        self._fleet.stop()
        self._woken.set()

    def _hang_up(self) -> None:
        """SIGHUP asks for new code, unless it is the end of the terminal that this was started in."""
        if self._terminal and not _has_terminal():
            return self._stop(signal.SIGHUP)
        logger.info("supervisor.rolling: SIGHUP: replacing %s, one by one", count(len(self._running), "worker"))
        self._fleet.roll()
        return self._woken.set()

    # children

    def _perform(self, action: StartWorker | StopWorker | KillWorker | Warn) -> None:
        match action:
            case StartWorker(number, instead, why):
                self._start(number, instead, why)
            case StopWorker(number, why, urgent):
                logger.info("supervisor.stop: pid %d: %s", self._running[number].pid, why)
                self._running[number].stop(urgent=urgent)
            case KillWorker(number, why):
                logger.error("supervisor.kill: pid %d: %s", self._running[number].pid, why)
                self._running[number].kill()
            case Warn(text):
                logger.warning("supervisor.warning: %s", text)

    def _start(self, number: int, instead: int | None, why: str | None) -> None:
        try:
            process = WorkerProcess(self._command)
        except OSError as error:  # no more processes, files or memory: as if it had ended at once
            logger.error("supervisor.start: cannot start a worker: %s", error)
            self._fleet.exited(number, 1, self._loop.time())
            return
        self._running[number] = process
        self._loop.add_reader(process.socket, partial(self._receive, number))
        if instead is None:
            logger.info("supervisor.start: pid %d", process.pid)
        else:
            logger.info("supervisor.start: pid %d replaces %d: %s", process.pid, self._running[instead].pid, why)

    def _receive(self, number: int) -> None:
        process, now = self._running[number], self._loop.time()
        messages = process.received()
        if process.silent:
            self._loop.remove_reader(process.socket)
        for message in messages:
            if isinstance(message, WorkerReady):
                process.ready = message
                self._fleet.ready(number, message, now)
                logger.info("supervisor.ready: pid %d is %s", process.pid, message.worker)
                self._woken.set()
            elif isinstance(message, Beat):
                self._fleet.beat(number, message, now)
            elif isinstance(message, WaitsForStore):
                self._fleet.waits(number, now)
            else:
                self._fleet.ended(number, message.code)

    def _reap(self) -> None:
        """Reap the children that have ended. Their jobs are put back only now, when none of their code can run."""
        for number, process in list(self._running.items()):
            code = process.exit_code()
            if code is None:
                continue
            self._receive(number)  # its last messages may name the worker
            self._loop.remove_reader(process.socket)
            process.close()
            del self._running[number]
            died = self._fleet.exited(number, code, self._loop.time())
            level = logging.WARNING if died else logging.INFO
            logger.log(level, "supervisor.exit: pid %d ended with %s", process.pid, shown_exit(code))
            if died:
                process.end_group()
                if process.ready is not None:
                    self._put_back(process.ready)
        reap_orphans([process.pid for process in self._running.values()])

    # leases of the dead

    def _put_back(self, ready: WorkerReady) -> None:
        if ready.store is None:
            logger.warning(
                "supervisor.leases: the leases of %s expire by themselves: no URL names its store", ready.worker
            )
            return
        try:
            session = self._open_store(ready.store, ready.store_timeout)
        except HarborError as error:
            logger.error("supervisor.leases: the leases of %s expire by themselves: %s", ready.worker, error)
            return
        dead = DeadWorker(
            worker=ready.worker, lease=ready.lease, store_timeout=ready.store_timeout, keep_done=ready.keep_done
        )
        leases = DeadLeases(session, dead)
        task = self._loop.create_task(self._putting_back(leases, session))
        self._looking[task] = leases
        task.add_done_callback(self._looking.pop)

    async def _putting_back(self, leases: DeadLeases, session: Session) -> None:
        try:
            await leases.put_back()
        except Exception:
            logger.exception("supervisor.leases: putting jobs back failed; their leases expire by themselves")
        finally:
            leases.looked.set()
            with suppress(Exception):
                await session.close()

    async def _last_looks(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_LOOKS):
                for leases in list(self._looking.values()):
                    await leases.looked.wait()
        for task in list(self._looking):
            task.cancel()
        await asyncio.gather(*self._looking, return_exceptions=True)


def _has_terminal() -> bool:
    """Whether there is a terminal whose end would send a SIGHUP; not if `nohup` has asked to survive that."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return False
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
