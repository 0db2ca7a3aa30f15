"""The demo's workers: real processes, started by the usual command and followed through their logs."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from typing import NamedTuple

LEASE = "2s"
CONCURRENCY = 6
QUEUES = {"Argo": "default,voyages", "Beagle": "default,voyages", "Calypso": "default,express"}
_EVENT = re.compile(
    r" job=(\S+) task=(?:\S*\.)?(\S+) attempt=\S+ ((?:job|worker|lease|store|recurring)\.\w+)(?:: (.*))?$"
)


class LogLine(NamedTuple):
    """A log line of a worker: an event's name and its text, the id of its job, and the task without its module."""

    ship: Ship
    event: str
    text: str
    job: str = "-"
    task: str = "-"


class Ship:
    """One worker process."""

    def __init__(self, name: str, queues: str, url: str, lines: queue.SimpleQueue[LogLine]) -> None:
        self.name = name
        self.queues = queues
        self.state = "starting"
        self.finished = 0
        self.running = 0
        self._lines = lines
        # a process group of its own, so that a Ctrl-C in the terminal reaches the demo only
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "taskharbor", "worker", "taskharbor.cli.demo.tasks:harbor"),
                *("--queues", queues, "--concurrency", str(CONCURRENCY), "--lease", LEASE),
            ],
            env={**os.environ, "TASKHARBOR_URL": url, "PYTHONUTF8": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            process_group=0,
        )
        self._listener = threading.Thread(target=self._listen, name=f"demo-{name}", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := _EVENT.search(line):
                self._lines.put(LogLine(self, found[3], found[4] or "", found[1], found[2]))
            elif line.startswith("taskharbor: "):
                self._lines.put(LogLine(self, "worker.failed", line.strip()))

    def kill(self) -> None:
        """kill -9: no chance to shut down."""
        self._process.kill()
        self._process.wait()
        self.state = "killed"
        self.running = 0

    def ask_to_stop(self) -> None:
        """SIGTERM, as a deploy would."""
        self._process.send_signal(signal.SIGTERM)
        self.state = "stopping"

    def exit_code(self) -> int | None:
        """The exit code; None while the process runs."""
        code = self._process.poll()
        if code is not None and self.state == "stopping":
            self.state = "stopped"
        return code

    def sink(self) -> None:
        """Kill the process if needed, and end the thread that reads its log."""
        self._process.kill()
        self._process.wait()
        self._listener.join()
        assert self._process.stderr is not None
        self._process.stderr.close()


class DemoWorkers:
    """The three workers."""

    def __init__(self, url: str) -> None:
        self._lines: queue.SimpleQueue[LogLine] = queue.SimpleQueue()
        self.ships: list[Ship] = []
        self._url = url

    def start(self) -> None:
        """Start all."""
        for name, queues in QUEUES.items():
            self.ships.append(Ship(name, queues, self._url, self._lines))

    def new_lines(self) -> list[LogLine]:
        """The log lines since the last call."""
        return [self._lines.get() for _ in range(self._lines.qsize())]

    def by_worker(self, worker: str) -> Ship | None:
        """The ship behind a worker's id, `host:pid:…`."""
        return self.by_pid(int(worker.rsplit(":", 2)[-2]))

    def by_pid(self, pid: int) -> Ship | None:
        """The ship with this process id."""
        return next((ship for ship in self.ships if ship.pid == pid), None)

    def sink(self) -> None:
        """End all processes."""
        for ship in self.ships:
            ship.sink()
